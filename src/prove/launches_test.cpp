// Tests steps whose ops are only launched, on a mock of a device's streams and events. The mock's memory is the host's,
// and a launched op runs at once. For every op, the mock knows which events have certainly been reached before it.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "base/clock.h"
#include "base/error.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Program;

// For each stream, the number of its recorded events that have certainly been reached.
using Known = std::map<c10::StreamId, std::size_t>;

void merge(Known& into, const Known& other) {
  for (const auto& [stream, records] : other) into[stream] = std::max(into[stream], records);
}

struct RecordedEvent {
  Known known;
  double time = 0;
};

struct StandIn {
  struct OfStream {
    Known known;
    std::size_t records = 0, waits = 0, waited_at = 0;
    double first_wait = 0, last_wait = 0;  // times since `waits` was 0
  };
  std::mutex mutex;
  std::map<c10::StreamId, OfStream> streams;
  c10::StreamId last = 0, failing = -1;
  std::size_t moments = 0;  // counter that orders what happens on several threads

  // The mock's clock runs twice as fast as the host's, so that a test can tell them apart.
  static double clock() { return 2 * now().value; }
  void check(const c10::Stream& s) const {
    if (s.id() == failing) throw Error("the device has failed");
  }
};
StandIn device;
thread_local c10::StreamId current = 0;
constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

c10::Stream stream_of(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, at::Device(kType, 0), id);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  at::Device exchangeDevice(at::Device d) const override { return d; }
  at::Device getDevice() const override { return {kType, 0}; }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(at::Device) const override { return stream_of(current); }
  c10::Stream getDefaultStream(at::Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(at::Device, bool) const override {
    const std::lock_guard lock(device.mutex);
    return stream_of(++device.last);
  }
  c10::Stream exchangeStream(c10::Stream s) const override { return stream_of(std::exchange(current, s.id())); }
  void record(void** event, const c10::Stream& s, c10::DeviceIndex, c10::EventFlag flag) const override {
    if (flag != c10::EventFlag::BACKEND_DEFAULT) throw Error("an event without times");
    const std::lock_guard lock(device.mutex);
    device.check(s);
    auto& of = device.streams[s.id()];
    of.known[s.id()] = ++of.records;
    if (*event == nullptr) *event = new RecordedEvent;
    *static_cast<RecordedEvent*>(*event) = {of.known, StandIn::clock()};
  }
  void block(void* event, const c10::Stream& s) const override {
    const std::lock_guard lock(device.mutex);
    device.check(s);
    merge(device.streams[s.id()].known, static_cast<RecordedEvent*>(event)->known);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<RecordedEvent*>(event);
  }
  bool queryEvent(void*) const override { return true; }
  double elapsedTime(void* a, void* b, c10::DeviceIndex) const override {
    return 1e3 * (static_cast<RecordedEvent*>(b)->time - static_cast<RecordedEvent*>(a)->time);
  }
  void synchronizeStream(const c10::Stream& s) const override {
    const std::lock_guard lock(device.mutex);
    auto& of = device.streams[s.id()];
    of.waited_at = ++device.moments;
    of.last_wait = now().value;
    if (of.waits++ == 0) of.first_wait = of.last_wait;
    device.check(s);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// Records what was known when each op of a rank's step began, and whether the host waited while the op ran.
class Watch : public exec::Observer {
 public:
  struct OfOp {
    c10::StreamId stream = -1;
    Known known;            // what was known when the op began
    std::size_t end = 0;    // the last event of its stream when the op had ended
    std::size_t waits = 0;  // number of the host's waits while the op ran
    double waited = 0;      // seconds from the first of these waits to the last
    std::size_t begun_at = 0, ended_at = 0;
  };
  void begin(program::Stream, std::size_t op, std::int64_t) noexcept override {
    const std::lock_guard lock(device.mutex);
    auto& of = device.streams[current];
    of.waits = 0;
    ops[op] = {current, of.known, 0, 0, 0, ++device.moments, 0};
  }
  void end(program::Stream, std::size_t op, std::int64_t) noexcept override {
    const std::lock_guard lock(device.mutex);
    const auto& of = device.streams[current];
    OfOp& seen = ops[op];
    seen.end = of.records;
    seen.waits = of.waits;
    seen.waited = of.last_wait - of.first_wait;
    seen.ended_at = ++device.moments;
  }
  std::map<std::size_t, OfOp> ops;
};

bool runs_on_host(const Program& p, const program::Step& step) {
  return std::any_of(step.operands.begin(), step.operands.end(), [&](const program::Use& use) {
    return p.buffers[static_cast<std::size_t>(use.buffer)].place == program::Place::kHost;
  });
}

// Returns whether an op exchanges nothing with the host, so that it may only be launched.
bool may_be_launched(const Program& p, const program::Step& step) {
  const std::string kind = program::kind_of(step.op);
  for (const char* name : {"forward", "backward", "recompute", "zero", "sum_squares", "optimizer_step", "cast"})
    if (kind.starts_with(name)) return !runs_on_host(p, step);
  return false;
}

// Returns whether an op computes the data that it sends. Before they send, context ranks put keys and values side by
// side and add to gradients of keys. The host waits once more for that. The test checks only the number of the waits
// and not their place, because a launched op runs at once here.
bool makes_what_it_sends(const program::Step& step) {
  if (const auto* gather = std::get_if<program::AllGather>(&step.op)) return gather->payload == program::Payload::kKeys;
  const auto* shift = std::get_if<program::RingExchange>(&step.op);
  return shift && (shift->payload == program::Payload::kKeys ? shift->step == 1 : shift->step > 1);
}

void expect_ordered(const Program& p, const Watch& watch) {
  const auto ops = program::expand(p);
  ASSERT_EQ(watch.ops.size(), ops.size());
  const std::lock_guard lock(device.mutex);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    SCOPED_TRACE(fmt::format("op {} of {}", i, program::print_step(p, *ops[i].step)));
    const Watch::OfOp& op = watch.ops.at(i);
    for (const int a : ops[i].after) {
      const Watch::OfOp& before = watch.ops.at(static_cast<std::size_t>(a));
      ASSERT_GT(op.begun_at, before.ended_at);
      if (op.stream == before.stream || !may_be_launched(p, *ops[static_cast<std::size_t>(a)].step)) continue;
      const auto known = op.known.find(before.stream);
      ASSERT_TRUE(known != op.known.end() && known->second >= before.end) << "begins before op " << a << " ends";
    }
    if (may_be_launched(p, *ops[i].step))
      EXPECT_EQ(op.waits, 0u) << "the host waits";
    else  // the host waits before the op for its inputs, after the op, and for the data that the op computes to send
      EXPECT_EQ(op.waits, makes_what_it_sends(*ops[i].step) ? 3u : 2u);
    EXPECT_GT(device.streams.at(op.stream).waited_at, op.ended_at) << "the step ended before its ops";
  }
}

// Runs the stages one by one; all ranks of a stage run the same program.
void run_watched(const std::vector<Program>& stages, const Outcome& host) {
  const auto& s = stages[0].setting;
  std::mutex mutex;
  on_ranks(s.ranks(), [&](comm::Communicator& world) {
    const auto stage = static_cast<std::size_t>(program::at_rank(s, world.rank()).pipeline.stage);
    Watch watch;
    exec::Options options;
    options.streams = at::Device(kType, 0);
    options.observer = &watch;
    const Outcome outcome = train_rank(stages[stage], world, 2, options);
    const std::lock_guard lock(mutex);
    EXPECT_EQ(outcome.hash, host.hash);
    EXPECT_EQ(outcome.losses, host.losses);
    expect_ordered(stages[stage], watch);
  });
}

TEST(Launches, FollowTheProgramsOrder) {
  const auto with = [](Layout l, auto change) {
    change(l);
    return l;
  };
  for (const Layout& l :
       {Layout{1, 0, false, 2}, Layout{2, 0, true, 2}, Layout{2, 3, false, 2}.units(program::kHalfLayer),
        with({2, 2, false, 2}, [](Layout& l) { l.prefetch = 2; }),
        with({1, 0, false, 2}, [](Layout& l) { l.tensor = 2, l.rows = true, l.chunks = 3; }),
        with({1, 0, false, 2}, [](Layout& l) { l.context = 2, l.sequence = 24; }),
        with({1, 0, false, 2}, [](Layout& l) { l.context = 3, l.form = program::ContextForm::kRing, l.sequence = 24; }),
        with({2, 3, false, 2},
             [](Layout& l) {
               l.offload = {true, true, true, true};
             }),
        with({1, 0, false, 2},
             [](Layout& l) { l.stages = 2, l.pipeline = program::pipeline_of(program::ScheduleKind::kZbH1, 1); })}) {
    const auto stages = program::build_stages(llama(false), setting_of(l, DType::kF32));
    SCOPED_TRACE(program::sharding_text(stages[0].setting));
    run_watched(stages, train_threads(stages, 2));
  }
}

// The host waits for the device before it sets a clock, so that the ops before it have run.
TEST(Launches, ClocksAreSetOnceTheOpsBeforeThemHaveRun) {
  Program p = program::build(llama(false), setting_of({1, 0, false, 2}, DType::kF32));
  const Outcome host = train_threads({p}, 2);
  program::Step step;
  step.op = program::SetClock{1000};
  step.stream = program::Stream::kCompute;
  p.bodies.push_back({"clock", {step}});
  p.schedule.insert(std::next(p.schedule.begin()), {static_cast<int>(p.bodies.size()) - 1, -1});
  Watch watch;
  exec::Options options;
  options.streams = at::Device(kType, 0);
  options.observer = &watch;
  int called = 0;
  options.set_clock = [&](std::int64_t) {
    ++called;
    const std::lock_guard lock(device.mutex);
    const auto& of = device.streams.at(current);
    EXPECT_EQ(of.waits, 1u) << "the host has not waited for the ops before";
  };
  on_ranks(1, [&](comm::Communicator& world) {
    const Outcome outcome = train_rank(p, world, 2, options);
    EXPECT_EQ(outcome.hash, host.hash);
    expect_ordered(p, watch);
  });
  EXPECT_EQ(called, 2);
}

exec::StepInput counting_samples(const Program& p) {
  exec::StepInput input;
  input.optimizer.lr = 1e-3;
  input.load = [&p, read = synthetic_samples(p.setting, p.arch.vocabulary)](const exec::MicroBatch& to) {
    return read(0, p.setting.micro_batch, to);
  };
  return input;
}

// Each op is a sleep. A launched op takes that time by the device's clock and none by the host's. An op that the host
// takes part in comes between two waits.
TEST(Launches, TellTheirTimes) {
  constexpr double kSleep = 1e-3;
  const Program p = program::build(llama(false), setting_of({1, 0, false, 6}, DType::kF32));
  Watch watch;
  exec::Options options;
  options.streams = at::Device(kType, 0);
  options.observer = &watch;
  options.sleep = [&](const program::Step&) { return kSleep; };
  exec::Executor executor(p, 0, nullptr, options);
  launch::initialize_parameters(executor, 1, 1);
  const auto result = executor.run(counting_samples(p));
  double last = 0;
  for (std::size_t i = 0; i < executor.ops().size(); ++i) {
    const auto& step = *executor.ops()[i].step;
    const auto& time = result.timeline.ops[i];
    SCOPED_TRACE(program::print_step(p, step));
    if (may_be_launched(p, step)) {
      EXPECT_GE(time.start_s, last);  // all ops are on one stream
      EXPECT_GE(time.seconds(), 2 * kSleep);
      EXPECT_EQ(time.cpu_s, time.seconds()) << "the device's time is that of its work";
      last = time.end_s;
    } else {
      EXPECT_GE(time.seconds(), kSleep);
      EXPECT_GE(watch.ops.at(i).waited, kSleep);
    }
  }
  EXPECT_GT(last, 0.0);
}

// The device fails at the third and later ops of a stream.
class Failing final : public Watch {
 public:
  explicit Failing(program::Stream stream) : stream_(stream) {}
  void begin(program::Stream stream, std::size_t op, std::int64_t ns) noexcept override {
    Watch::begin(stream, op, ns);
    const std::lock_guard lock(device.mutex);
    if (stream == stream_ && ++begun_ == 3) device.failing = current;
  }

 private:
  program::Stream stream_;
  int begun_ = 0;
};

// Whichever stream fails, no other stream waits for it forever.
TEST(Launches, ADeviceThatFailsEndsTheStep) {
  const auto stages = program::build_stages(llama(false), setting_of({2, 3, false, 2}, DType::kF32));
  for (const program::Stream stream : {program::Stream::kCompute, program::Stream::kDpComm}) {
    std::string text;
    try {
      on_ranks(2, [&](comm::Communicator& world) {
        Failing fails(stream);
        exec::Options options;
        options.streams = at::Device(kType, 0);
        if (world.rank() == 0) options.observer = &fails;
        train_rank(stages[0], world, 1, options);
      });
    } catch (const std::exception& error) {
      text = error.what();
    }
    device.failing = -1;
    EXPECT_NE(text.find("the device has failed\n  in op %"), std::string::npos) << "but: " << text;
  }
}

}  // namespace
}  // namespace molen::prove
