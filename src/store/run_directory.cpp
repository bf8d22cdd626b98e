#include "store/run_directory.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"

namespace molen::store {
namespace {

fs::path created(fs::path path) {
  make_directories(path);
  return path;
}

// Attempts that ended before their first step stand in the events only.
std::int64_t last_attempt(const fs::path& events) {
  if (!path_exists(events)) return 0;
  std::int64_t last = 0;
  each_line(events, [&](std::string_view line, std::int64_t) {
    try {
      const Json j = parse_json(line, events.string());
      if (j.is_object() && j.contains("attempt") && j.at("attempt").is_number_integer())
        last = std::max(last, j.at("attempt").get<std::int64_t>());
    } catch (const UsageError&) {  // cut short by a crash
    }
  });
  return last;
}

// Runs of older versions of molen have no run.json; their lines say how often they began.
RunIdentity enter_attempt(const fs::path& run) {
  auto identity = read_identity(run);
  if (!identity) {
    identity = new_identity();
    identity->attempts = std::max(read_metrics(run / "metrics.jsonl").last_attempt, last_attempt(run / "events.jsonl"));
  }
  ++identity->attempts;
  write_identity(run, *identity);
  return *identity;
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
  write_file_atomic(path_ / (stage == 0 ? "program.txt" : "program-stage-" + std::to_string(stage) + ".txt"), text);
}
void RunDirectory::write_trace(std::string_view json) const {
  write_file_atomic(path_ / "trace.json", json);
}
void RunDirectory::write_prediction(const Json& json) const {
  write_file_atomic(path_ / "predicted.json", json.dump(2) + "\n");
}

void RunDirectory::event(const std::string& name, const Json& fields) {
  Json line{{"event", name}, {"wall_time_s", wall_time()}, {"attempt", attempt()}};
  for (const auto& [key, value] : fields.items()) line[key] = value;
  events_.append(line.dump());
}

}  // namespace molen::store
