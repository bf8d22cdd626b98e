#include "store/run_directory.h"

#include "base/clock.h"
#include "base/error.h"

namespace molen::store {
namespace {

fs::path created(fs::path path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw Error("{}: cannot be created: {}", path.string(), error.message());
  return path;
}

// Attempts that ended before their first step stand in the events only.
std::int64_t last_attempt(const fs::path& events) {
  if (!fs::exists(events)) return 0;
  std::int64_t last = 0;
  const std::string text = read_file(events, std::int64_t{1} << 34);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (line.empty() || !Json::accept(line)) continue;
    const Json j = Json::parse(line);
    if (j.is_object() && j.contains("attempt") && j.at("attempt").is_number_integer())
      last = std::max(last, j.at("attempt").get<std::int64_t>());
  }
  return last;
}

}  // namespace

RunDirectory::RunDirectory(fs::path path)
    : path_(created(std::move(path))),
      attempt_(std::max(read_metrics(metrics()).last_attempt, last_attempt(events())) + 1),
      metrics_(metrics()),
      events_(events()),
      energy_(path_ / "energy.jsonl") {}

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
  Json line{{"event", name}, {"wall_time_s", wall_time()}, {"attempt", attempt_}};
  for (const auto& [key, value] : fields.items()) line[key] = value;
  events_.append(line.dump());
}

}  // namespace molen::store
