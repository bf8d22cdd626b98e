// Steps whose ops are only launched: on a stand-in for a device's streams and events (its memory is the host's, and
// what is launched runs at once), which knows of every op what has ended before it for sure.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "base/clock.h"
#include "base/error.h"
#include "train/layouts_suite.h"

namespace molen::train {
namespace {

using namespace suite;
using program::Program;

// By stream: of how many of its ops it is known that they have ended.
using Known = std::map<c10::StreamId, std::size_t>;

void merge(Known& into, const Known& other) {
  for (const auto& [stream, ops] : other) into[stream] = std::max(into[stream], ops);
}

struct Recorded {
  Known known;
  double time = 0;
};

struct StandIn {
  struct OfStream {
    Known known;
    std::size_t begun = 0, waits = 0, waited_for = 0;
  };
  std::mutex mutex;
  std::map<c10::StreamId, OfStream> streams;
  c10::StreamId last = 0;
  bool fails = false;
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
    if (*event == nullptr) *event = new Recorded;
    *static_cast<Recorded*>(*event) = {device.streams[s.id()].known, now().value};
  }
  void block(void* event, const c10::Stream& s) const override {
    const std::lock_guard lock(device.mutex);
    merge(device.streams[s.id()].known, static_cast<Recorded*>(event)->known);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Recorded*>(event); }
  bool queryEvent(void*) const override { return true; }
  double elapsedTime(void* a, void* b, c10::DeviceIndex) const override {
    return 1e3 * (static_cast<Recorded*>(b)->time - static_cast<Recorded*>(a)->time);
  }
  void synchronizeStream(const c10::Stream& s) const override {
    const std::lock_guard lock(device.mutex);
    auto& of = device.streams[s.id()];
    ++of.waits;
    of.waited_for = of.begun;
    if (device.fails && of.waits > 3) throw Error("the device has failed");
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// What was known when each op of a rank's step began, and how often the host waited while it ran.
class Watch final : public exec::Observer {
 public:
  struct OfOp {
    c10::StreamId stream = -1;
    std::size_t position = 0, waits = 0;
    bool waited_for = false;
    Known known;
  };
  void begin(program::Stream, std::size_t op, std::int64_t) noexcept override {
    const std::lock_guard lock(device.mutex);
    auto& of = device.streams[current];
    OfOp& seen = ops[op];
    seen = {current, ++of.begun, of.waits, false, of.known};
    of.known[current] = of.begun;
  }
  void end(program::Stream, std::size_t op, std::int64_t) noexcept override {
    const std::lock_guard lock(device.mutex);
    const auto& of = device.streams[current];
    ops[op].waits = of.waits - ops[op].waits;
    ops[op].waited_for = of.waited_for == of.begun;
  }
  std::map<std::size_t, OfOp> ops;
};

bool on_host(const Program& p, const program::Step& step) {
  for (const auto* uses : {&step.reads, &step.writes})
    for (const auto& use : *uses)
      if (p.buffers[static_cast<std::size_t>(use.buffer)].place == program::Place::kHost) return true;
  return false;
}

// Ops between which and the host nothing passes.
bool may_be_launched(const Program& p, const program::Step& step) {
  const std::string kind = program::kind_of(step.op);
  for (const char* name : {"forward", "backward", "recompute", "zero", "sum_squares", "optimizer_step", "cast"})
    if (kind.starts_with(name)) return !on_host(p, step);
  return false;
}

void expect_ordered(const Program& p, const Watch& watch) {
  const auto ops = program::expand(p);
  ASSERT_EQ(watch.ops.size(), ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    SCOPED_TRACE(fmt::format("op {} of {}", i, program::print_step(p, *ops[i].step)));
    const Watch::OfOp& op = watch.ops.at(i);
    for (const int a : ops[i].after) {
      const Watch::OfOp& before = watch.ops.at(static_cast<std::size_t>(a));
      const auto known = op.known.find(before.stream);
      ASSERT_TRUE(known != op.known.end() && known->second >= before.position) << "begins before op " << a << " ends";
    }
    if (may_be_launched(p, *ops[i].step)) {
      EXPECT_EQ(op.waits, 0u) << "the host waits";
    } else {
      EXPECT_GE(op.waits, 2u) << "before it for what it reads, and after it";
      EXPECT_TRUE(op.waited_for);
    }
    const std::lock_guard lock(device.mutex);
    const auto& stream = device.streams.at(op.stream);
    EXPECT_EQ(stream.waited_for, stream.begun) << "the step ended before its ops";
  }
}

// Stage by stage; all ranks of a stage run the same program.
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
        with({1, 0, false, 2}, [](Layout& l) { l.context = 2, l.form = program::ContextForm::kRing, l.sequence = 24; }),
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

// Times are the device's, within the step.
TEST(Launches, TellTheirTimes) {
  const Program p = program::build(llama(false), setting_of({1, 0, false, 2}, DType::kF32));
  exec::Options options;
  options.streams = at::Device(kType, 0);
  exec::Executor executor(p, 0, nullptr, options);
  initialize_parameters(executor, 1, 1);
  exec::StepInput input;
  input.optimizer.lr = 1e-3;
  input.load = [&, read = synthetic_samples(p.setting, p.arch.vocabulary),
                first = std::int64_t{0}](const exec::MicroBatch& to) mutable {
    const std::int64_t valid = read(first, p.setting.micro_batch, to);
    first += p.setting.micro_batch;
    return valid;
  };
  const auto result = executor.run(input);
  double last = 0;
  for (const auto& op : result.timeline.ops) {
    EXPECT_GE(op.start_s, last);  // all on one stream
    EXPECT_GT(op.end_s, op.start_s);
    last = op.end_s;
  }
  EXPECT_LE(last, result.timeline.total_s);
}

// On whichever thread the failure shows, no other waits for it for ever.
TEST(Launches, ADeviceThatFailsEndsTheStep) {
  const auto stages = program::build_stages(llama(false), setting_of({2, 3, false, 2}, DType::kF32));
  device.fails = true;
  std::string text;
  try {
    on_ranks(2, [&](comm::Communicator& world) {
      exec::Options options;
      options.streams = at::Device(kType, 0);
      train_rank(stages[0], world, 1, options);
    });
  } catch (const std::exception& error) {
    text = error.what();
  }
  device.fails = false;
  EXPECT_NE(text.find("the device has failed"), std::string::npos) << "but: " << text;
}

}  // namespace
}  // namespace molen::train
