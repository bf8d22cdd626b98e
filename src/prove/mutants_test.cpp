// Broken passes: each mutant is the program that a wrong pass would make. The verifier must refuse it, or running it
// must show an error or a difference of at least ten times the bound. The test prints which check catches which mutant.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "program/test_edit.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Access;
using program::Arg;
using program::Program;
using program::rewritten;

struct Mutant {
  std::string name;
  Layout layout;
  std::function<Program(const Program&)> broken;
  bool tied = false;
};

// Finds the step of kind `kind` on a buffer, in the last body that has one.
std::pair<std::size_t, std::size_t> find(const Program& p, const std::string& kind, const std::string& buffer) {
  std::pair<std::size_t, std::size_t> found{p.bodies.size(), 0};
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      const auto& step = p.bodies[b].steps[k];
      bool here = program::kind_of(step.op) == kind && buffer.empty();
      if (program::kind_of(step.op) == kind)
        for (const auto& use : step.operands)
          here = here || p.buffers[static_cast<std::size_t>(use.buffer)].name == buffer;
      if (here) found = {b, k};
    }
  MOLEN_CHECK(found.first < p.bodies.size(), "no {} on {}", kind, buffer);
  return found;
}

auto dropped(std::string kind, std::string buffer = "") {
  return [=](const Program& p) {
    const auto [b, k] = find(p, kind, buffer);
    return program::without(p, b, k);
  };
}

auto doubled(std::string kind, std::string buffer = "") {
  return [=](const Program& p) {
    const auto [b, k] = find(p, kind, buffer);
    Program q = p;
    q.bodies[b].steps.push_back(q.bodies[b].steps[k]);
    q.bodies[b].steps.back().after.clear();
    // The copy is placed after all steps of the body, so only the order of communication changes.
    return q;
  };
}

// Moves a step to the place of another step of the same body, without its edges; all edges are computed anew.
auto moved(std::string kind, std::string buffer, std::string before_kind, std::string before_buffer) {
  return [=](const Program& p) {
    const auto [b, k] = find(p, kind, buffer);
    const auto [to_body, to] = find(p, before_kind, before_buffer);
    MOLEN_CHECK(to_body == b, "two bodies");
    Program q = p;
    auto& steps = q.bodies[b].steps;
    const auto step = steps[k];
    steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(k));
    steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(to > k ? to - 1 : to), step);
    for (auto& body : q.bodies)
      for (auto& s : body.steps) s.after.clear();
    return program::pass::order_streams(q);
  };
}

auto accessed(std::vector<std::string> where, program::Arg arg, program::Access access) {
  return [=](const Program& p) { return program::pass::costs(program::accessed(p, where, arg, access)); };
}

const Layout kCopies{2, 0}, kOwn{2, 1}, kGrads{2, 2, false, 3}, kFull{2, 3, false, 3}, kHybrid{2, 3, false, 3, 2},
    kHybridOwn{2, 3, false, 3, 2, true}, kHybridGrads{2, 2, false, 3, 2, true};

Layout of_tensor_ranks(bool rows, int shards = 1, int zero = 0) {
  Layout l{shards, zero, false, 3};
  l.tensor = 2;
  l.rows = rows;
  return l;
}
Layout of_context_ranks(program::ContextForm form) {
  Layout l{1, 0, false, 3};
  l.context = 2;
  l.form = form;
  l.sequence = 24;
  return l;
}
const Layout kContext = of_context_ranks(program::ContextForm::kGather),
             kContextRing = of_context_ranks(program::ContextForm::kRing);
const Layout kTensor = of_tensor_ranks(false), kRows = of_tensor_ranks(true), kRowsGrads = of_tensor_ranks(true, 2, 2);

// Finds the first step, in the bodies from `first` on, whose text begins with `text`.
std::pair<std::size_t, std::size_t> at_text(const Program& p, const std::string& text, std::size_t first = 0) {
  for (std::size_t b = first; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
      if (program::print_step(p, p.bodies[b].steps[k]).starts_with(text)) return {b, k};
  throw Error("no step begins with {}", text);
}

std::vector<Mutant> mutants() {
  return {
      {"a dropped all-reduce", kCopies, dropped("all_reduce", "grad.layer.1")},
      {"an all-reduce twice", kCopies, doubled("all_reduce", "grad.layer.0")},
      {"reduced before the last contribution", kCopies,
       moved("all_reduce", "grad.embed", "backward embed", "grad.embed")},
      {"a gradient overwritten by the second micro-batch", kCopies,
       accessed({"backward part=down layer=1"}, Arg::kGrad, Access::kWrite)},
      {"losses and tokens of one rank", kCopies, dropped("reduce_scalars")},
      {"tokens of one rank: a double average", kCopies, rewritten({"reduce_scalars"}, "count=2", "count=1")},
      {"sums reduced twice", kCopies, doubled("reduce_scalars")},
      {"clipped before the sums are reduced", kCopies, moved("clip_scale", "", "reduce_scalars", "")},
      {"a dropped reduce-scatter", kOwn, dropped("reduce_scatter", "grad.layer.1")},
      {"a dropped gather after the update", kOwn, dropped("all_gather", "param.layer.1")},
      {"a stale gather: before the update", kOwn,
       moved("all_gather", "param.layer.1", "optimizer_step", "param.layer.1")},
      {"the norm of one rank's part", kOwn, rewritten({"reduce_scalars"}, "count=3", "count=2")},
      {"an update of what another rank owns", kOwn,
       rewritten({"optimizer_step reads=grad:grad.layer.0[own]"}, "grad.layer.0[own]", "grad.layer.1[own]")},
      {"an update that does not wait for agreement", kOwn,
       rewritten({"optimizer_step reads=grad:grad.layer.0[own]"}, " unless=non_finite", "")},
      {"a reduction that does not wait for the backward", kOwn,
       [](const Program& p) {
         Program q = p;
         const auto [b, k] = find(p, "reduce_scatter", "grad.embed");
         q.bodies[b].steps[k].after.clear();
         return q;
       }},
      {"a shard overwritten by the second micro-batch", kGrads,
       accessed({"reduce_scatter axis=dp_shard", "from:grad.layer.1"}, Arg::kTo, Access::kWrite)},
      {"a shard that still holds the last step's sum", kGrads,
       accessed({"reduce_scatter axis=dp_shard", "from:grad.layer.1"}, Arg::kTo, Access::kUpdate)},
      {"a micro-batch that is not reduced", kGrads, dropped("reduce_scatter", "grad_shard.layer.0")},
      {"padding that holds anything", kGrads, dropped("zero_fill", "grad.layer.0")},
      {"a tied gradient that is not cleared", kGrads, dropped("zero_fill", "grad.embed"), true},
      {"layers that read each other's parameters", kFull,
       rewritten({"forward part=down layer=1"}, "param.layer.1", "param.layer.0")},
      {"a gather that fills another layer", kFull,
       rewritten({"all_gather", "writes=to:param.layer.0 "}, "reads=from:param_shard.layer.0",
                 "reads=from:param_shard.layer.1")},
      {"a use that does not wait for its gather", kFull,
       [](const Program& p) {
         Program q = p;
         const auto [b, k] = find(p, "forward norm_qkv", "param.layer.1");
         q.bodies[b].steps[k].after.clear();
         return q;
       }},
      {"a dropped sum over the replicas", kHybrid, dropped("all_reduce", "grad_shard.layer.1")},
      {"replicas summed twice", kHybrid, doubled("all_reduce", "grad_shard.layer.1")},
      {"a sum over the wrong axis", kHybrid,
       rewritten({"all_reduce axis=dp_replicate updates=to:grad_shard.layer.1"}, "axis=dp_replicate", "axis=dp_shard")},
      {"the norm over the wrong axis", kHybrid,
       rewritten({"reduce_scalars axis=dp_shard first=2"}, "axis=dp_shard", "axis=dp")},
      {"losses of one group", kHybrid, rewritten({"reduce_scalars axis=dp first=0"}, "axis=dp ", "axis=dp_shard ")},
      {"a dropped reduce-scatter over the replicas", kHybridOwn,
       [](const Program& p) {
         return program::without(p, find(p, "reduce_scatter", "grad_shard.layer.1").first,
                                 find(p, "reduce_scatter", "grad_shard.layer.1").second);
       }},
      {"a shard that is not gathered over the replicas", kHybridOwn, dropped("all_gather", "param_shard.layer.1")},
      {"gathered over shards before replicas", kHybridGrads,
       [](const Program& p) {
         Program q = p;
         const auto [b, k] = find(p, "all_gather", "param.layer.1");  // the second of the two gathers
         std::swap(q.bodies[b].steps[k], q.bodies[b].steps[k - 1]);
         return q;
       }},
      {"a sum of tensor ranks that is left out, forward", kTensor, dropped("all_reduce", "mid.1")},
      {"a sum of tensor ranks that is left out, backward", kTensor, dropped("all_reduce", "d_x")},
      {"a sum of tensor ranks made twice", kTensor, doubled("all_reduce", "mid.0")},
      {"a sum over the wrong ranks", kTensor,
       rewritten({"all_reduce axis=tp payload=mid layer=1"}, "axis=tp", "axis=dp")},
      {"norms that each tensor rank updates by its share", kTensor, dropped("all_reduce", "grad.layer.1")},
      {"norms summed before the backward is done", kTensor,
       moved("all_reduce", "grad.layer.0", "backward norm_qkv", "grad.layer.0")},
      {"a norm that counts one tensor rank", kTensor, dropped("reduce_scalars")},
      {"softmax over one rank's words", kTensor, dropped("all_gather", "head_sums_all")},
      {"one layer's middle for another", kTensor,
       rewritten({"all_reduce axis=tp payload=mid layer=1"}, "layer=1", "layer=0")},
      {"all of the gradient summed, not what is alike", kTensor,
       rewritten({"all_reduce axis=tp updates=to:grad.layer.1"}, "[replicated]", "")},
      {"rows that are not gathered again", kRows, dropped("all_gather", "x_rows.1/1")},
      {"the rows of another layer", kRows,
       rewritten({"all_gather axis=tp payload=x layer=1", "writes=to:x_rows.1 "}, "reads=from:x.1", "reads=from:x.0")},
      {"a residual gradient that is not added to", kRows,
       [](const Program& p) {
         Program q = p;
         const auto [b, k] = at_text(p, "reduce_scatter axis=tp payload=d_mid layer=1");
         q.bodies[b].steps[k].operand(Arg::kTo).access = Access::kWrite;
         return q;
       }},
      {"rows that stay sums", kRows, dropped("reduce_scatter", "mid.0")},
      {"keys that are not gathered", kContext, dropped("all_gather", "qkv.1")},
      {"keys of the layer before", kContext,
       rewritten({"all_gather axis=cp payload=keys layer=1"}, "reads=from:qkv.1", "reads=from:qkv.0")},
      {"gradients of one rank's keys", kContext, dropped("reduce_scatter", "d_keys_all")},
      {"gradients of keys summed twice", kContext, doubled("reduce_scatter", "d_keys_all")},
      {"a step of the ring left out", kContextRing, dropped("ring_exchange", "keys.1")},
      {"a step of the ring made twice", kContextRing, doubled("ring_exchange", "keys.1")},
      {"gradients that do not come home", kContextRing, dropped("ring_exchange", "d_keys_in")},
      {"gradients passed on before they are made", kContextRing,
       moved("ring_exchange", "d_keys.0", "backward attention", "d_keys.0")},
      {"a positions' part of the parameters' gradient", kContext, dropped("all_reduce", "grad.layer.1")},
      {"shards of shares: data before tensor ranks", kRowsGrads,
       [](const Program& p) {
         Program q = p;
         const auto [b, k] = find(p, "all_reduce", "grad.layer.1");
         std::swap(q.bodies[b].steps[k], q.bodies[b].steps[k + 1]);
         return q;
       }},
  };
}

// Returns the run's difference as a multiple of the bound; infinite when the run fails.
double off_by(const Program& p, const Outcome& reference, std::string& how, int steps, const Bounds& b) {
  try {
    const Difference d = difference(reference, train_threads(p, steps));
    const double ratio = over_bounds(d, b);
    how = fmt::format("{:.1e} x bound", ratio);
    return ratio;
  } catch (const std::exception& error) {
    how = "error";
    return INFINITY;
  }
}

double off_by(const Program& p, const Outcome& reference, std::string& how) {
  return off_by(p, reference, how, 3, bounds_of(p));
}

TEST(Mutants, AreCaughtEveryOne) {
  int by_verifier = 0, by_running = 0;
  const auto all = mutants();
  ASSERT_GE(all.size(), 20u);
  for (const Mutant& m : all) {
    SCOPED_TRACE(m.name);
    const auto a = llama(m.tied);
    const Program sound = program::build(a, setting_of(m.layout, DType::kF64));
    ASSERT_TRUE(program::verify(sound).empty());
    Layout one{1, 0, false, m.layout.micro};
    one.sequence = m.layout.sequence;
    const Outcome& reference = train_alone(program::build(a, setting_of(one, DType::kF64)), 3);
    std::string how;
    ASSERT_LE(off_by(sound, reference, how), 1.0);
    const Program broken = m.broken(sound);
    ASSERT_FALSE(broken == sound);
    const auto findings = program::verify(program::without_setting(broken));
    const double ratio = off_by(broken, reference, how);
    EXPECT_TRUE(!findings.empty() || ratio >= 10) << how;
    by_verifier += !findings.empty();
    by_running += ratio >= 10;
    fmt::print("{:<50} verifier: {:<8} running: {}\n", m.name, findings.empty() ? "accepts" : "refuses", how);
  }
  fmt::print("{} mutants: the verifier refuses {}, running shows {} by ten times the bound\n", all.size(), by_verifier,
             by_running);
  EXPECT_EQ(by_verifier, static_cast<int>(all.size()));
}

// In fp32 the bound is one of rounding, which must let sound programs pass and still detect broken ones. In the first
// step stale values equal fresh ones, and values in a race may do so too.
TEST(Mutants, AreFarOutsideOfTheBoundOfFp32) {
  int far = 0;
  const auto all = mutants();
  for (const Mutant& m : all) {
    SCOPED_TRACE(m.name);
    const auto a = llama(m.tied);
    const Program sound = program::build(a, setting_of(m.layout, DType::kF32));
    Layout one{1, 0, false, m.layout.micro};
    one.sequence = m.layout.sequence;
    const Outcome& reference = train_alone(program::build(a, setting_of(one, DType::kF32)), 1);
    std::string how;
    ASSERT_LE(off_by(sound, reference, how, 1, bounds_of(sound)), 1.0) << how;
    const double ratio = off_by(m.broken(sound), reference, how, 1, bounds_of(sound));
    far += ratio >= 10;
    fmt::print("{:<50} {}\n", m.name, how);
  }
  fmt::print("{} mutants: one step in fp32 shows {} by ten times the bound\n", all.size(), far);
  EXPECT_GE(far, 40);
}

// --- gradients that travel in 16 bits, between casts

auto without_text(std::string text) {
  return [=](const Program& p) {
    const auto [b, k] = at_text(p, text);
    return program::without(p, b, k);
  };
}

// Moves a step to the place of another step of the same body; all edges are computed anew.
auto moved_text(std::string text, std::string before) {
  return [=](const Program& p) {
    const auto [b, from] = at_text(p, text);
    const auto [to_body, to] = at_text(p, before, b);
    MOLEN_CHECK(to_body == b && to < from, "{} does not stand before {}", before, text);
    Program q = p;
    auto& steps = q.bodies[b].steps;
    std::rotate(steps.begin() + static_cast<std::ptrdiff_t>(to), steps.begin() + static_cast<std::ptrdiff_t>(from),
                steps.begin() + static_cast<std::ptrdiff_t>(from) + 1);
    for (auto& body : q.bodies)
      for (auto& s : body.steps) s.after.clear();
    return program::pass::order_streams(q);
  };
}

std::vector<Mutant> message_mutants() {
  const std::string into = "cast over=dp reads=from:grad.layer.1",
                    back = "cast over=dp back=1 consumes=from:grad_comm.layer.1",
                    sum = "all_reduce axis=dp updates=to:grad_comm.layer.1";
  return {
      {"a message that is not made", kCopies, without_text(into)},
      {"a message that is not cast back", kCopies, without_text(back)},
      {"a message that is not summed", kCopies, without_text(sum)},
      {"a message summed twice", kCopies, doubled("all_reduce", "grad_comm.layer.1")},
      {"a message cast back twice", kGrads, doubled("cast", "grad_shard.layer.1")},
      {"a message made before the last contribution", kCopies,
       moved_text("cast over=dp reads=from:grad.embed", "backward part=embed")},
      {"a message cast back before it is summed", kCopies, moved_text(back, sum)},
      {"a message that does not wait for the backward", kCopies,
       [into](const Program& p) {
         Program q = p;
         const auto [b, k] = at_text(p, into);
         q.bodies[b].steps[k].after.clear();
         return q;
       }},
      {"a cast from a stale message: another layer's", kCopies,
       rewritten({back}, "from:grad_comm.layer.1", "from:grad_comm.layer.0")},
      {"a cast into another layer's gradient", kCopies,
       rewritten({back}, "writes=to:grad.layer.1", "writes=to:grad.layer.0")},
      {"a cast back of all where a part was summed", kOwn,
       rewritten({back}, "[own]{dp_shard=shard:unit} writes=to:grad.layer.1[own]", " writes=to:grad.layer.1")},
      {"a cast back of the wrong range", kHybridOwn,
       rewritten({"cast over=dp_replicate back=1", "grad_comm.layer.1"}, "grad_comm.layer.1[own]",
                 "grad_comm.layer.1[shard]")},
      {"a sum of the wrong range", kHybridOwn,
       rewritten({"reduce_scatter axis=dp_replicate consumes=from:grad_comm.layer.1"}, "[shard]", "")},
      {"a shard overwritten by the second micro-batch", kGrads,
       accessed({"cast over=dp_shard back=1", "from:grad_comm.layer.1"}, Arg::kTo, Access::kWrite)},
      {"a shard that still holds the last step's sum", kGrads,
       accessed({"cast over=dp_shard back=1", "from:grad_comm.layer.1"}, Arg::kTo, Access::kUpdate)},
      {"a message over the wrong axis", kHybrid,
       rewritten({"cast over=dp_replicate reads=from:grad_shard.layer.1"}, "over=dp_replicate", "over=dp_shard")},
      {"replicas that are left out", kHybrid,
       without_text("cast over=dp_replicate back=1 consumes=from:grad_comm.layer.1")},
  };
}

TEST(Mutants, OfMessagesAreRefused) {
  const auto a = llama(false);
  for (const Mutant& m : message_mutants()) {
    SCOPED_TRACE(m.name);
    auto setting = setting_of(m.layout, DType::kF32);
    setting.reduce = DType::kBF16;
    const Program sound = program::build(a, setting);
    ASSERT_TRUE(program::verify(sound).empty());
    const Outcome& exact = train_alone(program::build(a, setting_of(1, 0, false, DType::kF64, m.layout.micro)), 1);
    const Outcome reference = train_threads(sound, 1);
    const Bounds bounds = bounds_beside(exact, reference);
    const Program broken = program::pass::costs(m.broken(sound));  // so that its costs do not reveal it
    ASSERT_FALSE(broken == sound);
    const auto findings = program::verify(program::without_setting(broken));
    std::string how;
    off_by(broken, reference, how, 1, bounds);
    EXPECT_FALSE(findings.empty());
    fmt::print("{:<50} running: {:<16} verifier: {}\n", m.name, how, findings.empty() ? "accepts" : findings[0].text);
  }
}

}  // namespace
}  // namespace molen::prove
