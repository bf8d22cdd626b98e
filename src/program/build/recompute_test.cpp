#include "program/build/recompute.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/test_golden.h"
#include "program/build/build.h"
#include "program/build/build_detail.h"
#include "program/parts/part.h"
#include "program/test_edit.h"
#include "program/text/text.h"
#include "program/verify/verify.h"

namespace molen::program {
namespace {

using arch::Part;

arch::Architecture model() {
  arch::Architecture a = tiny();
  a.layers = 4;
  return a;
}

Setting recompute_setting(const std::string& recompute) {
  Setting s;
  s.recompute = recompute_from_text(recompute);
  s.global_batch = s.micro_batch = 2;
  s.sequence = 30;
  return s;
}

std::vector<Recompute> all_choices() {
  std::vector<Recompute> all{{}};
  for (std::uint32_t bits = 1; bits < Recompute::bit(Part::kDown); ++bits) {
    Recompute r;
    for (const Part part : arch::parts_of_layer({}, 0))
      if (declaration_of(part).computed_again() && bits & Recompute::bit(part)) r.add(part);
    if (r.parts != bits) continue;  // one of these parts is outside the layers
    for (r.every = 1; r.every <= 4; ++r.every) all.push_back(r);
  }
  return all;
}

TEST(Recompute, TextRoundTrip) {
  const auto all = all_choices();
  EXPECT_EQ(all.size(), 1u + 31u * 4u);
  std::set<std::string> texts;
  for (const Recompute& r : all) {
    EXPECT_EQ(recompute_from_text(text_of(r)), r);
    EXPECT_TRUE(texts.insert(text_of(r)).second) << text_of(r);
  }
  EXPECT_EQ(text_of(Recompute::full()), "full");
  EXPECT_EQ(text_of(Recompute::full(3)), "full/3");
  EXPECT_EQ(text_of(recompute_from_text("activation,attention/2")), "attention,activation/2");
}

TEST(Recompute, BadTextIsRefused) {
  const GoldenMessages golden;
  for (const char* bad : {"",
                          "1",
                          "0",
                          "all",
                          "none/2",
                          "full,attention",
                          "attention,",
                          ",attention",
                          "attention/",
                          "attention/0",
                          "attention/-1",
                          "attention/2/2",
                          "attention/1.5",
                          "attention/99999999999999999999",
                          "down",
                          "attention,down",
                          "embed",
                          "head",
                          "/2",
                          "full/x",
                          "attention activation"})
    EXPECT_NOTED(recompute_from_text(bad), UsageError) << bad;
  try {
    recompute_from_text("atention");
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'attention'?"), std::string::npos) << error.what();
  }
  std::string text = print(build(model(), recompute_setting("full/2")));
  text.replace(text.find("full/2"), 6, "full/0");
  EXPECT_NOTED(parse(text, "p.txt"), UsageError);
}

TEST(Recompute, BuildRefusesWhatIsNoChoice) {
  const GoldenMessages golden;
  Setting s = recompute_setting("full");
  s.recompute.add(Part::kDown);
  EXPECT_NOTED(build(model(), s), UsageError);
  s = recompute_setting("full");
  s.recompute.every = 0;
  EXPECT_NOTED(build(model(), s), UsageError);
}

// Each dropped part runs again once, in the layers that the choice names, with only other recomputations between it and
// its first reader in backward. The program of every choice is sound.
TEST(Recompute, RunsOnceAndAsLateAsBackwardAllows) {
  for (const Recompute& choice : all_choices()) {
    SCOPED_TRACE(text_of(choice));
    Setting s = recompute_setting("none");
    s.recompute = choice;
    const Program p = build(model(), s);
    EXPECT_TRUE(verify(p).empty()) << verify(p)[0].text;
    EXPECT_EQ(parse(print(p), "text"), p);
    const auto& steps = p.bodies.front().steps;
    std::set<std::pair<Part, std::int64_t>> again;
    for (std::size_t k = 0; k < steps.size(); ++k) {
      const auto* c = std::get_if<Compute>(&steps[k].op);
      if (!c || c->pass != Pass::kRecompute) continue;
      EXPECT_TRUE(again.emplace(c->part, c->layer).second) << "runs twice";
      std::size_t reader = k + 1;
      const auto reads = [&](const Step& step) {
        for (const Use& w : steps[k].operands)
          for (const Use& r : step.operands)
            if (w.writes() && r.reads() && r.buffer == w.buffer) return true;
        return false;
      };
      while (!reads(steps[reader])) {
        EXPECT_EQ(std::get<Compute>(steps[reader].op).pass, Pass::kRecompute) << "earlier than needed";
        ++reader;
      }
      EXPECT_EQ(std::get<Compute>(steps[reader].op).layer, c->layer);
    }
    std::size_t expected = 0;
    for (const Part part : arch::parts_of_layer({}, 0))
      for (std::int64_t l = 0; l < p.arch.layers; ++l)
        if (choice.in(part == Part::kRotate ? Part::kNormQkv : part, l)) {
          ++expected;
          EXPECT_TRUE(again.contains({part, l}));
        }
    EXPECT_EQ(again.size(), expected);
  }
}

// A program that reads a value before it is computed again is refused, for every choice and every part that runs again.
TEST(Recompute, ReadingTooEarlyIsRefused) {
  int moved = 0;
  for (const Recompute& choice : all_choices()) {
    Setting s = recompute_setting("none");
    s.recompute = choice;
    const Program p = build(model(), s);
    const auto& steps = p.bodies.front().steps;
    for (std::size_t k = 0; k < steps.size(); ++k) {
      const auto* c = std::get_if<Compute>(&steps[k].op);
      if (!c || c->pass != Pass::kRecompute) continue;
      std::size_t reader = k + 1;
      const auto reads = [&](const Step& step) {
        return std::any_of(step.operands.begin(), step.operands.end(), [&](const Use& r) {
          return r.reads() && std::any_of(steps[k].operands.begin(), steps[k].operands.end(),
                                          [&](const Use& w) { return w.writes() && r.buffer == w.buffer; });
        });
      };
      while (!reads(steps[reader])) ++reader;
      Program q = p;  // one rank, so there are no edges to keep
      auto& edited = q.bodies.front().steps;
      std::rotate(edited.begin() + static_cast<std::ptrdiff_t>(k), edited.begin() + static_cast<std::ptrdiff_t>(k) + 1,
                  edited.begin() + static_cast<std::ptrdiff_t>(reader) + 1);
      const auto findings = verify(q);
      ASSERT_FALSE(findings.empty()) << text_of(choice) << " " << kind_of(steps[k].op) << " layer " << c->layer;
      EXPECT_NE(findings[0].text.find("where it needs"), std::string::npos) << findings[0].text;
      ++moved;
    }
  }
  EXPECT_EQ(moved, 16 * 6 * (4 + 2 + 2 + 1));  // each part, and RoPE with norm_qkv, in 16 choices; 4, 2, 2 and 1 layers
}

// FLOPs of recomputation count for the hardware, but not for the model.
TEST(Recompute, CountsAsWorkOfTheHardwareOnly) {
  const auto sums = [](const Program& p) {
    double model_flops = 0, hardware = 0;
    for (const Expanded& e : expand(p)) {
      model_flops += e.step->model_flops.value;
      hardware += e.step->hardware_flops.value;
    }
    return std::pair(model_flops, hardware);
  };
  for (const bool tensor : {false, true}) {
    Setting s = recompute_setting("none");
    s.global_batch = 6;  // three micro-batches
    if (tensor) s.mesh[mesh::Axis::kTp] = 2;
    const auto [plain, executed] = sums(build(model(), s));
    EXPECT_EQ(plain, executed);
    for (const Recompute& choice : all_choices()) {
      s.recompute = choice;
      const Program p = build(model(), s);
      arch::PartShape shape{s.micro_batch, s.sequence, 0, s.compute, s.threads, s.kernels};
      shape.tensor_ranks = s.tensor_ranks();
      double extra = 0;
      for (const Part part : arch::parts_of_layer({}, 0))
        for (std::int64_t l = 0; l < p.arch.layers; ++l)
          if (choice.in(part, l)) extra += 3 * part_cost(p.local, part, arch::Pass::kForward, shape).flops.value;
      const auto [model_flops, hardware] = sums(p);
      EXPECT_EQ(model_flops, plain) << text_of(choice);
      EXPECT_DOUBLE_EQ(hardware, plain + extra) << text_of(choice);
      EXPECT_TRUE(hardware > plain || !choice.has(Part::kNormUp));
    }
  }
}

// Recomputation has collectives of its own, which exchange the sums and the gathered rows of recomputed parts again.
TEST(Recompute, TensorRanksExchangeAgainWhatTheyNeed) {
  for (const bool rows : {false, true})
    for (const Recompute& choice : all_choices()) {
      SCOPED_TRACE(fmt::format("{} rows {}", text_of(choice), rows));
      Setting s = recompute_setting("none");
      s.recompute = choice;
      s.mesh[mesh::Axis::kTp] = 2;
      s.sequence_parallel = rows;
      const Program p = build(model(), s);
      EXPECT_TRUE(verify(p).empty()) << verify(p)[0].text;
      std::int64_t exchanged = 0, expected = 0;
      for (const Step& step : p.bodies.front().steps)
        exchanged += step.phase == Phase::kRecompute && is_communication(step.op);
      for (std::int64_t l = 0; l < p.arch.layers; ++l) {
        expected += choice.in(Part::kOutProjection, l);
        if (rows) expected += choice.in(Part::kNormQkv, l) + choice.in(Part::kNormUp, l);
      }
      EXPECT_EQ(exchanged, expected);
    }
}

}  // namespace
}  // namespace molen::program
