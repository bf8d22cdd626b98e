#include "train/observe/run_console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "arch/parts.h"
#include "base/clock.h"
#include "comm/mpi/mpi.h"
#include "program/build/recompute.h"

namespace molen::train {
namespace {

std::string errors_text(const Prediction& p, std::size_t stage) {
  const std::string of = p.stages.size() > 1 ? fmt::format("stage {}: ", stage) : "";
  if (!p.stages[stage]) return of + "no prediction: " + p.stages[stage].reason();
  const program::Comparison& c = p.stages[stage].value();
  const std::string step =
      fmt::format("predicted {}, measured {}; ", human(Seconds(c.predicted_step_s)), human(Seconds(c.measured_step_s)));
  return fmt::format("{}{}largest errors: {}", of, of.empty() ? "" : step, program::largest_errors(c));
}

// mpirun gives its ranks a terminal even when its output goes to a file, so under a launcher every step is a plain
// line.
bool on_terminal() {
  return ::isatty(STDOUT_FILENO) == 1 && comm::launch_environment().size == 0;
}

store::ConsoleStyle style_of(bool terminal) {
  struct winsize size {};
  if (terminal) ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  return store::console_style(std::getenv("NO_COLOR"), std::getenv("TERM"), terminal, size.ws_col);
}

// Returns a text such as "2 x arena 1.5 MiB".
std::string arenas_text(const MemoryPrediction& m) {
  if (m.ranks == 1) return "arena " + human(m.arena);
  if (m.arenas.value == m.arena.value * m.ranks) return fmt::format("{} x arena {}", m.ranks, human(m.arena));
  return fmt::format("{} arenas {}", m.ranks, human(m.arenas));
}

}  // namespace

RunConsole::RunConsole(const Job& job, std::int64_t total_steps, std::int64_t stop_step)
    : job_(job),
      total_steps_(total_steps),
      stop_step_(stop_step),
      terminal_(on_terminal()),
      style_(style_of(terminal_)),
      live_(stdout, terminal_) {}

// Uses the live line's writer, because fmt::print would throw when the reader of the output is gone or, once the run
// was told to stop, does not keep up.
void RunConsole::say(const std::string& text) {
  live_.note(store::wrapped(text, style_.width));
}

// Returns whether a step's line stays. In a log every line does. On a terminal, where one line is rewritten, the first,
// the last and one line a minute stay.
bool RunConsole::keeps_line(std::int64_t step) {
  constexpr double kEvery = 60.0;
  const double time = now().value;
  const bool keeps = !terminal_ || job_.options.verbose || !kept_ || step == stop_step_ || time - *kept_ >= kEvery;
  if (keeps) kept_ = time;
  return keeps;
}

void RunConsole::begin(std::int64_t start_step, const MemoryPrediction& memory, const std::string& state_hash) {
  const auto& set = job_.setting;
  say(fmt::format("{}: {} ({} parameters), {} rank{} x {} thread{} ({}), {}, {}{}", run_directory(job_.config).string(),
                  job_.arch.name, human_count(static_cast<double>(arch::num_parameters(job_.arch))), job_.machine.ranks,
                  job_.machine.ranks == 1 ? "" : "s", set.threads, set.threads == 1 ? "" : "s", job_.communicator,
                  name_of(set.compute), program::sharding_text(set),
                  set.recompute.any() ? ", recompute " + program::text_of(set.recompute) : ""));
  say(fmt::format("memory of the process: {} = {} (the plan's peak) + {} already there{} + {} of the data loader",
                  human(memory.total()), arenas_text(memory), human(memory.base),
                  memory.workspace.value > 0
                      ? fmt::format(" ({} of it workspace of the matrix library)", human(memory.workspace))
                      : "",
                  human(Bytes(memory.other.value * memory.ranks))));
  say(fmt::format("model FLOPs of a token ({}): {}", name_of(job_.options.mfu), formula_of(job_.options.mfu)));
  say((job_.peak.flops_per_s ? "peak of a device, for MFU: " : "MFU is not known: ") + job_.peak.source);
  if (start_step > 0)
    say(fmt::format("continues after step {} from {} (state {})", start_step, *job_.resume_from,
                    state_hash.substr(0, 12)));
}

void RunConsole::energy(const Json& meters, bool some, const std::string& partial) {
  if (partial.empty()) return;
  if (some) return say("energy is measured in part, marked ~: " + partial);
  const std::size_t asked = meters["unavailable"].size();
  say(asked == 0 ? std::string("energy is not measured: no meter is asked for")
                 : fmt::format("energy is not measured: {} can be read here (`molen energy list` says why)",
                               asked == 1 ? "no meter" : fmt::format("none of {} meters", asked)));
}

void RunConsole::step(const store::StepMetrics& m, bool skipped, std::optional<double> modelled_w) {
  recent_.push_back(m.step_s);
  if (recent_.size() > 50) recent_.pop_front();
  double mean = 0;
  for (const double s : recent_) mean += s / static_cast<double>(recent_.size());
  store::ConsoleStep c;
  c.step = m.step;
  c.steps = total_steps_;
  c.loss = m.loss;
  c.grad_norm = m.grad_norm;
  c.lr = m.lr;
  c.loss_scale = m.loss_scale;
  c.skipped_steps = m.skipped_steps;
  c.skipped = skipped;
  c.tokens_total = m.tokens_total;
  c.step_s = m.step_s;
  c.tokens_per_s = m.tokens_per_s;
  c.flops_formula = m.flops_formula;
  c.tflops = m.model_tflops_per_device;
  c.mfu = m.mfu;
  c.memory_peak = m.memory_peak_bytes;
  c.memory_planned = m.memory_planned_bytes;
  c.data_wait_s = m.data_wait_s;
  c.j_per_token = m.j_per_token;
  c.energy_partial = !m.energy_coverage.empty();
  if (m.j_per_token) c.watts = *m.j_per_token * m.tokens_per_s;
  c.modelled_watts = modelled_w;
  c.kwh_total = m.kwh_total, c.kg_co2e_total = m.kg_co2e_total;
  if (m.kwh_at_end) c.kwh_at_end = m.kwh_at_end->value;
  if (m.kg_co2e_at_end) c.kg_co2e_at_end = m.kg_co2e_at_end->value;
  c.eta_s = mean * static_cast<double>(stop_step_ - m.step);
  if (keeps_line(m.step)) live_.note(store::step_line(c, style_));
  live_.show(store::progress_line(c, style_));
}

void RunConsole::note(const std::string& line) {
  say(line);
}

void RunConsole::prediction(const Prediction& p, std::optional<double> measured_j, const std::string& partial) {
  live_.finish();
  say(fmt::format("\npredicted beside measured (median step{}){}:", p.stages.size() > 1 ? ", first stage" : "",
                  p.extrapolated.empty() ? "" : "; extrapolated from " + p.extrapolated));
  const program::Comparison& first = p.stages.front().value();
  live_.note(program::to_table(first));
  for (const program::AxisRow& row : first.axes)
    say(fmt::format("exposed communication of {}: predicted {}, measured {}", name_of(row.stream),
                    human(Seconds(row.predicted_exposed_s)), human(Seconds(row.measured_exposed_s))));
  for (std::size_t stage = 0; stage < p.stages.size(); ++stage) say(errors_text(p, stage));
  if (p.step_j)
    say(fmt::format("energy of a step: predicted {:.4g} J, of which the devices take {:.4g} J; measured {}{}",
                    *p.step_j, p.devices_j.value_or(0.0), measured_j ? fmt::format("{:.4g} J", *measured_j) : "-",
                    measured_j && !partial.empty() ? fmt::format(" ({})", partial) : ""));
}

void RunConsole::end(std::int64_t step, const std::string& reason, const std::string& communication,
                     const std::string& totals, const std::string& phases, const std::string& modelled) {
  live_.finish();
  if (!communication.empty()) say("communication of rank 0 in a step: " + communication);
  say(fmt::format("stopped after step {}: {}", step, reason));
  if (!phases.empty()) say("energy by phase in this attempt: " + phases);
  say("whole run: " + totals);
  if (!modelled.empty())
    say("estimated by a model in this attempt, measured by nothing and in no sum above: " + modelled);
}

}  // namespace molen::train
