// Tests that the verifier refuses every single edit that changes what a program computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <set>

#include "base/test_sanitized.h"
#include "program/build/build.h"
#include "program/build/recompute.h"
#include "program/parts/part.h"
#include "program/test_edit.h"
#include "program/text/text.h"
#include "program/verify/verify.h"

namespace molen::program {
namespace {

// A layout whose programs are edited: an op is deleted, retargeted or moved. The verifier refuses every single
// deletion.
struct EditedLayout {
  int shards, zero;
  bool recompute, tied;
  int replicas = 1;
  bool own_over_dp = false;
  const char* recomputed = "";  // if set, replaces `recompute`
  int context = 1;
  ContextForm form = ContextForm::kGather;
  Offload offload{};
  DType reduce = DType::kF32;
  std::int64_t unit_layers = 1;
  bool experts = false;
  EditedLayout sparse() const {
    EditedLayout l = *this;
    l.experts = true;
    return l;
  }
  EditedLayout units(std::int64_t layers) const {
    EditedLayout l = *this;
    l.unit_layers = layers;
    return l;
  }
  EditedLayout in(DType type) const {
    EditedLayout l = *this;
    l.reduce = type;
    return l;
  }
};

class Edited : public ::testing::TestWithParam<EditedLayout> {
 protected:
  Program program() const {
    const EditedLayout l = GetParam();
    Setting s = setting_of(l.shards, l.zero, l.recompute, 4 * l.shards * l.replicas);
    s.mesh[mesh::Axis::kDpReplicate] = l.replicas;
    s.own_over_dp = l.own_over_dp;
    s.mesh[mesh::Axis::kCp] = l.context;
    s.context_form = l.form;
    s.offload = l.offload;
    if (l.context > 1) s.sequence = 12 * l.context;
    if (*l.recomputed) s.recompute = recompute_from_text(l.recomputed);
    s.reduce = l.reduce;
    s.unit_layers = l.unit_layers;
    return build(l.experts ? tiny_sparse() : tiny(l.tied), s);
  }
};

TEST_P(Edited, EveryDeletionIsRefused) {
  const Program p = program();
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); k += kStride)
      EXPECT_FALSE(verify(without(p, b, k)).empty())
          << p.bodies[b].name << " %" << k << " " << kind_of(p.bodies[b].steps[k].op);
}

bool adds_to_sums(const Op& op) {
  const auto* c = std::get_if<Compute>(&op);
  return c && c->pass == Pass::kForward && !declaration_of(c->part).sums.empty();
}

TEST_P(Edited, EveryDuplicateOfAnUpdateOrCollectiveIsRefused) {
  const Program p = program();
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); k += kStride) {
      const Step& step = p.bodies[b].steps[k];
      const bool once = is_communication(step.op) || is_copy(step.op) ||
                        std::holds_alternative<OptimizerStep>(step.op) || std::holds_alternative<SumSquares>(step.op) ||
                        std::holds_alternative<ClipScale>(step.op) || adds_to_sums(step.op);
      if (!once) continue;
      Program q = p;
      q.bodies[b].steps.push_back(step);  // appended, so that all references stay valid
      EXPECT_FALSE(verify(q).empty()) << kind_of(step.op);
    }
}

// Returns whether an edit changes nothing and is therefore accepted: it moves a value that no op reads, or reads the
// same value from another buffer that holds it.
bool keeps_the_meaning(const Program& p, std::size_t body, std::size_t op, bool write, int from, int to) {
  const Buffer &was = p.buffers[static_cast<std::size_t>(from)], &is = p.buffers[static_cast<std::size_t>(to)];
  const bool copies = was.role == is.role && was.unit == is.unit && was.layer == is.layer && was.slot == is.slot &&
                      was.portion == is.portion && was.place == is.place;
  // A slot whose values were dropped may still hold the values of forward's last layer.
  const bool slots = was.role == is.role && !was.slot.empty() && !is.slot.empty();
  if (!write) return copies || slots;
  // Some values are overwritten before any op has read them: a ring's own keys, and gradients that have returned to
  // their rank.
  const auto uses = [&](const Step& step, bool (Use::*how)() const) {
    return std::any_of(step.operands.begin(), step.operands.end(),
                       [&](const Use& use) { return use.buffer == from && (use.*how)(); });
  };
  const Buffer& buffer = p.buffers[static_cast<std::size_t>(from)];
  const bool passing = buffer.name.find("keys.") != std::string::npos;
  for (std::size_t k = passing ? op + 1 : 0; k < p.bodies[body].steps.size(); ++k) {
    if (uses(p.bodies[body].steps[k], &Use::reads)) return false;
    if (passing && uses(p.bodies[body].steps[k], &Use::writes)) return true;
  }
  return true;
}

TEST_P(Edited, EveryRetargetedOperandIsRefused) {
  const Program p = program();
  // Under a sanitizer, these are the most costly cases of all, and their number has no lower bound below.
  const std::size_t stride = (kSanitized && !exhaustive() ? 3 : 1) * long_stride();
  std::size_t turn = 0;
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      Program q = p;
      for (Use& use : q.bodies[b].steps[k].operands) {
        const int old = use.buffer;
        for (int other = 0; other < static_cast<int>(p.buffers.size()); ++other) {
          if (other == old || turn++ % stride != 0 || keeps_the_meaning(p, b, k, !use.reads(), old, other)) continue;
          use.buffer = other;
          EXPECT_FALSE(verify(q).empty()) << p.bodies[b].name << " %" << k << " " << kind_of(p.bodies[b].steps[k].op)
                                          << " " << p.buffers[static_cast<std::size_t>(old)].name << " -> "
                                          << p.buffers[static_cast<std::size_t>(other)].name;
        }
        use.buffer = old;
      }
    }
}

TEST_P(Edited, SwappingNeighboursIsRefusedOrKeepsTheMeaning) {
  const Program p = program();
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k + 1 < p.bodies[b].steps.size(); ++k) {
      Program q = p;
      std::swap(q.bodies[b].steps[k], q.bodies[b].steps[k + 1]);
      if (!verify(q).empty()) continue;
      // The verifier may accept the swap only when neither op reads or writes what the other writes, or when both add
      // to the step's sums.
      const auto touches = [&](const Step& one, const Step& other) {
        for (const Use& x : one.operands)
          for (const Use& y : other.operands)
            if (x.buffer == y.buffer && (x.changes() || y.changes()) &&
                p.buffers[static_cast<std::size_t>(x.buffer)].role != Value::kScalars)
              return true;
        return false;
      };
      const Step &s = p.bodies[b].steps[k], &t = p.bodies[b].steps[k + 1];
      const bool chunks = std::holds_alternative<Compute>(s.op) && std::get<Compute>(s.op).part == arch::Part::kHead &&
                          std::holds_alternative<Compute>(t.op) && std::get<Compute>(t.op).part == arch::Part::kHead;
      if (!chunks) {
        EXPECT_FALSE(touches(s, t)) << kind_of(s.op) << " <-> " << kind_of(t.op);
      }
    }
}

TEST_P(Edited, EveryDroppedEdgeIsRefused) {
  const Program p = program();
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
      if (!p.bodies[b].steps[k].after.empty()) {
        Program q = p;
        q.bodies[b].steps[k].after.clear();
        // An edge that only limits prefetching prevents no hazard: without it the plan needs as much memory or more.
        const Op& op = p.bodies[b].steps[k].op;
        const bool brings = (std::holds_alternative<AllGather>(op) && p.setting.sharded_parameters()) ||
                            (std::holds_alternative<CopyToDevice>(op) && p.setting.offload.parameters);
        // The same holds for activations that come back, and for forward ops that wait for activations to leave.
        const auto* c = std::get_if<Compute>(&op);
        const bool bound = p.setting.offload.activations && (std::holds_alternative<CopyToDevice>(op) ||
                                                             (c && c->layer >= 0 && c->pass == Pass::kForward));
        // The same holds for communication that waits for communication over another axis (pass::order_streams).
        const std::vector<OpRef>& after = p.bodies[b].steps[k].after;
        const bool waits =
            communicates(p.bodies[b].steps[k].stream) && std::any_of(after.begin(), after.end(), [&](const OpRef& ref) {
              return ref.body < 0 && communicates(p.bodies[b].steps[static_cast<std::size_t>(ref.op)].stream);
            });
        if ((brings || bound || waits) && verify(q).empty())
          EXPECT_GE(plan_memory(q).peak, plan_memory(p).peak);
        else
          EXPECT_FALSE(verify(q).empty()) << p.bodies[b].name << " %" << k;
      }
}

std::vector<EditedLayout> layouts() {
  std::vector<EditedLayout> all{
      EditedLayout{1, 0, false, false},
      EditedLayout{1, 0, true, true},
      EditedLayout{2, 0, false, false},
      EditedLayout{3, 1, false, true},
      EditedLayout{2, 1, true, false},
      EditedLayout{2, 2, false, false},
      EditedLayout{3, 2, false, true},
      EditedLayout{2, 3, false, true},
      EditedLayout{2, 3, false, false}.units(kHalfLayer),
      EditedLayout{2, 1, true, false}.units(2),
      EditedLayout{2, 3, true, false},
      EditedLayout{2, 2, false, false, 2},
      EditedLayout{2, 3, false, false, 2, true},
      EditedLayout{2, 2, false, true, 2, true},
      EditedLayout{1, 0, true, false, 1, false, "attention,activation"},
      EditedLayout{2, 3, true, true, 1, false, "norm_qkv,norm_up/2"},
      EditedLayout{1, 1, false, false, 1, false, "", 2},
      EditedLayout{2, 3, false, true, 1, false, "attention", 3, ContextForm::kRing},
      EditedLayout{2, 1, false, false, 1, false, "", 1, ContextForm::kGather, {true, false, false}},
      EditedLayout{1, 0, false, true, 1, false, "", 1, ContextForm::kGather, {true, true, true}},
      EditedLayout{2, 2, true, false, 2, true, "", 1, ContextForm::kGather, {true, true, false}},
      EditedLayout{2, 3, false, false, 1, false, "", 1, ContextForm::kGather, {true, true, true}},
      EditedLayout{1, 0, false, true, 1, false, "", 1, ContextForm::kGather, {false, false, false, true}},
      EditedLayout{
          2, 3, false, false, 1, false, "attention,activation", 1, ContextForm::kGather, {true, true, true, true}},
      EditedLayout{1, 0, false, false}.sparse(),
      EditedLayout{1, 1, false, false, 1, false, "dispatch,expert_activation", 2}.sparse(),
      EditedLayout{2, 0, false, true}.in(DType::kBF16),
      EditedLayout{3, 1, false, false}.in(DType::kF16),
      EditedLayout{2, 2, false, true}.in(DType::kBF16),
      EditedLayout{2, 3, false, false, 2}.in(DType::kBF16),
      EditedLayout{2, 2, false, false, 2, true}.in(DType::kBF16),
      EditedLayout{2, 1, false, false, 1, false, "", 1, ContextForm::kGather, {true, true, false}}.in(DType::kBF16),
      EditedLayout{2, 3, false, true, 2, false, "", 1, ContextForm::kGather, {true, true, true}}.in(DType::kF16)};
  if (!kSanitized) return all;
  std::vector<EditedLayout> some;  // the release build checks each layout; every fourth is enough here
  for (std::size_t i = 0; i < all.size(); i += 4) some.push_back(all[i]);
  return some;
}
INSTANTIATE_TEST_SUITE_P(Layouts, Edited, ::testing::ValuesIn(layouts()));

}  // namespace
}  // namespace molen::program
