#include "store/history.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"
#include "base/json_fields.h"
#include "store/lines.h"
#include "store/metrics.h"

namespace molen::store {
namespace {

constexpr int kHistoryVersion = 1;
constexpr std::int64_t kMaxHistoryBytes = 1 << 22;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

RunIdentity from_json(const Json& j, const std::string& origin) {
  const JsonFields fields(j, origin);
  if (const auto version = fields.integer("format_version"); version != kHistoryVersion)
    throw VersionError("{}: format version {}, this molen reads {}", origin, version, kHistoryVersion);
  RunIdentity identity;
  try {
    identity.id = j.at("id").get<std::string>();
    identity.attempts = fields.integer("attempts");
    identity.named = fields.boolean("named", false);
    identity.slurm_job = j.at("slurm").at("job").get<std::string>();
    identity.slurm_step = j.at("slurm").at("step").get<std::string>();
    if (const Json* from = fields.find("from"))
      identity.from = Fork{from->at("id").get<std::string>(), from->at("name").get<std::string>(),
                           from->at("step").get<std::int64_t>()};
    identity.histories.clear();
    for (const Json& h : j.at("histories"))
      identity.histories.push_back(
          {h.at("history").get<std::int64_t>(), h.at("from_step").get<std::int64_t>(), h.at("settled").get<bool>()});
  } catch (const Json::exception& error) {
    throw UsageError("{}: {}", origin, error.what());
  }
  if (identity.id.empty() || identity.histories.empty()) throw UsageError("{}: no id or no history", origin);
  return identity;
}

// Attempts that ended before their first step appear in the events only.
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

}  // namespace

std::optional<RunIdentity> read_identity(const fs::path& run) {
  const fs::path file = run / "run.json";
  try {
    return from_json(read_json(file, kMaxHistoryBytes), file.string());
  } catch (const MissingFileError&) {
    return std::nullopt;
  }
}

void write_identity(const fs::path& run, const RunIdentity& identity) {
  Json histories = Json::array();
  for (const History& h : identity.histories)
    histories.push_back({{"history", h.history}, {"from_step", h.from_step}, {"settled", h.settled}});
  Json from;
  if (identity.from) from = {{"id", identity.from->id}, {"name", identity.from->name}, {"step", identity.from->step}};
  write_file_atomic(run / "run.json", Json{{"format", "molen-run"},
                                           {"format_version", kHistoryVersion},
                                           {"id", identity.id},
                                           {"attempts", identity.attempts},
                                           {"named", identity.named},
                                           {"slurm", {{"job", identity.slurm_job}, {"step", identity.slurm_step}}},
                                           {"from", from},
                                           {"histories", histories}}
                                              .dump(1) +
                                          "\n");
}

RunIdentity new_identity() {
  unsigned char bits[16];
  if (::getrandom(bits, sizeof bits, 0) != sizeof bits) throw IoError(errno, "the system returned no random bytes");
  RunIdentity identity;
  for (const unsigned char byte : bits) identity.id += fmt::format("{:02x}", byte);
  identity.slurm_job = environment("SLURM_JOB_ID");
  identity.slurm_step = environment("SLURM_STEP_ID");
  return identity;
}

RunIdentity identity_of(const fs::path& run) {
  if (auto identity = read_identity(run)) return *identity;
  RunIdentity identity = new_identity();
  identity.attempts = std::max(read_metrics(run / "metrics.jsonl").last_attempt, last_attempt(run / "events.jsonl"));
  return identity;
}

std::vector<fs::path> requeued_runs(const fs::path& directory) {
  const std::string job = environment("SLURM_JOB_ID"), restarts = environment("SLURM_RESTART_COUNT");
  if (job.empty() || restarts.empty() || restarts == "0" || !path_exists(directory)) return {};
  std::vector<fs::path> found;
  for (const DirectoryEntry& entry : list_directory(directory)) {
    if (!entry.is_directory) continue;
    try {
      const auto identity = read_identity(directory / entry.name);
      if (identity && !identity->named && identity->slurm_job == job &&
          identity->slurm_step == environment("SLURM_STEP_ID"))
        found.push_back(directory / entry.name);
    } catch (const UsageError&) {  // no valid run.json: not this run's error
    } catch (const VersionError&) {
    }
  }
  return found;
}

void abandon_lines(const fs::path& file, std::int64_t beyond, std::int64_t history) {
  if (!path_exists(file)) return;
  std::string kept, left;
  each_line(file, [&](std::string_view line, std::int64_t) {
    bool stays = true;
    try {
      const Json j = parse_json(line, file.string());
      stays = !j.is_object() || !j.contains("step") || !j["step"].is_number() || j["step"].get<double>() <= beyond;
    } catch (const UsageError&) {  // cut short by a crash
    }
    std::string& to = stays ? kept : left;
    to += line;
    to += '\n';
  });
  if (left.empty()) return;
  // Writes the copy first, then the file without these lines. If the process is killed in between, the next start does
  // both again.
  write_file_atomic(fmt::format("{}.abandoned-{}", file.string(), history), left);
  write_file_atomic(file, kept);
}

void abandon_records(const fs::path& run, const History& history) {
  if (!path_exists(run)) return;
  for (const char* name : {"metrics.jsonl", "events.jsonl", "energy.jsonl"})
    abandon_lines(run / name, history.from_step, history.history);
  // The next attempt writes a session start, from which TensorBoard knows the step where the history continues.
  if (history.from_step != kAnew) return;
  const fs::path shown = run / "tensorboard", aside = fmt::format("{}.abandoned-{}", shown.string(), history.history);
  if (!path_exists(shown) || path_exists(aside)) return;
  rename_path(shown, aside);
  sync_directory(run);
}

}  // namespace molen::store
