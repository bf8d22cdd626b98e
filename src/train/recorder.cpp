#include "train/recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <deque>

#include "arch/parts.h"
#include "base/clock.h"
#include "base/error.h"
#include "program/text.h"
#include "store/run_directory.h"
#include "train/environment.h"

namespace molen::train {

class Recorder::Impl {
 public:
  Impl(const Job& job, std::int64_t total_steps, std::int64_t stop_step)
      : job_(job), total_steps_(total_steps), stop_step_(stop_step), run_(run_directory(job.config)) {
    tokens_per_step_ = static_cast<double>(job.setting.global_batch * job.setting.sequence);
    model_flops_ = arch::model_flops(job.arch, job.setting.global_batch * job.setting.sequence, job.setting.sequence, arch::FlopsConvention::kCausal).value;
  }

  void begin(std::int64_t start_step, const MemoryPrediction& memory, const std::string& state_hash) {
    run_.write_config(config::to_toml(job_.config));
    run_.write_environment(describe_environment(job_));
    run_.write_program(program::print(job_.program, program::plan_memory(job_.program)));
    run_.event(start_step > 0 ? "resume" : "start",
               {{"step", start_step}, {"from", job_.resume_from.value_or("")}, {"state_hash", state_hash}, {"arch", job_.arch.name},
                {"parameters", arch::num_parameters(job_.arch)}, {"ranks", job_.machine.ranks}, {"communicator", job_.communicator},
                {"memory_arena_bytes", memory.arena.value}, {"memory_base_bytes", memory.base.value}, {"memory_other_bytes", memory.other.value}});
    fmt::print("{}: {} ({} parameters), {} rank{} x {} thread{} ({}), {}, ZeRO-{}{}\n", run_.path().string(), job_.arch.name, human_count(static_cast<double>(arch::num_parameters(job_.arch))),
               job_.machine.ranks, job_.machine.ranks == 1 ? "" : "s", job_.setting.threads, job_.setting.threads == 1 ? "" : "s", job_.communicator,
               name_of(job_.setting.compute), job_.setting.zero, job_.setting.recompute ? ", recompute" : "");
    fmt::print("memory of a rank: {} = arena {} (the plan's peak) + {} already there + {} loader and library buffers\n", human(memory.total()), human(memory.arena),
               human(memory.base), human(memory.other));
    if (start_step > 0) fmt::print("continues after step {} from {} (state {})\n", start_step, *job_.resume_from, state_hash.substr(0, 12));
    std::fflush(stdout);
    first_step_ = start_step;
  }

  void before_step() {}

  void step(const StepRecord& r) {
    store::StepMetrics m;
    m.step = r.step;
    m.attempt = run_.attempt();
    m.wall_time_s = wall_time();
    m.loss = r.loss;
    m.grad_norm = r.grad_norm;
    m.lr = r.lr;
    m.tokens_total = r.tokens_total;
    m.step_s = r.step_s;
    m.tokens_per_s = tokens_per_step_ / r.step_s;
    m.tokens_per_s_per_device = m.tokens_per_s / job_.machine.ranks;
    m.model_tflops_per_device = model_flops_ / r.step_s / job_.machine.ranks * 1e-12;
    m.memory_peak_bytes = r.memory_peak;
    m.memory_planned_bytes = r.memory_planned;
    m.data_wait_s = r.data_wait_s;
    m.phase_s = r.phase_s;
    m.samples = {r.first_sample, r.last_sample};
    run_.append(m);
    recent_.push_back(r.step_s);
    if (recent_.size() > 50) recent_.pop_front();
    line(m);
  }

  void trace(std::int64_t, const std::vector<program::Expanded>&, const program::Timeline&) {}

  void validation(std::int64_t step, const ValidationResult& v) {
    Json bits = Json::object();
    std::string text;
    for (const auto& [language, b] : v.bits_per_byte) {
      bits[language] = b;
      text += fmt::format("  {} {:.3f}", language, b);
    }
    run_.event("validation", {{"step", step}, {"loss", v.loss}, {"tokens", v.tokens}, {"bits_per_byte", bits}});
    fmt::print("validation after step {}: loss {:.4f} over {} tokens, bits per byte{}\n", step, v.loss, v.tokens, text);
    std::fflush(stdout);
  }

  void checkpoint(std::int64_t step, const std::string& path, double seconds) {
    run_.event("checkpoint", {{"step", step}, {"path", path}, {"seconds", seconds}});
    fmt::print("saved {} in {}\n", path, human(Seconds(seconds)));
    std::fflush(stdout);
  }

  void prediction(const program::Comparison& c, const MemoryPrediction& memory, std::int64_t planned, std::int64_t measured_peak, std::int64_t rss) {
    Json ops = Json::array();
    for (const auto& row : c.rows)
      ops.push_back({{"kind", row.kind}, {"count", row.count}, {"predicted_s", row.predicted_s}, {"measured_s", row.measured_s}, {"bytes", row.bytes}});
    run_.write_prediction({{"step_s", {{"predicted", c.predicted_step_s}, {"measured", c.measured_step_s}}},
                           {"memory_bytes", {{"planned", planned}, {"measured", measured_peak}, {"process_predicted", memory.total().value}, {"process_measured", rss}}},
                           {"ops", ops}});
    fmt::print("\npredicted beside measured (median step):\n{}", program::to_table(c));
  }

  void note(const std::string& text) {
    run_.event("note", {{"text", text}});
    fmt::print("{}\n", text);
  }

  void end(std::int64_t step, const std::string& reason) {
    run_.event("stop", {{"step", step}, {"reason", reason}});
    fmt::print("stopped after step {}: {}\n", step, reason);
    std::fflush(stdout);
  }

  Json totals() const { return {{"attempts", run_.attempt()}}; }

 private:
  void line(const store::StepMetrics& m) {
    double mean = 0;
    for (const double s : recent_) mean += s / static_cast<double>(recent_.size());
    const double eta = mean * static_cast<double>(stop_step_ - m.step);
    fmt::print("step {}/{} | loss {:.4f} | gnorm {:.3f} | lr {:.2e} | {:.0f} tok/s | {:.3f} TFLOP/s | MFU - | mem {}/{} | data {:.1f}% | J/tok - | eta {}\n", m.step, total_steps_, m.loss,
               m.grad_norm, m.lr, m.tokens_per_s, m.model_tflops_per_device.value_or(0), human(Bytes(m.memory_peak_bytes)), human(Bytes(m.memory_planned_bytes)),
               100 * m.data_wait_s / m.step_s, human(Seconds(eta)));
    std::fflush(stdout);
  }

  const Job& job_;
  std::int64_t total_steps_, stop_step_, first_step_ = 0;
  store::RunDirectory run_;
  double tokens_per_step_ = 0, model_flops_ = 0;
  std::deque<double> recent_;
};

Recorder::Recorder(const Job& job, std::int64_t total_steps, std::int64_t stop_step) : impl_(std::make_unique<Impl>(job, total_steps, stop_step)) {}
Recorder::~Recorder() = default;
void Recorder::begin(std::int64_t start_step, const MemoryPrediction& memory, const std::string& state_hash) { impl_->begin(start_step, memory, state_hash); }
void Recorder::before_step() { impl_->before_step(); }
void Recorder::step(const StepRecord& record) { impl_->step(record); }
void Recorder::trace(std::int64_t step, const std::vector<program::Expanded>& ops, const program::Timeline& timeline) { impl_->trace(step, ops, timeline); }
void Recorder::validation(std::int64_t step, const ValidationResult& result) { impl_->validation(step, result); }
void Recorder::checkpoint(std::int64_t step, const std::string& path, double seconds) { impl_->checkpoint(step, path, seconds); }
void Recorder::prediction(const program::Comparison& comparison, const MemoryPrediction& memory, std::int64_t planned, std::int64_t measured_peak, std::int64_t rss) {
  impl_->prediction(comparison, memory, planned, measured_peak, rss);
}
void Recorder::note(const std::string& text) { impl_->note(text); }
void Recorder::end(std::int64_t step, const std::string& reason) { impl_->end(step, reason); }
Json Recorder::totals() const { return impl_->totals(); }
void Recorder::restore_totals(const Json&) {}

}  // namespace molen::train
