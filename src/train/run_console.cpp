#include "train/run_console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "arch/parts.h"
#include "comm/mpi/mpi.h"
#include "program/recompute.h"

namespace molen::train {
namespace {

// mpirun hands its ranks a terminal of its own even where its output goes to a file, so under a launcher every step is
// a plain line.
bool on_terminal() {
  return ::isatty(STDOUT_FILENO) == 1 && comm::launch_environment().size == 0;
}

store::ConsoleStyle terminal_style() {
  struct winsize size {};
  const bool terminal = on_terminal();
  if (terminal) ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  return store::console_style(std::getenv("NO_COLOR"), std::getenv("TERM"), terminal, size.ws_col);
}

// "2 x arena 1.5 MiB".
std::string arenas_text(const MemoryPrediction& m) {
  if (m.ranks == 1) return "arena " + human(m.arena);
  if (m.arenas.value == m.arena.value * m.ranks) return fmt::format("{} x arena {}", m.ranks, human(m.arena));
  return fmt::format("{} arenas {}", m.ranks, human(m.arenas));
}

// fmt::print would throw where the reader is gone or, once the run was told to stop, does not keep up.
template <class... T>
void say(fmt::format_string<T...> format, T&&... values) {
  const std::string text = fmt::format(format, std::forward<T>(values)...);
  [[maybe_unused]] const auto written = std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

RunConsole::RunConsole(const Job& job, std::int64_t total_steps, std::int64_t stop_step)
    : job_(job),
      total_steps_(total_steps),
      stop_step_(stop_step),
      style_(terminal_style()),
      live_(stdout, on_terminal()) {}

void RunConsole::begin(std::int64_t start_step, const MemoryPrediction& memory, const std::string& state_hash) {
  say("{}: {} ({} parameters), {} rank{} x {} thread{} ({}), {}, {}{}\n", run_directory(job_.config).string(),
      job_.arch.name, human_count(static_cast<double>(arch::num_parameters(job_.arch))), job_.machine.ranks,
      job_.machine.ranks == 1 ? "" : "s", job_.setting.threads, job_.setting.threads == 1 ? "" : "s", job_.communicator,
      name_of(job_.setting.compute), program::sharding_text(job_.setting),
      job_.setting.recompute.any() ? ", recompute " + program::text_of(job_.setting.recompute) : "");
  say("memory of the process: {} = {} (the plan's peak) + {} already there{} + {} loader\n", human(memory.total()),
      arenas_text(memory), human(memory.base),
      memory.workspace.value > 0 ? fmt::format(" (workspace of the products' library {})", human(memory.workspace))
                                 : "",
      human(Bytes(memory.other.value * memory.ranks)));
  say("model FLOPs of a token ({}): {}\n", name_of(job_.options.mfu), formula_of(job_.options.mfu));
  if (job_.peak.flops_per_s)
    say("peak of a device, for MFU: {}\n", job_.peak.source);
  else
    say("MFU is not known: {}\n", job_.peak.source);
  if (start_step > 0)
    say("continues after step {} from {} (state {})\n", start_step, *job_.resume_from, state_hash.substr(0, 12));
  std::fflush(stdout);
}

void RunConsole::energy(const Json& meters, bool some, const std::string& partial) {
  if (partial.empty()) return;
  if (some) return say("energy is measured in part, marked ~: {}\n", partial);
  std::string why;
  for (const auto& [meter, reason] : meters["unavailable"].items())
    why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", meter, reason.get<std::string>());
  say("energy is not measured: {}\n", why.empty() ? "no meter is asked for" : why);
}

void RunConsole::step(const store::StepMetrics& m, bool skipped) {
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
  c.eta_s = mean * static_cast<double>(stop_step_ - m.step);
  live_.step(m.step, store::step_line(c, style_));
}

void RunConsole::note(const std::string& line) {
  live_.note(line);
}

void RunConsole::prediction(const program::Comparison& c) {
  live_.finish();
  say("\npredicted beside measured (median step){}:\n{}",
      c.extrapolated.empty() ? "" : "; extrapolated from " + c.extrapolated, program::to_table(c));
}

void RunConsole::end(std::int64_t step, const std::string& reason, const std::string& communication,
                     const std::string& totals) {
  live_.finish();
  if (!communication.empty()) say("communication of rank 0 in a step: {}\n", communication);
  say("stopped after step {}: {}\nwhole run: {}\n", step, reason, totals);
  std::fflush(stdout);
}

}  // namespace molen::train
