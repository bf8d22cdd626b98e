// Tests which ops run at the same time on the streams of communication, and that a program text may put communication
// on other streams.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Axis;
using program::Program;
using program::Stream;

Program on_stream(Program p, Stream stream) {
  for (program::Body& body : p.bodies)
    for (program::Step& step : body.steps)
      if (program::communicates(step.stream)) step.stream = stream;
  return p;
}

// Forwards to a communicator whose calls must not overlap, like NCCL's, and reports when they do.
class OneAtATime final : public comm::Communicator {
 public:
  struct Calls {
    std::atomic<int> inside = 0, overlaps = 0, all = 0;
  };
  OneAtATime(comm::Communicator& inner, Calls& calls) : inner_(&inner), calls_(calls) {}
  OneAtATime(std::unique_ptr<comm::Communicator> inner, Calls& calls)
      : inner_(inner.get()), own_(std::move(inner)), calls_(calls) {}
  bool one_at_a_time() const override { return true; }
  void add_callers(int change) noexcept override { inner_->add_callers(change); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }
  void all_reduce(void* data, std::int64_t count, DType t, comm::Reduce op) override {
    alone([&] { inner_->all_reduce(data, count, t, op); });
  }
  void reduce_scatter(const void* send, void* receive, std::span<const std::int64_t> counts, DType t,
                      comm::Reduce op) override {
    alone([&] { inner_->reduce_scatter(send, receive, counts, t, op); });
  }
  void all_gather(const void* send, void* receive, std::span<const std::int64_t> counts, DType t) override {
    alone([&] { inner_->all_gather(send, receive, counts, t); });
  }
  void all_to_all(const void* send, const comm::Blocks& sends, void* receive, const comm::Blocks& receives,
                  DType t) override {
    alone([&] { inner_->all_to_all(send, sends, receive, receives, t); });
  }
  void broadcast(void* data, std::int64_t count, DType t, int root) override {
    alone([&] { inner_->broadcast(data, count, t, root); });
  }
  void send(const void* data, std::int64_t count, DType t, int to) override {
    alone([&] { inner_->send(data, count, t, to); });
  }
  void recv(void* data, std::int64_t count, DType t, int from) override {
    alone([&] { inner_->recv(data, count, t, from); });
  }
  void barrier() override {
    alone([&] { inner_->barrier(); });
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<OneAtATime>(inner_->split(color, key), calls_);
  }
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }
  comm::Traffic traffic_of(comm::CallKind kind) const override { return inner_->traffic_of(kind); }

 private:
  template <class Call>
  void alone(Call call) {
    ++calls_.all;
    if (calls_.inside.fetch_add(1) > 0) ++calls_.overlaps;
    call();
    --calls_.inside;
  }

  comm::Communicator* inner_;
  std::unique_ptr<comm::Communicator> own_;
  Calls& calls_;
};

Layout four_ranks() {
  Layout l{2, 1, false, 2};
  l.tensor = 2, l.rows = true;
  return l;
}

Layout eight_ranks() {
  Layout l{2, 3, false, 2};
  l.tensor = 2, l.context = 2, l.form = kRing, l.sequence = 24;
  return l;
}

Layout expert_ranks() {
  Layout l{2, 2, false, 1};
  l.experts = 2;
  return l;
}
arch::Architecture model_of(const Layout& layout) {
  auto a = layout.experts > 1 ? mixtral() : llama(false);
  if (a.sparse()) a.experts->count = 6;
  return a;
}

void expect_bits_of(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.hash, b.hash);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
}

// Communication that waits its turn, or that a text has put on one stream, gives the same bits.
TEST(CommStreams, GiveTheSameBits) {
  for (const Layout& layout : {four_ranks(), eight_ranks(), expert_ranks()}) {
    const Program p = program::build(model_of(layout), setting_of(layout, DType::kF32));
    const Outcome free = train_threads(p, 3);
    for (const Stream stream : {Stream::kDpComm, Stream::kPpComm}) {
      const Program moved = on_stream(p, stream);
      program::require_sound(moved, "moved");
      expect_bits_of(free, train_threads(moved, 3));
    }
    Outcome in_turn;
    std::vector<OneAtATime::Calls> calls(static_cast<std::size_t>(p.setting.ranks()));
    on_ranks(p.setting.ranks(), [&](comm::Communicator& world) {
      OneAtATime alone(world, calls[static_cast<std::size_t>(world.rank())]);
      Outcome out = train_rank(p, alone, 3);
      if (world.rank() == 0) in_turn = std::move(out);
    });
    expect_bits_of(free, in_turn);
    for (const auto& rank : calls) {
      EXPECT_EQ(rank.overlaps, 0);
      EXPECT_GT(rank.all, 100);
    }
  }
}

// A tensor-parallel exchange that compute waits for takes 1 ms, a reduction over data-parallel ranks 30 ms. On one
// stream the exchanges of a layer's backward wait for the reduction of the layer above. On two streams they do not.
TEST(Overlap, ATensorExchangeDoesNotStandBehindAReduction) {
  auto a = llama(false);
  a.layers = 6;
  Layout l = four_ranks();
  l.micro = 6;
  const Program p = program::build(a, setting_of(l, DType::kF64));
  const auto seconds = [](const program::Step& step) -> double {
    const auto axis = program::axis_of(step.op);
    if (axis) return *axis == Axis::kTp ? 1e-3 : step.phase == program::Phase::kGradientReduce ? 30e-3 : 0.0;
    return step.phase == program::Phase::kBackward ? 3e-3 : 0.0;
  };
  const auto step_seconds = [&](const Program& program) {
    double total = 0.0;
    on_ranks(program.setting.ranks(), [&](comm::Communicator& world) {
      exec::Options options;
      options.sleep = [&](const program::Step& step) { return seconds(step); };
      exec::Executor executor(program, world.rank(), &world, options);
      exec::StepInput input;
      input.load = [](const exec::MicroBatch&) { return std::int64_t{0}; };
      executor.run(input);
      const double s = executor.run(input).timeline.total_s;
      if (world.rank() == 0) total = s;
    });
    return total;
  };
  const double two = step_seconds(p), one = step_seconds(on_stream(p, Stream::kDpComm));
  const double hidden = hidden_of(p, Axis::kDp, seconds).share();
  fmt::print("a step takes {:.0f} ms with a stream for each axis, {:.0f} ms with one; {:.0f} % of dp is hidden\n",
             two * 1e3, one * 1e3, 100 * hidden);
  EXPECT_LT(two, 0.9 * one);
}

}  // namespace
}  // namespace molen::prove
