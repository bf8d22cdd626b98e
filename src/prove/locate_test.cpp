// Tests what `molen verify` names when a layout is not the same model. The tests run broken programs, and check the
// place and the op that are named for each error.
#include <gtest/gtest.h>

#include <mutex>

#include "program/test_edit.h"
#include "prove/layouts_suite.h"
#include "prove/locate.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Program;
using program::rewritten;

Layout two_tensor_ranks() {
  Layout l{1, 0, false, 3};
  l.tensor = 2;
  return l;
}

// Returns what the ranks of `broken` report; all ranks report the same.
std::string located(const Layout& layout, const std::function<Program(const Program&)>& broken) {
  const auto a = llama(false);
  const Program sound = program::build(a, setting_of(layout, DType::kF64));
  const std::vector<Program> stages{broken(sound)};
  EXPECT_FALSE(stages[0] == sound);
  Layout one{1, 0, false, layout.micro};
  const Program alone = program::build(a, setting_of(one, DType::kF64));
  std::set<std::string> said;
  std::mutex mutex;
  on_ranks(sound.setting.ranks(), [&](comm::Communicator& world) {
    const auto read = synthetic_samples(sound.setting, a.vocabulary);
    const std::string text = locate_difference(alone, read, stages, read, {}, bounds_of(sound), world);
    const std::lock_guard lock(mutex);
    said.insert(text);
  });
  EXPECT_EQ(said.size(), 1u);
  return *said.begin();
}

// Removes the first step whose text begins with `text`.
auto without_first(std::string text) {
  return [=](const Program& p) {
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
        if (program::print_step(p, p.bodies[b].steps[k]).starts_with(text)) return program::without(p, b, k);
    throw Error("no step begins with {}", text);
  };
}

// Lets an op of one body read another buffer.
auto with_other_input(std::string body, std::string text, std::string buffer, std::string other) {
  return [=](const Program& p) {
    const auto buffer_named = [&](const std::string& name) {
      const auto found = std::ranges::find(p.buffers, name, &program::Buffer::name);
      return static_cast<int>(found - p.buffers.begin());
    };
    Program q = p;
    for (program::Body& b : q.bodies)
      for (program::Step& step : b.steps)
        if (b.name == body && program::print_step(p, step).starts_with(text))
          for (program::Use& use : step.operands)
            if (use.buffer == buffer_named(buffer)) use.buffer = buffer_named(other);
    return q;
  };
}

void expect_named(const std::string& text, const std::string& value, const std::string& op) {
  EXPECT_EQ(text.rfind(value, 0), 0u) << text;
  EXPECT_NE(text.find(op), std::string::npos) << text;
}

// The order of experts' rows depends on the micro-batch, so these rows cannot be compared. When the router reads a
// wrong value, the first difference is therefore in the router's results.
TEST(Locate, LeavesOutRowsInTheOrderOfExperts) {
  const auto a = mixtral();
  const Program alone = program::build(a, setting_of(1, 0, false, DType::kF64, 3)),
                cut = program::build(a, setting_of(1, 0, false, DType::kF64, 4));
  const auto read = synthetic_samples(alone.setting, a.vocabulary),
             read_cut = synthetic_samples(cut.setting, a.vocabulary);
  on_ranks(1, [&](comm::Communicator& world) {
    const auto says = [&](const Program& p) {
      return locate_difference(alone, read, {p}, read_cut, {}, bounds_of(p), world);
    };
    const std::string same = says(cut);
    EXPECT_EQ(same.find("expert"), std::string::npos) << same;
    const std::string twice =
        says(rewritten({"forward part=combine layer=1"}, "residual:mid.1", "residual:mid.0")(cut));
    expect_named(twice, "x of layer 2", "forward combine, layer 1");
  });
}

TEST(Locate, NamesWhatWentWrongFirst) {
  expect_named(located(two_tensor_ranks(), without_first("all_reduce axis=tp payload=mid layer=0")),
               "mid of layer 0 at sample 0, token 0", "which no op writes");
  // The terms of two ranks are summed over the wrong axis, which has one rank.
  expect_named(located(two_tensor_ranks(), rewritten({"all_reduce axis=tp payload=x layer=2"}, "axis=tp", "axis=dp")),
               "x of layer 2 at sample 0", "(all_reduce, micro-batch 0) on rank 0");
  expect_named(located({2, 3, false, 3}, rewritten({"forward part=norm_up layer=1"}, "reads=x:mid.1", "reads=x:mid.0")),
               "up of layer 1 at sample 0", "(forward norm_up, layer 1, micro-batch 0) on rank 0");
  expect_named(located({2, 0, false, 3}, rewritten({"backward part=norm_up layer=1"}, "stats2.1", "stats2.0")),
               "d_mid of layer 1", "(backward norm_up, layer 1, micro-batch 0) on rank 0");
  // Of 12 samples in micro-batches of 3, rank 0 has those from 0 and those from 6.
  expect_named(located({2, 0, false, 3}, with_other_input("last", "forward part=norm_up layer=1", "mid.1", "mid.0")),
               "up of layer 1 at sample 6, token 0", "(forward norm_up, layer 1, micro-batch 1) on rank 0");
  expect_named(located({2, 1, false, 3}, without_first("reduce_scatter axis=dp consumes=from:grad.layer.1")),
               "the gradient of model.layers.1.", "(backward norm_qkv)");
  expect_named(located({2, 1, false, 3}, without_first("all_gather axis=dp reads=from:param.layer.1")),
               "model.layers.1.", "(optimizer_step)");
  expect_named(located({2, 0, false, 3}, without_first("reduce_scalars axis=dp")), "the loss,",
               "which no op sums over the ranks");
}

// The bounds are computed by hand for a Llama of 2 layers of width 30 with 6 heads of size 10 on 3 keys, FFN size 44,
// 71 words, and 12 sequences of 23.
TEST(Bounds, FollowFromTheChainOfSums) {
  const Program p = program::build(llama(false), setting_of({2, 0, false, 2}, DType::kF32));
  const double layer = 30 + 30 + 10 + 23 + 23 + 60 + 30 + 30 + 44, head = 30 + 30 + 71, batch = 12 * 23;
  const double back = 30 + 88 + 30 + 30 + 10 + 23 + 2 * 23 + 120 + 30;
  const Bounds b = bounds_of(p);
  EXPECT_DOUBLE_EQ(b.loss, 2 * std::sqrt(2 * layer + head + batch) * 0x1p-24);
  EXPECT_DOUBLE_EQ(b.gradients, 2 * std::sqrt(2 * (layer + back) + head + 71 + 30 + batch) * 0x1p-24);
  EXPECT_EQ(b.norm, b.gradients);
  // A LayerNorm has two sums.
  const Program g = program::build(gpt(), setting_of({2, 0, false, 2}, DType::kF32));
  const double layer_g = 60 + 30 + 10 + 23 + 23 + 30 + 60 + 30 + 50;
  EXPECT_DOUBLE_EQ(bounds_of(g).loss, 2 * std::sqrt(2 * layer_g + 60 + 30 + 71 + batch) * 0x1p-24);
}

// No difference is named in a sound program, however the layout cuts the values.
TEST(Locate, FollowsEveryLayout) {
  const auto with = [](Layout l, auto change) {
    change(l);
    return l;
  };
  const Layout tensor = two_tensor_ranks();
  for (const Layout& l :
       {tensor, with(tensor, [](Layout& l) { l.rows = true; }),
        with(tensor, [](Layout& l) { l.rows = true, l.chunks = 3; }), Layout{2, 3, true, 3}, Layout{3, 2, false, 1},
        on_host(kEverything, {2, 3, false, 3}),
        with({1, 0, false, 3}, [](Layout& l) { l.context = 2, l.sequence = 24; }),
        with({2, 3, false, 3}, [](Layout& l) { l.context = 2, l.sequence = 24, l.form = program::ContextForm::kRing; }),
        with({1, 0, false, 3},
             [](Layout& l) { l.stages = 2, l.pipeline = program::pipeline_of(program::ScheduleKind::kZbH1, 1); })}) {
    const auto a = llama(false);
    const auto setting = setting_of(l, DType::kF64);
    const auto stages = program::build_stages(a, setting);
    Layout one{1, 0, false, l.micro};
    one.sequence = l.sequence;
    const Program alone = program::build(a, setting_of(one, DType::kF64));
    on_ranks(setting.ranks(), [&](comm::Communicator& world) {
      const auto read = synthetic_samples(setting, a.vocabulary);
      EXPECT_EQ(locate_difference(alone, read, stages, read, {}, bounds_of(stages[0]), world),
                "nothing in its first step")
          << program::sharding_text(setting);
    });
  }
}

}  // namespace
}  // namespace molen::prove
