#include "store/run_directory.h"

#include "base/clock.h"

namespace molen::store {
namespace {

fs::path created(fs::path path) {
  make_directories(path);
  return path;
}

RunIdentity enter_attempt(const fs::path& run) {
  RunIdentity identity = identity_of(run);
  ++identity.attempts;
  write_identity(run, identity);
  return identity;
}

Json event_line(const std::string& name, std::int64_t attempt, const Json& fields) {
  Json line{{"event", name}, {"wall_time_s", wall_time()}, {"attempt", attempt}};
  for (const auto& [key, value] : fields.items()) line[key] = value;
  return line;
}

}  // namespace

RunDirectory::RunDirectory(fs::path path, LineWriter::Warn warn)
    : path_(created(std::move(path))),
      identity_(enter_attempt(path_)),
      metrics_(metrics(), warn),
      events_(events(), warn),
      energy_(path_ / "energy.jsonl", warn) {}

void RunDirectory::append(StepMetrics m) {
  m.run_id = identity_.id;
  m.history = identity_.current().history;
  metrics_.append(to_line(m));
}

void RunDirectory::sync() {
  metrics_.sync();
  events_.sync();
  energy_.sync();
}

void RunDirectory::write_config(std::string_view toml) const {
  write_file_atomic(path_ / "config.toml", toml);
}
void RunDirectory::write_environment(const Json& environment) const {
  write_file_atomic(path_ / "environment.json", environment.dump(2) + "\n");
}
void RunDirectory::write_program(std::string_view text, int stage) const {
  write_file_atomic(path_ / program_name(stage), text);
}
void RunDirectory::write_trace(std::string_view json) const {
  write_file_atomic(path_ / "trace.json", json);
}
void RunDirectory::write_prediction(const Json& json) const {
  write_file_atomic(path_ / "predicted.json", json.dump(2) + "\n");
}

void RunDirectory::event(const std::string& name, const Json& fields) {
  events_.append(event_line(name, attempt(), fields).dump());
}

void record_event(const fs::path& run, const std::string& name, std::int64_t attempt, const Json& fields) {
  LineWriter events(run / "events.jsonl");
  events.append(event_line(name, attempt, fields).dump());
  events.sync();
}

std::string program_name(int stage) {
  return stage == 0 ? "program.txt" : "program-stage-" + std::to_string(stage) + ".txt";
}

}  // namespace molen::store
