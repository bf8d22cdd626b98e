#include "plan/measured_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "data/process.h"
#include "plan/layouts.h"
#include "plan/memory_need.h"
#include "program/text/text.h"

namespace molen::plan {
namespace {

// Returns the value below which a share of the sorted values lies; between two values it is interpolated.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

// Returns the median of a figure; absent if some step lacks it.
std::optional<double> median_of(const std::vector<store::StepMetrics>& steps,
                                std::optional<double> store::StepMetrics::*figure) {
  std::vector<double> values;
  for (const auto& m : steps) {
    if (!(m.*figure)) return std::nullopt;
    values.push_back(*(m.*figure));
  }
  return median_of(std::move(values));
}

bool ends_before(const config::Config& c, std::int64_t steps) {
  const config::Horizon& until = c.train.until;
  if (until.unit == config::Horizon::Unit::kSteps) return until.count() < steps;
  if (until.unit == config::Horizon::Unit::kTokens)
    return until.count() < steps * c.batch.global * c.data.sequence_length;
  return false;
}

// Returns the message with which a program ended: the last line of molen, or else the last line that is not empty.
std::string message_in(std::string_view output) {
  constexpr std::string_view kMolen = "molen: ";
  std::string last, of_molen;
  while (!output.empty()) {
    const std::size_t end = std::min(output.find('\n'), output.size());
    const std::string_view line = config::trimmed(output.substr(0, end));
    output.remove_prefix(std::min(end + 1, output.size()));
    if (line.starts_with(kMolen)) of_molen = line.substr(kMolen.size());
    if (!line.empty()) last = line;
  }
  return of_molen.empty() ? last : of_molen;
}

bool says_out_of_memory(std::string_view output) {
  std::string lower(output);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return output.find(kTooLittleMemory) != std::string_view::npos || lower.find("out of memory") != std::string::npos;
}

std::vector<std::string> command_of(const MeasureOptions& options, const fs::path& file) {
  std::vector<std::string> words = options.launch;
  // A folder that an earlier trial left unfinished is begun anew, because its steps may be of other conditions.
  for (const std::string& word :
       {options.molen.string(), std::string("train"), file.string(), std::string("--resume"), std::string("never")})
    words.push_back(word);
  if (options.launch.empty() && options.ranks > 1) {
    words.push_back("--ranks");
    words.push_back(std::to_string(options.ranks));
  }
  return words;
}

}  // namespace

std::string toml_of_set_keys(const config::Config& c) {
  std::string text;
  for (const auto& f : config::fields())
    if (const Json value = f.write(c); c.origins.count(f.key) > 0 && !value.is_null())
      text += fmt::format("{} = {}\n", f.key, config::toml_value(value));
  return text;
}

config::Config training_of(const config::Config& config, const MeasureOptions& options) {
  const config::Origin origin{config::Origin::Kind::kOther, "a measured trial"};
  const std::int64_t steps = options.steps + kWarmupSteps;
  const fs::path folder = fs::absolute(options.folder);
  config::Config c = config;
  const auto assign = [&](std::string_view key, const Json& value) { config::assign(c, key, value, origin); };
  if (ends_before(c, steps)) assign("train.until", fmt::format("{} steps", steps));
  assign("train.stop_after", fmt::format("{} steps", steps));
  // The only checkpoint is then that of the end, which a run always saves.
  assign("checkpoint.every", fmt::format("{} steps", steps + 1));
  assign("checkpoint.dir", "none");
  assign("data.validation", Json::array());
  assign("run.dir", folder.parent_path().string());
  assign("run.name", folder.filename().string());
  return c;
}

Outcome outcome_of_metrics(const std::vector<store::StepMetrics>& metrics, int steps, std::int64_t tokens, int ranks) {
  MOLEN_CHECK(steps >= 1 && metrics.size() >= static_cast<std::size_t>(steps), "{} steps of {}", steps, metrics.size());
  const std::vector<store::StepMetrics> measured(metrics.end() - steps, metrics.end());
  std::vector<double> seconds;
  Outcome outcome;
  outcome.kind = Outcome::Kind::kStep, outcome.memory = Bytes(0);
  for (const auto& m : measured) {
    seconds.push_back(m.step_s);
    outcome.memory = std::max(*outcome.memory, Bytes(m.memory_peak_bytes));
  }
  std::sort(seconds.begin(), seconds.end());
  StepFigures& f = outcome.figures;
  f.step_s = quantile(seconds, 0.5), f.low_s = quantile(seconds, 0.1), f.high_s = quantile(seconds, 0.9);
  f.tokens = tokens, f.ranks = ranks;
  f.mfu = median_of(measured, &store::StepMetrics::mfu);
  if (const auto joules = median_of(measured, &store::StepMetrics::j_per_token))
    f.step_j = *joules * static_cast<double>(tokens);
  f.energy_coverage = measured.back().energy_coverage;
  return outcome;
}

Outcome outcome_of_failure(int status, std::string_view output) {
  Outcome outcome;
  outcome.why = message_in(output);
  if (says_out_of_memory(output))
    outcome.kind = Outcome::Kind::kOutOfMemory;
  else if (status == 2)
    outcome.kind = Outcome::Kind::kRefused;
  else {
    outcome.kind = Outcome::Kind::kFailed;
    outcome.why = fmt::format("exit status {}{}{}", status, outcome.why.empty() ? "" : ": ", outcome.why);
  }
  return outcome;
}

Outcome measure(const config::Config& config, const MeasureOptions& options) {
  const fs::path folder = fs::absolute(options.folder), file = folder.string() + ".toml";
  make_directories(folder.parent_path());
  write_file_atomic(file, toml_of_set_keys(training_of(config, options)));
  const data::ProcessResult ran = data::run_process(command_of(options, file), fs::current_path());
  Outcome outcome;
  const int wanted = options.steps + kWarmupSteps;
  if (ran.status != 0) {
    outcome = outcome_of_failure(ran.status, ran.output);
  } else if (const auto metrics = store::read_metrics(folder / "metrics.jsonl").steps;
             static_cast<int>(metrics.size()) < wanted) {
    outcome.kind = Outcome::Kind::kFailed;
    outcome.why = fmt::format("the training ended after {} of {} steps", metrics.size(), wanted);
  } else {
    const fs::path text = folder / "program.txt";
    const program::Program ran_program = program::parse(read_file(text, program::kMaxTextBytes), text.string());
    const program::Setting& s = ran_program.setting;
    outcome = outcome_of_metrics(metrics, options.steps, s.positions(), s.ranks());
    outcome.figures.layout = layout_of(s).name;
  }
  // A trial of a large model would leave its whole state behind.
  remove_tree(folder / "checkpoints");
  return outcome;
}

}  // namespace molen::plan
