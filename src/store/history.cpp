#include "store/history.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"
#include "base/json_fields.h"
#include "store/lines.h"

namespace molen::store {
namespace {

constexpr int kVersion = 1;
constexpr std::int64_t kMaxBytes = 1 << 22;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

RunIdentity from_json(const Json& j, const std::string& origin) {
  const JsonFields fields(j, origin);
  if (const auto version = fields.integer("format_version"); version != kVersion)
    throw VersionError("{}: format version {}, this molen reads {}", origin, version, kVersion);
  RunIdentity identity;
  try {
    identity.id = j.at("id").get<std::string>();
    identity.attempts = fields.integer("attempts");
    identity.slurm_job = j.at("slurm").at("job").get<std::string>();
    identity.slurm_step = j.at("slurm").at("step").get<std::string>();
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

}  // namespace

std::optional<RunIdentity> read_identity(const fs::path& run) {
  const fs::path file = run / "run.json";
  try {
    return from_json(read_json(file, kMaxBytes), file.string());
  } catch (const MissingFileError&) {
    return std::nullopt;
  }
}

void write_identity(const fs::path& run, const RunIdentity& identity) {
  Json histories = Json::array();
  for (const History& h : identity.histories)
    histories.push_back({{"history", h.history}, {"from_step", h.from_step}, {"settled", h.settled}});
  write_file_atomic(run / "run.json", Json{{"format", "molen-run"},
                                           {"format_version", kVersion},
                                           {"id", identity.id},
                                           {"attempts", identity.attempts},
                                           {"slurm", {{"job", identity.slurm_job}, {"step", identity.slurm_step}}},
                                           {"histories", histories}}
                                              .dump(1) +
                                          "\n");
}

RunIdentity new_identity() {
  unsigned char bits[16];
  if (::getrandom(bits, sizeof bits, 0) != sizeof bits) throw IoError(errno, "no random bits from the system");
  RunIdentity identity;
  for (const unsigned char byte : bits) identity.id += fmt::format("{:02x}", byte);
  identity.slurm_job = environment("SLURM_JOB_ID");
  identity.slurm_step = environment("SLURM_STEP_ID");
  return identity;
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
  // First the copy, then the file without them: cut in between, the next start does both again.
  write_file_atomic(fmt::format("{}.abandoned-{}", file.string(), history), left);
  write_file_atomic(file, kept);
}

}  // namespace molen::store
