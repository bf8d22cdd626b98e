#include "exec/executor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/StreamGuard.h>
#include <linux/futex.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <exception>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/match.h"
#include "exec/bind.h"
#include "exec/constants.h"
#include "exec/groups.h"
#include "exec/launches.h"
#include "exec/workers.h"
#include "math/allocation.h"
#include "program/parts/part.h"
#include "program/values/value_memory.h"

namespace molen::exec {

// Records which ops have ended or, on a device, have been launched; all threads of the rank share the record. Waiting
// ends early when any thread of the rank has failed. The class is not in an anonymous namespace because Executor::Impl,
// which is not in one either, holds it. A thread that waits sleeps at once. The wait of std::atomic yields the core a
// few times before, and where more threads than cores have work, each time costs a time slice of another thread.
class Progress {
 public:
  explicit Progress(std::size_t ops) : states_(ops) {}

  void reset() {
    for (auto& s : states_) s.store(kRunning, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
  }
  void mark(std::size_t op) {
    State& state = states_[op];
    if (state.exchange(kEnded, std::memory_order_acq_rel) == kAwaited) call_futex(state, FUTEX_WAKE_PRIVATE, INT_MAX);
  }
  // Returns false if another thread of the rank has failed.
  bool wait(std::size_t op) {
    State& state = states_[op];
    for (auto seen = state.load(std::memory_order_acquire); seen != kEnded;) {
      if (seen == kAwaited || state.compare_exchange_strong(seen, kAwaited, std::memory_order_acquire)) {
        call_futex(state, FUTEX_WAIT_PRIVATE, kAwaited);  // returns at once if the op has ended by now
        seen = state.load(std::memory_order_acquire);
      }
    }
    return !failed_.load(std::memory_order_acquire);
  }
  void fail() {
    failed_.store(true, std::memory_order_release);
    for (std::size_t op = 0; op < states_.size(); ++op) mark(op);
  }

 private:
  using State = std::atomic<std::uint32_t>;
  static_assert(sizeof(State) == sizeof(std::uint32_t) && State::is_always_lock_free, "a futex is 32 bits");
  static constexpr std::uint32_t kRunning = 0, kAwaited = 1,
                                 kEnded = 2;  // kAwaited: it runs, and a thread waits for it
  static void call_futex(State& state, int what, std::uint32_t value) {
    ::syscall(SYS_futex, &state, what, value, nullptr, nullptr, 0);
  }
  std::vector<State> states_;
  std::atomic<bool> failed_{false};
};

namespace {

// Returns whether the host only launches an op: the op reads and writes only the device's memory, and the host does not
// wait for it.
bool only_launched(const program::Program& p, const program::Step& step) {
  const bool computes = std::visit(Match{
                                       [](const program::Compute&) { return true; },
                                       [](const program::ZeroFill&) { return true; },
                                       [](const program::SumSquares&) { return true; },
                                       [](const program::OptimizerStep&) { return true; },
                                       [](const program::Cast&) { return true; },
                                       [](const auto&) { return false; },
                                   },
                                   step.op);
  const auto on_device = [&](const program::Use& use) {
    return p.buffers[static_cast<std::size_t>(use.buffer)].place != program::Place::kHost;
  };
  return computes && std::all_of(step.operands.begin(), step.operands.end(), on_device);
}

constexpr unsigned char kPoison = 0xff;  // every floating type reads it as NaN

}  // namespace

class Executor::Impl {
 public:
  Impl(program::Program program, int rank, comm::Communicator* world, Options options, const Executor* owner)
      : program_(with_setter(std::move(program), options)),
        groups_(program_, rank, world),
        options_(options),
        plan_(program::plan_memory(program_, options.packing)),
        slots_(program_),
        ops_(program::expand(program_)),
        progress_(ops_.size()) {
    math::AllocationGuard::install();
    mesh::PerAxis in_stage = groups_.coordinates();
    in_stage[mesh::Axis::kPp] = 0;
    first_of_stage_ = in_stage == mesh::PerAxis{};
    place(owner);
    fill_constants({program_, groups_.coordinates(), nullptr, [this](int buffer) { return flat(buffer); }});
    for (const auto& e : ops_) {
      int& threads = threads_[static_cast<std::size_t>(e.step->stream)];
      threads = std::max(threads, e.step->attributes.threads);
    }
    bind_instances();
    if (options_.poison_dead) {
      find_deaths();
      find_deaths_of_micro_batches();
    }
    if (const at::Device streams = options_.streams.value_or(options_.device); !streams.is_cpu())
      launches_ = std::make_unique<Launches>(streams, ops_.size());
    for (const auto& e : ops_) launched_.push_back(launches_ && !options_.written && only_launched(program_, *e.step));
    high_water_.assign(ops_.size(), 0);
    for (const auto& e : ops_) used_[static_cast<std::size_t>(e.step->stream)] = true;
    for (const auto& e : ops_)
      if (program::is_communication(e.step->op)) calls_[static_cast<std::size_t>(e.step->stream)] = true;
    if (groups_.one_at_a_time()) in_turn_ = program::communication_before(ops_);
  }

  StepResult run(const StepInput& input) {
    StepState state;
    state.input = &input;
    state.launches = launches_.get();
    StepResult result;
    result.timeline.ops.assign(ops_.size(), {});
    progress_.reset();
    result.timeline.start_ns = start_ns_ = launches_ ? launches_->begin_step() : now_ns();
    std::array<std::exception_ptr, program::kNumStreams> errors;
    const auto run_one = [&](program::Stream stream) {
      const auto s = static_cast<std::size_t>(stream);
      errors[s] = run_stream(stream, state, result.timeline);
      if (calls_[s]) groups_.add_callers(-1);
    };
    if (!workers_) workers_.emplace(beside(), [this](program::Stream stream) { prepare_thread(stream); });
    // During this call the threads of the streams call the communicators, and this thread does not.
    groups_.add_callers(static_cast<int>(std::count(calls_.begin(), calls_.end(), true)) - 1);
    workers_->run(run_one, [&] { run_one(program::Stream::kCompute); });
    groups_.add_callers(1);
    for (const auto& error : errors)
      if (error) std::rethrow_exception(error);
    result.timeline.total_s = static_cast<double>(now_ns() - start_ns_) * 1e-9;
    if (launches_) read_times(result.timeline);
    read_scalars(state, result);
    return result;
  }

  at::Tensor flat(int buffer, std::int64_t micro_batch = -1) const {
    const auto& b = program_.buffers.at(static_cast<std::size_t>(buffer));
    if (b.lifetime == program::Lifetime::kExternal) {
      MOLEN_CHECK(owner_ != nullptr, "external buffer {} without an owner", b.name);
      const auto& owner = owner_->program_;
      const int unit = b.unit < 0 ? -1 : owner.find_unit(program_.units.at(static_cast<std::size_t>(b.unit)).name);
      const int theirs = owner.find_buffer(b.role, unit);
      MOLEN_CHECK(theirs >= 0, "external buffer {} is not in its owner's program", b.name);
      MOLEN_CHECK(owner.buffers[static_cast<std::size_t>(theirs)].elements == b.elements,
                  "external buffer {} has {} elements in its owner's program, not {}", b.name,
                  owner.buffers[static_cast<std::size_t>(theirs)].elements, b.elements);
      return owner_->flat(theirs);
    }
    const std::int64_t offset = plan_.offset(program_, slots_, buffer, micro_batch);
    return b.place == program::Place::kHost ? host_->view(offset, b.dtype, {b.elements})
                                            : arena_->view(base_ + offset, b.dtype, {b.elements});
  }

  const Arena& arena_of(program::Place place) const { return place == program::Place::kHost ? *host_ : *arena_; }

  std::span<std::byte> bytes_of(program::Place place) const {
    MOLEN_CHECK(options_.device.is_cpu(), "the bytes of a device are not read here");
    const Arena& arena = arena_of(place);
    return {static_cast<std::byte*>(arena.at(0)), static_cast<std::size_t>(arena.size().value)};
  }

  std::optional<Bytes> touched(program::Place place) const {
    const bool lent = place == program::Place::kDevice && owner_ && arena_ == owner_->arena_;
    return lent ? std::nullopt : arena_of(place).touched();
  }

  program::Program program_;
  Groups groups_;
  bool first_of_stage_ = false;  // whether this rank's coordinates are all 0, but for the stage
  Options options_;
  program::MemoryPlan plan_;
  program::Slots slots_;
  std::vector<program::Expanded> ops_;
  std::vector<std::int64_t> high_water_;

 private:
  // Refuses a program whose clocks nothing sets, before the first collective call.
  static program::Program with_setter(program::Program program, const Options& options) {
    if (const auto clocks = program::clocks_set_by(program); !clocks.empty() && !options.set_clock)
      throw UsageError(
          "the program sets the clock of its device to {} kHz, but nothing here can set it: leave set_clock out",
          clocks.front());
    return program;
  }

  // Instances of a body share its kernels when their micro-batches lie in the same slots.
  void bind_instances() {
    std::vector<std::vector<int>> kept(program_.bodies.size());
    for (std::size_t b = 0; b < program_.bodies.size(); ++b)
      for (const auto& step : program_.bodies[b].steps)
        for (const auto& use : step.operands)
          if (slots_.count(use.buffer) > 1) kept[b].push_back(use.buffer);
    std::map<std::vector<int>, std::size_t> known;
    for (const auto& instance : program_.schedule) {
      std::vector<int> key{instance.body};
      for (const int buffer : kept[static_cast<std::size_t>(instance.body)])
        key.push_back(slots_.of(buffer, instance.micro_batch));
      const auto [found, fresh] = known.try_emplace(std::move(key), bound_.size());
      kernels_.push_back(found->second);
      if (!fresh) continue;
      const BindContext context{program_,
                                groups_.coordinates(),
                                [this](program::Axis axis) { return groups_.of(axis); },
                                [this, micro = instance.micro_batch](int buffer) { return flat(buffer, micro); },
                                {},
                                options_.set_clock};
      bound_.emplace_back();
      for (const auto& step : program_.bodies[static_cast<std::size_t>(instance.body)].steps)
        bound_.back().push_back(bind(context, step));
    }
  }

  // A program that borrows another program's weights also uses that program's transient memory when its own fits into
  // it, because the two never run at once.
  void place(const Executor* owner) {
    const Bytes guard = plan_.host.value > 0 ? options_.guard : Bytes{};
    host_ = std::make_unique<Arena>(plan_.host + guard, at::kCPU, !options_.device.is_cpu());
    if (owner) {
      owner_ = owner->impl_.get();
      const std::int64_t space = owner_->plan_.peak.value - owner_->plan_.persistent.value;
      if (plan_.peak.value <= space) {
        arena_ = owner_->arena_;
        base_ = owner_->base_ + owner_->plan_.persistent.value;
        return;
      }
    }
    arena_ = std::make_shared<Arena>(plan_.peak + options_.guard, options_.device);
  }

  // Lists, for each op of each body, the transient buffers whose lifetime ends with it. When more than one stream may
  // be the last to use a buffer, the buffer is not listed.
  void find_deaths() {
    for (std::size_t b = 0; b < program_.bodies.size(); ++b) {
      const auto& steps = program_.bodies[b].steps;
      deaths_.emplace_back(steps.size());
      for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
        if (program_.buffers[i].lifetime != program::Lifetime::kTransient) continue;
        const int last = last_use(steps, static_cast<int>(i));
        const auto& live = plan_.live[b][i];
        bool alone = last >= 0;
        for (std::size_t s = 0; alone && s < program::kNumStreams; ++s)
          alone =
              live.last[s] <= last && over_before(steps, static_cast<int>(i), static_cast<program::Stream>(s), last);
        if (alone) deaths_[b][static_cast<std::size_t>(last)].push_back(static_cast<int>(i));
      }
    }
  }

  // Lists, for each op of the expansion, the micro-batch values that it is the last to use. Only values that a single
  // stream uses are listed.
  void find_deaths_of_micro_batches() {
    micro_batch_deaths_.resize(ops_.size());
    struct Last {
      std::size_t op = 0;
      bool alone = true;
    };
    std::map<std::pair<int, std::int64_t>, Last> last;
    for (std::size_t i = 0; i < ops_.size(); ++i)
      for (const auto& use : ops_[i].step->operands) {
        if (program_.buffers[static_cast<std::size_t>(use.buffer)].lifetime != program::Lifetime::kMicroBatch) continue;
        const auto [at, fresh] = last.try_emplace({use.buffer, ops_[i].micro_batch}, Last{i, true});
        at->second = {i, at->second.alone && ops_[at->second.op].step->stream == ops_[i].step->stream};
      }
    for (const auto& [value, use] : last)
      if (use.alone) micro_batch_deaths_[use.op].push_back(value.first);
  }

  // Returns whether all ops of `stream` that use a buffer have ended by the time op `last`, of this or another stream,
  // has ended.
  static bool over_before(const std::vector<program::Step>& steps, int buffer, program::Stream stream, int last) {
    const program::Stream own = steps[static_cast<std::size_t>(last)].stream;
    if (stream == own) return true;
    int user = -1, known = -1;
    for (int k = 0; k <= last; ++k) {
      const program::Step& step = steps[static_cast<std::size_t>(k)];
      if (step.stream == stream && uses(step, buffer)) user = k;
      if (step.stream != own) continue;
      for (const program::OpRef& ref : step.after)
        if (ref.body < 0 && steps[static_cast<std::size_t>(ref.op)].stream == stream) known = std::max(known, ref.op);
    }
    return known >= user;
  }

  static bool uses(const program::Step& step, int buffer) {
    return std::any_of(step.operands.begin(), step.operands.end(),
                       [buffer](const program::Use& use) { return use.buffer == buffer; });
  }

  static int last_use(const std::vector<program::Step>& steps, int buffer) {
    for (int k = static_cast<int>(steps.size()) - 1; k >= 0; --k)
      if (uses(steps[static_cast<std::size_t>(k)], buffer)) return k;
    return -1;
  }

  // Returns the streams that have ops and run beside compute.
  std::vector<program::Stream> beside() const {
    std::vector<program::Stream> streams;
    for (const program::Stream stream : program::kAllStreams)
      if (stream != program::Stream::kCompute && used_[static_cast<std::size_t>(stream)]) streams.push_back(stream);
    return streams;
  }

  // Sets the number of threads for this thread only. at::set_num_threads would also set MKL's number for the whole
  // process. Chance would then decide which products of the compute thread still ran on all threads, and with that
  // their bits.
  void prepare_thread(program::Stream stream) const {
    at::internal::lazy_init_num_threads();
    ::omp_set_num_threads(std::max(threads_[static_cast<std::size_t>(stream)], 1));
  }

  // Throws nothing, so that the other threads of the step are always waited for.
  std::exception_ptr run_stream(program::Stream stream, StepState& state, program::Timeline& timeline) noexcept {
    const c10::InferenceMode inference;
    std::exception_ptr error;
    const auto attempt = [&](const auto& body) {
      try {
        body();
      } catch (...) {
        progress_.fail();
        if (!error) error = std::current_exception();
      }
    };
    std::optional<c10::StreamGuard> own;
    attempt([&] {
      if (launches_) own.emplace(launches_->stream(stream));
      run_ops(stream, state, timeline);
    });
    attempt([&] {
      if (own) launches_->wait();  // after a failure, too, nothing may use the arena any more
    });
    return error;
  }

  void run_ops(program::Stream stream, StepState& state, program::Timeline& timeline) {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const auto& e = ops_[i];
      if (e.step->stream != stream) continue;
      for (const int a : e.after) {
        const auto before = static_cast<std::size_t>(a);
        if (ops_[before].step->stream == stream) continue;
        if (!progress_.wait(before)) return;
        if (launched_[before]) launches_->order_after(before);
      }
      // All ranks communicate in the order of the list; see docs/decisions/0011-self-contained-ops.md.
      if (!in_turn_.empty() && in_turn_[i] >= 0 && !progress_.wait(static_cast<std::size_t>(in_turn_[i]))) return;
      run_op(i, state, timeline);
      progress_.mark(i);
    }
  }

  void run_op(std::size_t i, StepState& state, program::Timeline& timeline) {
    const auto& e = ops_[i];
    auto& time = timeline.ops[i];
    if (options_.observer) options_.observer->begin(e.step->stream, i, now_ns());
    const bool waits = launches_ && !launched_[i];
    try {
      if (waits) launches_->wait();  // for its inputs
      const std::int64_t cpu_start = options_.device.is_cpu() ? thread_cpu_ns() : 0;
      time.start_s = static_cast<double>(now_ns() - start_ns_) * 1e-9;
      if (launched_[i]) launches_->begin(i);
      if (const auto pause = options_.sleep ? options_.sleep(*e.step) : std::nullopt) {
        if (options_.sleep_together) meet(e.step->op);
        std::this_thread::sleep_for(std::chrono::duration<double>(*pause));
      } else if (!(e.step->unless && state.skips_update()))
        run_kernel(i, state, time);
      if (launched_[i]) launches_->end(i);
      if (waits) launches_->wait();
      time.end_s = static_cast<double>(now_ns() - start_ns_) * 1e-9;
      time.cpu_s = options_.device.is_cpu() ? static_cast<double>(thread_cpu_ns() - cpu_start) * 1e-9 : time.seconds();
    } catch (const std::exception& error) {
      throw Error("{}\n  in op %{} of body {}: {}  <-- here", error.what(), e.op,
                  program_.bodies[static_cast<std::size_t>(e.body)].name, program::kind_of(e.step->op));
    }
    if (options_.observer) options_.observer->end(e.step->stream, i, now_ns());
  }

  // Waits for the ranks that take part in an op: a message has two ends, and any other op is of its axis's group.
  void meet(const program::Op& op) const {
    const auto axis = program::axis_of(op);
    if (!axis) return;
    comm::Communicator* group = groups_.of(*axis);
    char nothing = 0;
    if (const auto* send = std::get_if<program::Send>(&op))
      group->send(&nothing, 1, DType::kU8, send->peer);
    else if (const auto* receive = std::get_if<program::Receive>(&op))
      group->recv(&nothing, 1, DType::kU8, receive->peer);
    else
      group->barrier();
  }

  void run_kernel(std::size_t i, StepState& step, program::OpTime& time) {
    const auto& e = ops_[i];
    const auto body = static_cast<std::size_t>(e.body), op = static_cast<std::size_t>(e.op);
    const Kernel& kernel = bound_[kernels_[static_cast<std::size_t>(e.instance)]][op];
    const std::int64_t offset = plan_.scratch_offset[body][op];
    void* base = offset >= 0 ? arena_->at(base_ + offset) : nullptr;
    math::Scratch scratch(base, e.step->scratch.value);
    RunState state(step);
    if (e.step->stream == program::Stream::kCompute && options_.device.is_cpu()) {
      // ATen may allocate only when the op's kernels call it; otherwise scratch belongs to molen's own kernels.
      const bool serve = program::calls_aten(*e.step) && e.step->scratch.value > 0;
      const math::AllocationGuard guard(serve ? &scratch : nullptr);
      kernel(state, scratch);
    } else {
      kernel(state, scratch);
    }
    state.require_declared(*e.step, first_of_stage_);
    state.write_times(time);
    record_memory(i, offset, scratch.high_water());
    if (options_.written) {
      if (launches_) launches_->wait();
      show_writes(e);
    }
    if (options_.poison_dead) poison(i);
  }

  // A launched op takes its time on the device and not on the thread, so the times come from the device's events.
  void read_times(program::Timeline& timeline) const {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (!launched_[i]) continue;
      auto& time = timeline.ops[i];
      std::tie(time.start_s, time.end_s) = launches_->seconds(i);
      time.cpu_s = time.seconds();
    }
  }

  void show_writes(const program::Expanded& e) const {
    std::vector<at::Tensor> writes;
    for (const program::Use& use : e.step->operands)
      if (use.writes()) writes.push_back(flat(use.buffer, e.micro_batch));
    options_.written(e, writes);
  }

  void record_memory(std::size_t i, std::int64_t scratch_offset, std::int64_t scratch_used) {
    const auto& e = ops_[i];
    std::int64_t top = plan_.kept.value;
    for (std::size_t b = 0; b < program_.buffers.size(); ++b) {
      const auto& buffer = program_.buffers[b];
      if (program::packed(buffer) && plan_.live[static_cast<std::size_t>(e.body)][b].during(e.step->stream, e.op))
        top = std::max(top, plan_.buffer_offset[b] + plan_.aligned(buffer.bytes().value));
    }
    if (scratch_offset >= 0) top = std::max(top, scratch_offset + plan_.aligned(scratch_used));
    high_water_[i] = top;
  }

  void poison(std::size_t i) {
    if (!options_.device.is_cpu()) return;
    const auto& e = ops_[i];
    const auto fill = [&](int buffer) {
      at::Tensor t = flat(buffer, e.micro_batch);
      std::memset(t.data_ptr(), kPoison, t.nbytes());
    };
    for (const int buffer : deaths_[static_cast<std::size_t>(e.body)][static_cast<std::size_t>(e.op)]) fill(buffer);
    for (const int buffer : micro_batch_deaths_[i]) fill(buffer);
  }

  void read_scalars(const StepState& state, StepResult& result) const {
    const at::Tensor host = flat(program_.find_buffer(program::Value::kScalars, -1)).to(at::kCPU);
    const double* s = host.data_ptr<double>();
    result.loss_sum = s[program::kLossSum];
    result.valid_tokens = s[program::kValidTokens];
    result.grad_norm = s[program::kGradNorm];
    if (program_.arch.sparse()) {
      const double each = result.valid_tokens * static_cast<double>(program_.arch.sparse_layers());
      result.balance_loss = s[program::kBalanceLoss] / each;
      result.z_loss = s[program::kZLoss] / each;
      if (program_.arch.drops_tokens())
        result.dropped_share =
            s[program::kDropped] / (each * static_cast<double>(program_.arch.sparse_experts().per_token));
    }
    result.non_finite = state.non_finite;
    result.overflow = state.overflow;
  }

  Impl* owner_ = nullptr;
  std::shared_ptr<Arena> arena_;
  std::unique_ptr<Arena> host_;
  std::int64_t base_ = 0;
  std::vector<std::vector<Kernel>> bound_;
  std::vector<std::size_t> kernels_;  // index into bound_, by instance
  std::vector<std::vector<std::vector<int>>> deaths_;
  std::vector<std::vector<int>> micro_batch_deaths_;
  Progress progress_;
  std::unique_ptr<Launches> launches_;  // null on the host
  std::vector<bool> launched_;          // by op; the host waits for each op that is not only launched
  std::int64_t start_ns_ = 0;
  // used_: streams with ops; calls_: streams with ops that communicate
  std::array<bool, program::kNumStreams> used_{}, calls_{};
  std::vector<int> in_turn_;  // by op: the communication that must have ended; empty if the communicators need no order
  std::array<int, program::kNumStreams> threads_{};  // threads of the kernels of each stream
  // The workers are made by the first step, so that an executor that only lends its state has no threads. This is the
  // last member because its threads use the others.
  std::optional<Workers> workers_;
};

Executor::Executor(program::Program program, int rank, comm::Communicator* world, Options options,
                   const Executor* weights)
    : impl_(std::make_unique<Impl>(std::move(program), rank, world, options, weights)) {}
Executor::~Executor() = default;

StepResult Executor::run(const StepInput& input) {
  return impl_->run(input);
}
const program::Program& Executor::program() const {
  return impl_->program_;
}
at::Device Executor::device() const {
  return impl_->options_.device;
}
const program::MemoryPlan& Executor::memory() const {
  return impl_->plan_;
}
const std::vector<program::Expanded>& Executor::ops() const {
  return impl_->ops_;
}
const std::vector<std::int64_t>& Executor::high_water() const {
  return impl_->high_water_;
}
std::optional<Bytes> Executor::touched(program::Place place) const {
  return impl_->touched(place);
}

namespace {

// Returns the buffer that keeps a state from step to step; -1 if none does.
int state_buffer(const program::Program& p, const std::string& state, int unit) {
  using program::Value;
  const auto value = program::value_named(state);
  if (!value) return -1;
  // Parameters and gradients stay on the device, whole or sharded, or on the host.
  std::vector<Value> places{*value};
  if (*value == Value::kParam) places = {Value::kParamShard, Value::kParam, Value::kParamHost};
  if (*value == Value::kGrad) places = {Value::kGradShard, Value::kGrad, Value::kGradHost};
  for (const Value place : places)
    if (const int buffer = p.find_buffer(place, unit);
        buffer >= 0 && p.buffers[static_cast<std::size_t>(buffer)].lifetime != program::Lifetime::kTransient)
      return buffer;
  return -1;
}

}  // namespace

at::Tensor Executor::state(const std::string& family, int unit) const {
  const int buffer = state_buffer(impl_->program_, family, unit);
  MOLEN_CHECK(buffer >= 0, "the program keeps no '{}'", family);
  const program::Program& p = impl_->program_;
  const auto [first, last] = state_range(family, unit);
  const auto place = [&](std::int64_t at) {
    return program::elements_before(p, p.buffers[static_cast<std::size_t>(buffer)].role,
                                    p.units[static_cast<std::size_t>(unit)], at);
  };
  return impl_->flat(buffer).narrow(0, 0, place(last) - place(first));
}

bool Executor::has_state(const std::string& family) const {
  return state_buffer(impl_->program_, family, 0) >= 0;
}

std::pair<std::int64_t, std::int64_t> Executor::state_range(const std::string& family, int unit) const {
  return held_of(impl_->program_, state_buffer(impl_->program_, family, unit), impl_->groups_.coordinates());
}

comm::Traffic Executor::traffic(program::Axis axis, comm::CallKind kind) const {
  const comm::Communicator* group = impl_->groups_.of(axis);
  return group ? group->traffic_of(kind) : comm::Traffic{0, 0, 0, 0};
}

std::span<std::byte> Executor::arena(program::Place place) const {
  return impl_->bytes_of(place);
}

const mesh::PerAxis& Executor::coordinates() const {
  return impl_->groups_.coordinates();
}

}  // namespace molen::exec
