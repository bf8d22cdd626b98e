#include "plan/measured_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/median.h"
#include "base/units.h"
#include "base/utf8.h"
#include "data/process.h"
#include "plan/layouts.h"
#include "plan/memory_need.h"
#include "program/text/text.h"

namespace molen::plan {
namespace {

// Returns the median of a figure; absent if some step lacks it.
std::optional<double> median_of(const std::vector<store::StepMetrics>& steps,
                                std::optional<double> store::StepMetrics::*figure) {
  std::vector<double> values;
  for (const auto& m : steps) {
    if (!(m.*figure)) return std::nullopt;
    values.push_back(*(m.*figure));
  }
  return median(std::move(values));
}

bool ends_before(const config::Config& c, std::int64_t steps) {
  const config::Horizon& until = c.train.until;
  if (until.unit == config::Horizon::Unit::kSteps) return until.count() < steps;
  if (until.unit == config::Horizon::Unit::kTokens)
    return until.count() < steps * c.batch.global * c.data.sequence_length;
  return false;
}

// Calls `found` with each line that is not blank, without the blanks around it.
template <class Found>
void each_full_line(std::string_view output, const Found& found) {
  while (!output.empty()) {
    const std::size_t end = std::min(output.find('\n'), output.size());
    const std::string_view line = config::trimmed(output.substr(0, end));
    output.remove_prefix(std::min(end + 1, output.size()));
    if (!line.empty()) found(line);
  }
}

// Returns the message with which a program ended: the last line of molen, or else the last line that is not empty.
std::string message_in(std::string_view output) {
  constexpr std::string_view kMolen = "molen: ";
  std::string last, of_molen;
  each_full_line(output, [&](std::string_view line) {
    if (line.starts_with(kMolen)) of_molen = line.substr(kMolen.size());
    last = line;
  });
  return printable(of_molen.empty() ? last : of_molen);
}

bool says_out_of_memory(std::string_view output) {
  std::string lower(output);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return output.find(kTooLittleMemory) != std::string_view::npos || lower.find("out of memory") != std::string::npos;
}

std::vector<std::string> command_of(const MeasureOptions& options, const fs::path& file) {
  std::vector<std::string> words;
  if (options.launch)
    words = options.launch->words({.ranks = options.ranks,
                                   .nodes = options.nodes,
                                   .first_node = options.first_node,
                                   .config = file,
                                   .run = fs::absolute(options.folder)});
  // The trial's file has what holds, and a variable of the batch system would win over it. It is taken away behind the
  // launcher, which may set it: a step that srun starts gets the option of its job.
  words.emplace_back("env");
  for (const auto& known : config::environment_keys()) words.insert(words.end(), {"-u", known.variable});
  // A folder that an earlier trial left unfinished is begun anew, because its steps may be of other conditions.
  for (const std::string& word :
       {options.molen.string(), std::string("train"), file.string(), std::string("--resume"), std::string("never")})
    words.push_back(word);
  if (!options.launch && options.ranks > 1) {
    words.push_back("--ranks");
    words.push_back(std::to_string(options.ranks));
  }
  return words;
}

// The keys that were set and their values. A key at its default is left out, because some defaults give way to what the
// machine or another key asks for, and a value that is set does not.
std::vector<std::pair<std::string, Json>> set_values(const config::Config& c) {
  std::vector<std::pair<std::string, Json>> values;
  for (const auto& f : config::fields())
    if (const Json value = f.write(c); c.origins.count(f.key) > 0 && !value.is_null())
      values.emplace_back(std::string(f.key), value);
  return values;
}

fs::path trial_file(const MeasureOptions& options) {
  return fs::absolute(options.folder).string() + ".toml";
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// Returns the outcome of a training that ended well, by its records.
Outcome outcome_of_records(const fs::path& folder, const MeasureOptions& options) {
  Outcome outcome;
  outcome.kind = Outcome::Kind::kFailed;
  const auto metrics = store::read_metrics(folder / "metrics.jsonl").steps;
  const int wanted = options.steps + kWarmupSteps;
  if (static_cast<int>(metrics.size()) < wanted) {
    outcome.why = fmt::format("the training ended after {} of {} steps", metrics.size(), wanted);
    return outcome;
  }
  const fs::path environment = folder / "environment.json", text = folder / "program.txt";
  const Json machine = read_json(environment);
  const auto member = [&](const char* key) { return machine.value(key, std::string()); };
  const program::Program ran = program::parse(read_file(text, program::kMaxTextBytes), text.string());
  const program::Setting& s = ran.setting;
  if (outcome.why = other_size(options, s.ranks(), machine.value("local_ranks", s.ranks())); !outcome.why.empty())
    return outcome;
  outcome = outcome_of_metrics(metrics, options.steps, s.positions(), s.ranks());
  outcome.figures.layout = layout_of(s).name;
  outcome.machine = {member("cpu"), machine.contains("gpu") ? member("gpu") : member("device"), version_in(machine)};
  return outcome;
}

}  // namespace

// One line a key: with_origins finds a key by the number of its line.
std::string toml_of_set_keys(const config::Config& c) {
  std::string text;
  for (const auto& [key, value] : set_values(c)) text += fmt::format("{} = {}\n", key, config::toml_value(value));
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
  StepFigures& f = outcome.figures;
  f.step_s = median(seconds);
  std::sort(seconds.begin(), seconds.end());
  // The percentiles lie at a tenth of the way from either end. Like the median they are measured steps, the outer ones
  // of two, so that the median always lies between them.
  const std::size_t tenth = (seconds.size() - 1) / 10;
  f.low_s = seconds[tenth], f.high_s = seconds[seconds.size() - 1 - tenth];
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

std::string version_in(const Json& machine) {
  return fmt::format("{} ({})", machine.value("molen", "no version"), machine.value("git", "no commit"));
}

std::string other_size(const MeasureOptions& options, int ranks, int local_ranks) {
  if (options.ranks > 0 && ranks != options.ranks)
    return fmt::format("the launcher started {}, not {}", counted(ranks, "rank"), options.ranks);
  const int nodes = local_ranks > 0 ? (ranks + local_ranks - 1) / local_ranks : 0;
  if (options.nodes > 0 && nodes != options.nodes)
    return fmt::format("the launcher started {} on {}, not on {}", counted(ranks, "rank"), counted(nodes, "node"),
                       options.nodes);
  return "";
}

std::string with_origins(std::string text, const config::Config& config, const MeasureOptions& options) {
  const std::string file = trial_file(options).string();
  const auto values = set_values(training_of(config, options));
  for (std::size_t line = values.size(); line >= 1; --line) {  // downwards: line 1 is the beginning of line 12
    const std::string at = fmt::format("{}:{}", file, line), &key = values[line - 1].first;
    replace_all(text, at + ": " + key, config.where(key));
    replace_all(text, at, config.where(key));
  }
  return text;
}

std::vector<std::string> last_lines(std::string_view output) {
  std::vector<std::string> lines;
  each_full_line(output, [&](std::string_view line) {
    lines.push_back(printable(line.substr(0, kLogLineChars)));
    if (lines.size() > kLogLines) lines.erase(lines.begin());
  });
  return lines;
}

Outcome measure(const config::Config& config, const MeasureOptions& options) {
  const fs::path folder = fs::absolute(options.folder), file = trial_file(options);
  make_directories(folder.parent_path());
  write_file_atomic(file, toml_of_set_keys(training_of(config, options)));
  data::ProcessLimits limits;
  limits.passes_signals = true;
  limits.wall_seconds = options.limit.value, limits.grace_seconds = options.grace.value;
  // A training of its own ends at once, since nobody measures it any more. A launcher gets the time to end its ranks.
  limits.whole_tree = options.launch.has_value();
  limits.signal_at_our_end = SIGKILL;
  const data::ProcessResult ran = data::run_process(command_of(options, file), fs::current_path(), {}, limits);
  write_file_atomic(folder.string() + ".log", ran.output);
  Outcome outcome;
  if (ran.timed_out) {
    outcome.kind = Outcome::Kind::kFailed;
    outcome.why = fmt::format("it did not end within its time limit, {}", human(options.limit));
  } else if (ran.status != 0 && ran.signal == 0) {
    outcome = outcome_of_failure(ran.status, ran.output);
    outcome.why = with_origins(outcome.why, config, options);
  } else if (ran.signal == 0) {
    outcome = outcome_of_records(folder, options);
  }
  if (outcome.kind != Outcome::Kind::kStep) outcome.log = last_lines(ran.output);
  // A trial of a large model would leave its whole state behind.
  remove_tree(folder / "checkpoints");
  if (ran.signal != 0)
    throw Error("{}: a signal ended this trial and with it the command ({}); the same command goes on with this trial",
                options.folder.string(), ::strsignal(ran.signal));
  return outcome;
}

}  // namespace molen::plan
