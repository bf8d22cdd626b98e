#include "plan/sweep_file.h"

#include <fmt/format.h>

#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"

namespace molen::plan {
namespace {

store::LeaseOptions sweep_lease(const std::function<void(const std::string&)>& warn) {
  store::LeaseOptions options;
  options.advice = "give this sweep another folder (--output)";
  options.waiting = warn;
  return options;
}

bool ends_with_newline(const fs::path& path) {
  const File file = File::open(path);
  char last = 0;
  return file.size() > 0 && file.read_some(&last, 1, file.size() - 1) == 1 && last == '\n';
}

}  // namespace

SweepFile::SweepFile(const fs::path& folder, const std::function<void(const std::string&)>& warn)
    : path_(folder / "sweep.jsonl"), lease_(folder, sweep_lease(warn)) {
  if (fs::exists(path_)) read();
  lines_ = std::make_unique<store::LineWriter>(path_, warn);
}

void SweepFile::read() {
  std::optional<std::string> damage;  // of the line before; allowed in the last one alone
  std::string whole;
  store::each_line(path_, [&](std::string_view line, std::int64_t number) {
    const std::string origin = fmt::format("{}:{}", path_.string(), number);
    if (damage) throw UsageError("{}", *damage);
    Json json;
    try {
      json = parse_json(line, origin);
    } catch (const UsageError& error) {
      damage = fmt::format("{}; delete the line, and its trial is tried again", error.what());
      return;
    }
    const TrialRow row = row_from_json(json, origin);
    kept_[row.trial] = row;
    std::erase_if(others_, [&](const auto& other) { return other.first == row.trial; });
    others_.emplace_back(row.trial, std::string(line));
    whole.append(line).append("\n");
  });
  if (!damage) return;
  if (ends_with_newline(path_)) throw UsageError("{}", *damage);
  // The next row would else stand behind a line that is damaged in the middle of the file.
  write_file_atomic(path_, whole);
}

void SweepFile::append(const SweepPlan& plan, const TrialRow& row) {
  lease_.require();
  lines_->append(to_json(plan, row).dump());
  if (plan.measured) lines_->sync();
}

void SweepFile::finish(const SweepPlan& plan, const std::vector<TrialRow>& rows) {
  lease_.require();
  lines_.reset();
  std::string text;
  std::set<std::string> here;
  for (const auto& row : rows) {
    text += to_json(plan, row).dump() + "\n";
    here.insert(row.trial);
  }
  for (const auto& [trial, line] : others_)
    if (here.count(trial) == 0) text += line + "\n";
  write_file_atomic(path_, text);
}

}  // namespace molen::plan
