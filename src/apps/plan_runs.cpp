#include "apps/plan_runs.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <system_error>

#include "apps/cli.h"
#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "plan/published_runs.h"
#include "plan/runs.h"
#include "sim/factors.h"
#include "store/progress.h"

namespace molen::apps {
namespace {

bool to_stdout(const std::string& output) {
  return output.empty() || output == "-";
}

// Where the lines go. Each has left the process when `write` returns.
class RunLines {
 public:
  explicit RunLines(const std::string& output) {
    if (to_stdout(output)) return;
    file_.emplace(File::append(output));
    file_->truncate(0);
  }
  void write(const Json& line) {
    const std::string text = line.dump() + "\n";
    if (file_)
      file_->write(text);
    else if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      throw IoError(errno, "the predictions cannot be written to standard output: {}",
                    std::generic_category().message(errno));
  }
  void close() {
    if (file_) file_->close();
  }

 private:
  std::optional<File> file_;
};

// `failed` is set for an error that no column explains.
Json line_of(const plan::RunRow& row, const std::vector<sim::Factors>& sets, bool& failed) {
  if (!row.run) return plan::to_json(row.id, row.run.reason());
  try {
    if (sets.size() > 1) {
      const auto times = plan::predict_times(row.run.value(), sets);
      if (!times) return plan::to_json(row.id, times.reason());
      return {{"run_id", row.id}, {"step_s", times.value()}};
    }
    const sim::Factors& factors = sets.front();
    const auto prediction = plan::predict(row.run.value(), factors);
    if (!prediction) return plan::to_json(row.id, prediction.reason());
    return plan::to_json(row.run.value(), prediction.value());
  } catch (const UsageError& error) {
    return plan::to_json(row.id, error.what());
  } catch (const Error& error) {  // a mistake of molen: the other rows are predicted all the same
    failed = true;
    return plan::to_json(row.id, error.what());
  }
}

void refuse_same_file(const PlanRunsArguments& arguments) {
  std::error_code ignored;
  if (fs::equivalent(arguments.runs, arguments.output, ignored))
    throw UsageError("--output {}: this is the table itself, which the predictions would replace; name another file",
                     arguments.output);
}

}  // namespace

int run_plan_runs(const PlanRunsArguments& arguments) {
  const std::vector<sim::Factors> sets =
      arguments.factors.empty() ? std::vector{sim::Factors::shipped()} : sim::Factors::read_sets(arguments.factors);
  if (arguments.print_factors) {
    fmt::print("{}\n", sets.front().to_json().dump(1));
    return kOk;
  }
  if (arguments.runs.empty()) throw UsageError("--runs: name the table of runs, a CSV file");
  const auto rows = plan::read_runs(read_file(arguments.runs), arguments.runs);
  if (!to_stdout(arguments.output)) refuse_same_file(arguments);
  RunLines lines(arguments.output);
  const auto progress = to_stdout(arguments.output) ? nullptr : make_progress("plan");
  bool failed = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (progress)
      progress->at("runs", static_cast<double>(i) / static_cast<double>(rows.size()), printable(rows[i].id));
    lines.write(line_of(rows[i], sets, failed));
  }
  if (progress) progress->finish();
  lines.close();
  return failed ? kFailed : kOk;
}

}  // namespace molen::apps
