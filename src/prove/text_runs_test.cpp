// Tests that the program is what runs. In each test, one kind of op is deleted or retargeted in the text form, and the
// text is run as it is. The verifier is not called, because it refuses nearly all of these programs (program_test.cpp).
// The run must change as the text says, so no work of a step exists outside the program. The runs are in fp64 on the
// reference kernels, and most are compared bit for bit.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "program/test_edit.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::kind_of;
using program::Program;
using program::rewrite;

constexpr double kLr = 3e-3;

// The state of one rank after its steps.
struct Rank {
  std::vector<exec::StepResult> steps;
  std::vector<at::Tensor> param, grad, m;  // by unit; param and grad are whole, m has the owned part
  int loads = 0;
  double loss() const { return steps.back().loss_sum; }
};

struct Variation {
  int steps = 1;
  std::function<void(exec::Executor&)> prepare = [](exec::Executor&) {};  // called after the weights are initialized
  // Changes the batch of the second and later loads of a step; the arguments begin at the batch's first sample.
  std::function<void(std::int32_t*, std::int32_t*)> change = [](std::int32_t*, std::int32_t*) {};
  double clip = 1.0;
};

// The programs as they are built, and the kinds of ops that some run omitted, repeated or changed.
struct Tried {
  std::vector<Program> built;
  std::set<std::string> kinds;

  const Program& as_built(Program p) { return built.emplace_back(std::move(p)); }
  void run(const Program& p);
};
Tried& tried() {
  static Tried all;
  return all;
}

std::map<std::pair<std::string, std::string>, int> steps_of(const Program& p) {
  std::map<std::pair<std::string, std::string>, int> steps;  // kind and text
  for (const auto& body : p.bodies)
    for (const auto& step : body.steps) ++steps[{kind_of(step.op), program::print_step(p, step)}];
  return steps;
}

// Records the kinds of ops in which `p` differs from the nearest of the built programs with the same setting.
void Tried::run(const Program& p) {
  std::optional<std::set<std::string>> nearest;
  const auto steps = steps_of(p);
  for (const Program& whole : built) {
    if (!(whole.setting == p.setting)) continue;
    std::set<std::string> differing;
    auto rest = steps_of(whole);
    for (const auto& [step, count] : steps) rest[step] -= count;
    for (const auto& [step, count] : rest)
      if (count != 0) differing.insert(step.first);
    if (!nearest || differing.size() < nearest->size()) nearest = differing;
  }
  if (nearest) kinds.insert(nearest->begin(), nearest->end());
}

Program layout_program(int ranks, int zero, bool recompute, bool tied = false) {
  auto s = setting_of(ranks, zero, recompute, DType::kF64);
  s.sequence = 40;
  s.micro_batch = 12 / ranks;  // one micro-batch; two chunks of the head on one rank
  s.head_chunk = 256;
  return tried().as_built(program::build(llama(tied), s));
}

// Builds a program of two ranks that share each layer, on one micro-batch. With `rows`, it uses sequence parallelism.
Program tensor_program(bool rows) {
  auto s = setting_of(1, 0, false, DType::kF64);
  s.mesh[mesh::Axis::kTp] = 2;
  s.sequence_parallel = rows;
  s.sequence = 40;
  s.micro_batch = 12;
  s.head_chunk = 256;
  return tried().as_built(program::build(llama(false), s));
}

Rank run_rank(const Program& p, comm::Communicator& world, const Variation& trial) {
  const c10::InferenceMode inference;
  // Dead values become NaN, so a value that is read although no op wrote it cannot be right by chance.
  exec::Executor executor(p, world.rank(), &world, {at::kCPU, true});
  launch::initialize_parameters(executor, 5, 1);
  trial.prepare(executor);
  Rank rank;
  for (int step = 1; step <= trial.steps; ++step) {
    exec::StepInput input;
    input.step = step;
    input.optimizer.lr = kLr;
    input.clip = trial.clip;
    input.load = [&](const exec::MicroBatch& to) {
      const std::int64_t data = program::data_rank(p.grid, executor.coordinates());
      const std::int64_t first = (rank.loads++ * p.setting.data_ranks() + data) * p.setting.micro_batch;
      const std::int64_t valid = synthetic_samples(p.setting, p.arch.vocabulary)(first, p.setting.micro_batch, to);
      trial.change(to.ids, to.labels);
      return valid;
    };
    rank.steps.push_back(executor.run(input));
  }
  for (int u = 0; u < static_cast<int>(p.units.size()); ++u) {
    rank.param.push_back(executor.state("param", u).clone());
    rank.grad.push_back(executor.state("grad", u).clone());
    rank.m.push_back(executor.state("m", u).clone());
  }
  return rank;
}

std::vector<Rank> run(const Program& p, const Variation& trial = {}) {
  tried().run(p);
  std::vector<Rank> out(static_cast<std::size_t>(p.setting.ranks()));
  on_ranks(p.setting.ranks(),
           [&](comm::Communicator& world) { out[static_cast<std::size_t>(world.rank())] = run_rank(p, world, trial); });
  return out;
}

Rank run_one(const Program& p, const Variation& trial = {}) {
  return run(p, trial).front();
}

// Prints `p`, edits the text and parses it.
Program edited(const Program& p, const std::vector<std::string>& where, const std::string& from,
               const std::string& to) {
  Program q = program::parse(rewrite(program::print(p), where, from, to), "edited");
  EXPECT_FALSE(q == p);
  return q;
}

// Removes the op whose line holds all of the given texts; there must be exactly one.
Program deleted(const Program& p, const std::string& kind, const std::string& buffer = "") {
  Program q;
  int hits = 0;
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      const auto& step = p.bodies[b].steps[k];
      bool here = kind_of(step.op) == kind && buffer.empty();
      if (kind_of(step.op) == kind)
        for (const auto& use : step.operands)
          here = here || p.buffers[static_cast<std::size_t>(use.buffer)].name == buffer;
      if (!here) continue;
      ++hits;
      q = program::without(p, b, k);
      EXPECT_FALSE(program::verify(q).empty()) << kind << " deleted and accepted";
    }
  EXPECT_EQ(hits, 1) << kind << " " << buffer;
  return program::parse(program::print(q), "deleted");
}

std::size_t unit(const Program& p, const std::string& name) {
  for (std::size_t u = 0; u < p.units.size(); ++u)
    if (p.units[u].name == name) return u;
  throw Error("no unit {}", name);
}

// Returns the elements of the parameters that a part of a layer uses.
at::Tensor part_of(const Program& p, const at::Tensor& flat, std::size_t u, const std::set<arch::Role>& roles) {
  const auto all = arch::parameters(p.arch);
  std::vector<at::Tensor> pieces;
  for (const auto& entry : p.units[u].entries) {
    const auto& parameter = all[static_cast<std::size_t>(entry.parameter)];
    if (roles.contains(parameter.role)) pieces.push_back(flat.narrow(0, entry.offset, parameter.elements()));
  }
  return at::cat(pieces);
}

// Gives layer `to` the weights of layer `from` for the parameters of these roles.
void copy_weights(exec::Executor& e, const std::set<arch::Role>& roles, std::int64_t from, std::int64_t to) {
  const auto all = arch::parameters(e.program().arch);
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t j = 0; j < all.size(); ++j)
      if (all[i].layer == from && all[j].layer == to && all[i].role == all[j].role && roles.contains(all[i].role))
        launch::parameter_view(e, static_cast<int>(j)).copy_(launch::parameter_view(e, static_cast<int>(i)));
}

void scale_weights(exec::Executor& e, const std::set<arch::Role>& roles, std::int64_t layer, double factor) {
  const auto all = arch::parameters(e.program().arch);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].layer == layer && roles.contains(all[i].role))
      launch::parameter_view(e, static_cast<int>(i)).mul_(factor);
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a, b);
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

using R = arch::Role;
const std::map<std::string, std::set<R>> kWeights{{"norm_qkv", {R::kAttentionNorm, R::kQuery, R::kKey, R::kValue}},
                                                  {"out_projection", {R::kOutput}},
                                                  {"norm_up", {R::kMlpNorm, R::kGate, R::kUp}},
                                                  {"down", {R::kDown}}};

class Weighted : public ::testing::TestWithParam<std::string> {};

TEST_P(Weighted, ForwardUsesTheWeightsItNames) {
  const auto& roles = kWeights.at(GetParam());
  const Program p = layout_program(1, 0, false);
  const Program q = edited(p, {" forward part=" + GetParam() + " layer=0"}, "param.layer.0", "param.layer.1");
  EXPECT_FALSE(program::verify(q).empty());
  const Rank as_text = run_one(q), copied = run_one(p, {1, [&](exec::Executor&e) { copy_weights(e, roles, 1, 0); }});
  EXPECT_EQ(as_text.loss(), copied.loss());
  EXPECT_NE(as_text.loss(), run_one(p).loss());
}

TEST_P(Weighted, BackwardWritesTheGradientItNames) {
  const auto& roles = kWeights.at(GetParam());
  const Program p = layout_program(1, 0, false);
  const Program q = edited(p, {" backward part=" + GetParam() + " layer=0"}, "grad.layer.0", "grad.layer.1");
  const Rank base = run_one(p), as_text = run_one(q);
  const std::size_t l0 = unit(p, "layer.0"), l1 = unit(p, "layer.1");
  EXPECT_TRUE(same(part_of(p, as_text.grad[l1], l1, roles), part_of(p, base.grad[l0], l0, roles)));
  EXPECT_EQ(part_of(p, as_text.grad[l0], l0, roles).abs().max().item<double>(), 0.0);
  EXPECT_EQ(base.loss(), as_text.loss());
}

TEST_P(Weighted, RecomputeFeedsTheBackwardOfItsLayerOnly) {
  if (GetParam() == "down") return;  // not recomputed, because its result is kept
  const Program p = layout_program(1, 0, true);
  const Program q = edited(p, {" recompute part=" + GetParam() + " layer=1"}, "param.layer.1", "param.layer.0");
  const Rank base = run_one(p), as_text = run_one(q);
  EXPECT_EQ(as_text.loss(), base.loss());
  EXPECT_TRUE(same(as_text.grad[unit(p, "final")], base.grad[unit(p, "final")]));
  EXPECT_FALSE(same(as_text.grad[unit(p, "layer.1")], base.grad[unit(p, "layer.1")]));
}

INSTANTIATE_TEST_SUITE_P(Parts, Weighted, ::testing::Values("norm_qkv", "out_projection", "norm_up", "down"));

// Names of buffers are labels: a run finds state, weights and the evaluation's owner by the fields of buffers.
TEST(Names, AreLabels) {
  for (const auto& [ranks, zero] : {std::pair{1, 0}, {2, 1}, {2, 3}}) {
    const Program p = layout_program(ranks, zero, true);
    EXPECT_EQ(train_threads(program::renamed(p), 2).hash, train_threads(p, 2).hash) << ranks << " ranks, ZeRO-" << zero;
  }
}

// The kernels that a text names are the ones that run. When all of them are edited, the bits are those of the other
// program.
TEST(Kernels, OfATextAreThoseThatRun) {
  auto s = setting_of(2, 1, true, DType::kF32);
  const Program fused = program::build(llama(false), s);
  s.kernels = arch::Kernels::kReference;
  const Program reference = program::build(llama(false), s);
  const std::string text =
      rewrite(program::without_costs(program::print(fused)), {" kernel=fused"}, "kernel=fused", "kernel=reference");
  const Program edited = program::parse(text, "edited");
  EXPECT_TRUE(program::verify(edited).empty());
  EXPECT_EQ(edited.bodies, reference.bodies);
  const auto hash = [](const Program& p) { return train_threads(p, 2).hash; };
  EXPECT_EQ(hash(edited), hash(reference));
  EXPECT_NE(hash(edited), hash(fused)) << "the two kernels round differently";
}

// Unfused attention, which keeps the matrix of scores, can be chosen by the setting or by a text. Both give the same op
// and, within rounding, the same model on two ranks, whole and in documents.
TEST(Kernels, UnfusedAttentionIsTheSameModel) {
  for (const DType compute : {DType::kF64, DType::kF32, DType::kBF16})
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(compute), documents));
      auto s = setting_of(2, 1, true, compute);
      s.document_mask = documents;
      if (compute == DType::kBF16) s.kernels = arch::Kernels::kAten;
      const Program tiles = program::build(llama(false), s);
      s.other_kernels = {{arch::Part::kAttention, arch::Kernels("unfused")}};
      const Program unfused = program::build(llama(false), s);
      EXPECT_EQ(program::parse(program::print(unfused), "text"), unfused);
      const std::string kernel = fmt::format("kernel={}", name_of(s.kernels));
      const Program edited = program::parse(
          rewrite(program::without_costs(program::print(tiles)), {" part=attention"}, kernel, "kernel=unfused"),
          "edited");
      EXPECT_TRUE(program::verify(edited).empty());
      EXPECT_EQ(edited.bodies, unfused.bodies);
      const auto hash = [](const Program& p) { return train_threads(p, 2).hash; };
      EXPECT_EQ(hash(edited), hash(unfused));
      EXPECT_NE(hash(unfused), hash(tiles)) << "the two kernels round differently";
      if (compute == DType::kBF16) continue;  // its rounded gradients are compared in model/
      const auto one = train_threads(tiles, compute == DType::kF64 ? 10 : 1),
                 other = train_threads(unfused, compute == DType::kF64 ? 10 : 1);
      if (compute == DType::kF64) {
        expect_same_model(one, other);
        continue;
      }
      const Difference d = difference(one, other);
      const Bounds bounds = bounds_of(unfused);
      expect_within(d, bounds);
    }
}

// Attention, activation and the final norm are made to read what the layer before made. Attention and activation have
// no weights, so the weights before them in their own layer no longer matter.
TEST(Weightless, ForwardReadsTheValueItNames) {
  const Program p = layout_program(1, 0, false);
  const std::array<std::tuple<const char*, const char*, const char*, std::set<R>>, 3> cases{{
      {" forward part=attention layer=1", "qkv.1", "qkv.0", kWeights.at("norm_qkv")},
      {" forward part=activation layer=1", "up.1", "up.0", kWeights.at("norm_up")},
      {" forward part=final_norm", "x.2", "x.1", kWeights.at("down")},
  }};
  for (const auto& [where, from, to, roles] : cases) {
    const Program q = edited(p, {where}, from, to);
    const auto other = [&, &unused = roles](exec::Executor& e) { scale_weights(e, unused, 1, 1.7); };
    EXPECT_EQ(run_one(q).loss(), run_one(q, {1, other}).loss()) << where;
    EXPECT_NE(run_one(p).loss(), run_one(p, {1, other}).loss()) << where;
    EXPECT_NE(run_one(p).loss(), run_one(q).loss()) << where;
  }
}

// When both the writer and the reader of a value use a buffer of another name, the run is the same; when only one of
// them does, it is not.
TEST(Weightless, ValuesGoThroughTheBuffersNamed) {
  struct Case {
    bool recompute;
    const char *writer, *reader, *buffer;
  };
  for (const Case& c :
       {Case{false, " backward part=attention layer=1", " backward part=rotate layer=1", "d_qkv"},
        Case{false, " backward part=activation layer=1", " backward part=norm_up layer=1", "d_up"},
        Case{true, " recompute part=attention layer=1", " backward part=out_projection layer=1", "attn.re"},
        Case{true, " recompute part=activation layer=1", " backward part=down layer=1", "act.re"}}) {
    const Program p = layout_program(1, 0, c.recompute);
    const auto& moved = p.buffers[static_cast<std::size_t>(p.buffer(c.buffer))];
    std::string text = program::print(p);
    const std::string line = fmt::format("buffer {} {} {} transient", moved.name, name_of(moved.dtype), moved.elements);
    text = rewrite(
        text, {line}, line,
        fmt::format("buffer elsewhere {} {} transient role=ids\n{}", name_of(moved.dtype), moved.elements, line));
    const std::string name = std::string(":") + c.buffer;
    const std::string once = rewrite(text, {c.writer}, name, ":elsewhere");
    std::string both = rewrite(once, {c.reader}, name, ":elsewhere");
    if (std::string(c.buffer) == "d_qkv") both = rewrite(both, {" backward part=norm_qkv layer=1"}, name, ":elsewhere");
    if (std::string(c.buffer) == "attn.re")  // two more ops read this buffer
      for (const char* reader : {" recompute part=out_projection layer=1", " backward part=attention layer=1"})
        both = rewrite(both, {reader}, name, ":elsewhere");
    const Rank base = run_one(p), one_sided = run_one(program::parse(once, "once")),
               two_sided = run_one(program::parse(both, "both"));
    const std::size_t l1 = unit(p, "layer.1");
    EXPECT_TRUE(same(base.grad[l1], two_sided.grad[l1])) << c.writer;
    EXPECT_FALSE(same(base.grad[l1], one_sided.grad[l1])) << c.writer;
  }
}

// A rotation of its own buffer, which no other op reads, leaves the model as it is without the rotation.
TEST(Weightless, RotationTurnsTheBufferItNames) {
  for (const bool again : {false, true}) {
    const Program p = layout_program(1, 0, again);
    const char *pass = again ? " recompute part=rotate layer=1" : " forward part=rotate layer=1",
               *buffer = again ? "qkv.re" : "qkv.1";
    const auto& moved = p.buffers[static_cast<std::size_t>(p.buffer(buffer))];
    const std::string line = fmt::format("buffer {} {} {} transient", moved.name, name_of(moved.dtype), moved.elements);
    std::string text = rewrite(
        program::print(p), {line}, line,
        fmt::format("buffer elsewhere {} {} transient role=ids\n{}", name_of(moved.dtype), moved.elements, line));
    text = rewrite(text, {pass}, std::string(":") + buffer, ":elsewhere");
    Program without;
    for (std::size_t k = 0; k < p.bodies[0].steps.size(); ++k)
      if (program::print_step(p, p.bodies[0].steps[k]).find(pass + 1) == 0) without = program::without(p, 0, k);
    ASSERT_FALSE(without.bodies.empty()) << pass;
    EXPECT_FALSE(program::verify(without).empty());
    const Rank base = run_one(p), turned = run_one(program::parse(text, "elsewhere")), unturned = run_one(without);
    const std::size_t l1 = unit(p, "layer.1");
    EXPECT_TRUE(same(turned.grad[l1], unturned.grad[l1])) << pass;
    EXPECT_FALSE(same(turned.grad[l1], base.grad[l1])) << pass;
  }
}

TEST(Ends, EmbeddingReadsTheIdsItNames) {
  const Program p = layout_program(1, 0, false);
  const auto counted = [](std::int32_t*, std::int32_t* labels) {
    for (int i = 0; i < 480; ++i) labels[i] = std::max(labels[i], 0);  // all labels are ids
  };
  const auto swapped = [&](std::int32_t* ids, std::int32_t* labels) {
    counted(ids, labels);
    std::copy_n(labels, 480, ids);
  };
  const Program q = edited(p, {" forward part=embed"}, ":ids", ":labels");
  EXPECT_FALSE(program::verify(q).empty());
  const Variation plain{1, [](exec::Executor&) {}, counted}, copied{1, [](exec::Executor&) {}, swapped};
  EXPECT_EQ(run_one(q, plain).loss(), run_one(p, copied).loss());
  EXPECT_NE(run_one(q, plain).loss(), run_one(p, plain).loss());
}

// A second, adding backward doubles the gradient that the op writes, and no other gradient.
TEST(Ends, BackwardRunsAsOftenAsItStands) {
  const Program p = layout_program(1, 0, false);
  for (const auto& [part, name, role] : {std::tuple{arch::Part::kFinalNorm, "final", R::kFinalNorm},
                                         std::tuple{arch::Part::kEmbed, "embed", R::kEmbedding}}) {
    Program q = p;
    auto& steps = q.bodies.at(0).steps;
    for (std::size_t k = 0; k < steps.size(); ++k)
      if (const auto* c = std::get_if<program::Compute>(&steps[k].op);
          c && c->part == part && c->pass == program::Pass::kBackward) {
        auto again = steps[k];
        again.operand(program::Arg::kGrad).access = program::Access::kUpdate;
        steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(k) + 1, again);
        break;
      }
    EXPECT_FALSE(program::verify(q).empty());
    const Rank base = run_one(p), twice = run_one(program::parse(program::print(q), "twice"));
    const std::size_t u = unit(p, name);
    const at::Tensor once = part_of(p, base.grad[u], u, {role}), now = part_of(p, twice.grad[u], u, {role});
    EXPECT_LE(relative(now, 2 * once), 1e-14) << name;
    EXPECT_TRUE(same(base.grad[unit(p, "layer.0")], twice.grad[unit(p, "layer.0")])) << name;
  }
}

TEST(Ends, AHeadChunkThatIsGoneIsNotInTheLoss) {
  const Program p = layout_program(1, 0, false);
  ASSERT_EQ(p.setting.head_chunks(), 2);
  Program q;
  for (std::size_t k = 0; k < p.bodies[0].steps.size(); ++k)
    if (const auto* c = std::get_if<program::Compute>(&p.bodies[0].steps[k].op); c && c->portion == 1)
      q = program::without(p, 0, k);
  EXPECT_FALSE(program::verify(q).empty());
  const auto half = [](std::int32_t*, std::int32_t* labels) { std::fill(labels + 256, labels + 480, -1); };
  const Rank base = run_one(p), cut = run_one(program::parse(program::print(q), "cut")),
             masked = run_one(p, {1, [](exec::Executor&) {}, half});
  EXPECT_EQ(cut.loss(), masked.loss());
  EXPECT_GT(base.loss(), cut.loss() * 1.5);
}

TEST(Data, LoadsAsOftenAsItStands) {
  const Program p = layout_program(1, 0, false);
  Program q = p;
  auto& steps = q.bodies.at(0).steps;
  for (std::size_t k = 0; k < steps.size(); ++k)
    if (std::holds_alternative<program::LoadBatch>(steps[k].op)) {
      const auto again = steps[k];
      steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(k), again);
      break;
    }
  EXPECT_FALSE(program::verify(q).empty());
  const Rank base = run_one(p, {2}), twice = run_one(program::parse(program::print(q), "twice"));
  EXPECT_EQ(twice.loads, 2);
  EXPECT_EQ(twice.steps[0].valid_tokens, base.steps[0].valid_tokens + base.steps[1].valid_tokens);
  // The run trains on the second batch, whose loss differs from the first one's.
  EXPECT_NE(twice.steps[0].loss_sum, base.steps[0].loss_sum);
}

// Samples are dealt as data::samples_of deals them. The slots of a micro-batch go round the data ranks, and each step
// begins after the samples of the step before.
TEST(Data, AProofDealsSamplesAsTrainingDoes) {
  const Program p = program::build(llama(false), setting_of(2, 1, false, DType::kF64, 4));  // 12 samples a step
  const auto& s = p.setting;
  on_ranks(2, [&](comm::Communicator& world) {
    exec::Executor executor(p, world.rank(), &world, {});
    std::vector<std::pair<std::int64_t, std::int64_t>> dealt, want;
    for (const std::int64_t step : {std::int64_t{1}, std::int64_t{3}}) {
      const auto load = loads_of_step(
          executor, s,
          [&](std::int64_t first, std::int64_t count, const exec::MicroBatch&) {
            dealt.push_back({first, count});
            return std::int64_t{0};
          },
          step);
      for (const std::int64_t slot : {world.rank(), world.rank() + 2}) {
        load({});
        want.push_back({(step - 1) * 12 + slot * 4, slot < 3 ? 4 : 0});
      }
    }
    EXPECT_EQ(dealt, want);
  });
}

TEST(Data, SumsThatAreNotZeroedGoOn) {
  const Program p = layout_program(1, 0, false);
  const Rank base = run_one(p, {2}), kept = run_one(deleted(p, "zero_fill"), {2});
  const double both = base.steps[0].loss_sum + base.steps[1].loss_sum;
  EXPECT_EQ(kept.steps[0].loss_sum, base.steps[0].loss_sum);
  EXPECT_NEAR(kept.steps[1].loss_sum, both, 1e-12 * both);
}

TEST(Data, AGradientThatIsNotZeroedGoesOn) {
  const Program p = layout_program(1, 0, false, true);
  const std::size_t u = unit(p, "embed");
  const Rank first = run_one(p), base = run_one(p, {2}), kept = run_one(deleted(p, "zero_fill", "grad.embed"), {2});
  EXPECT_LE(relative(kept.grad[u], first.grad[u] + base.grad[u]), 1e-13);
}

TEST(Update, TheNormCountsTheGradientsNamed) {
  const Program p = layout_program(1, 0, false);
  const Rank base = run_one(p);
  const double mean = static_cast<double>(p.setting.global_batch * p.setting.sequence) / base.steps[0].valid_tokens;
  for (const auto& u : p.units) {
    const double squares = base.grad[unit(p, u.name)].square().sum().item<double>() * mean * mean;
    const double norm = base.steps[0].grad_norm, left = std::sqrt(norm * norm - squares);
    EXPECT_NEAR(run_one(deleted(p, "sum_squares", "grad." + u.name)).steps[0].grad_norm, left, 1e-9 * norm) << u.name;
  }
}

// Without the scale the gradient has no effect: only weight decay is left.
TEST(Update, NothingIsLearntWithoutTheScale) {
  const Program p = layout_program(1, 0, false);
  const std::size_t u = unit(p, "layer.0");
  Rank start;
  const Variation look{
      1, [&](exec::Executor& e) { start.param.push_back(e.state("param", static_cast<int>(u)).clone()); }};
  const Rank end = run_one(deleted(p, "clip_scale"), look);
  const double decayed = 1 - kLr * optim::Options{}.weight_decay;
  const at::Tensor before = part_of(p, start.param[0], u, {R::kQuery}),
                   after = part_of(p, end.param[u], u, {R::kQuery});
  EXPECT_LE(relative(after, before * decayed), 1e-15);
  EXPECT_TRUE(same(part_of(p, start.param[0], u, {R::kMlpNorm}), part_of(p, end.param[u], u, {R::kMlpNorm})));
}

// After one step AdamW's first moment is (1 - beta1) times the clipped gradient of the mean loss. The weights would not
// show the scale, because AdamW divides by it again.
TEST(Update, ClippingScalesTheGradient) {
  const Program p = layout_program(1, 0, false);
  const auto with = [&](double clip) {
    Variation trial;
    trial.clip = clip;
    return run_one(p, trial);
  };
  const Rank whole = with(0.0);
  const double norm = whole.steps[0].grad_norm;
  for (const double share : {0.25, 0.999, 4.0}) {
    const Rank clipped = with(share * norm);
    EXPECT_EQ(clipped.steps[0].grad_norm, norm) << "the norm is that before clipping";
    const double scale = std::min(1.0, share * norm / (norm + 1e-6));
    for (std::size_t u = 0; u < p.units.size(); ++u)
      EXPECT_LE(relative(clipped.m[u], whole.m[u] * scale), 1e-15) << p.units[u].name << ", " << share;
  }
}

TEST(Update, OnlyTheAgreementStopsABadStep) {
  const Program p = layout_program(1, 0, false);
  const std::size_t u = unit(p, "layer.0");
  const Variation bad{1, [](exec::Executor& e) { launch::parameter_view(e, 0).fill_(NAN); }};
  const auto finite = [&](const Rank& r) { return r.param[u].isfinite().all().item<bool>(); };
  const Rank base = run_one(p, bad), unaware = run_one(deleted(p, "set_flag"), bad),
             anyway = run_one(edited(p, {"optimizer_step reads=grad:grad.layer.0"}, " unless=non_finite", ""), bad);
  EXPECT_TRUE(base.steps[0].non_finite && finite(base));
  EXPECT_FALSE(unaware.steps[0].non_finite || finite(unaware));
  EXPECT_TRUE(anyway.steps[0].non_finite);
  EXPECT_FALSE(finite(anyway));
}

TEST(Update, UpdatesTheUnitsNamedFromTheGradientsNamed) {
  const Program p = layout_program(1, 0, false);
  const std::size_t l0 = unit(p, "layer.0"), l1 = unit(p, "layer.1");
  Rank start;
  const Rank base = run_one(
      p, {1, [&](exec::Executor& e) { start.param.push_back(e.state("param", static_cast<int>(l0)).clone()); }});
  const Rank skipped = run_one(deleted(p, "optimizer_step", "param.layer.0"));
  EXPECT_TRUE(same(skipped.param[l0], start.param[0]));
  EXPECT_TRUE(same(skipped.param[l1], base.param[l1]));
  EXPECT_FALSE(same(base.param[l0], start.param[0]));
  const Rank crossed = run_one(edited(p, {"optimizer_step reads=grad:grad.layer.0"}, "grad.layer.0", "grad.layer.1"));
  EXPECT_TRUE(same(crossed.m[l0], base.m[l1]));
}

TEST(Collectives, AGradientThatIsNotReducedStaysLocal) {
  const Program p = layout_program(2, 0, false);
  const std::size_t l0 = unit(p, "layer.0"), l1 = unit(p, "layer.1");
  const auto base = run(p), local = run(deleted(p, "all_reduce", "grad.layer.0"));
  EXPECT_LE(relative(local[0].grad[l0] + local[1].grad[l0], base[0].grad[l0]), 1e-14);
  EXPECT_FALSE(same(local[0].grad[l0], local[1].grad[l0]));
  EXPECT_TRUE(same(local[0].grad[l1], base[0].grad[l1]));
}

TEST(Collectives, AGradientThatIsNotScatteredStaysLocal) {
  const Program p = layout_program(2, 1, false);
  const std::size_t l0 = unit(p, "layer.0");
  const auto base = run(p), local = run(deleted(p, "reduce_scatter", "grad.layer.0"));
  for (int r = 0; r < 2; ++r) {
    const auto [first, last] = program::owned_range(p.units[l0].elements, r, 2);
    const auto own = [&, a = first, n = last - first](const at::Tensor& t) { return t.narrow(0, a, n); };
    const auto& reduced = base[static_cast<std::size_t>(r)].grad[l0];
    EXPECT_LE(relative(own(local[0].grad[l0]) + own(local[1].grad[l0]), own(reduced)), 1e-14);
    EXPECT_FALSE(same(own(local[static_cast<std::size_t>(r)].grad[l0]), own(reduced)));
  }
}

TEST(Collectives, ParametersThatAreNotGatheredStayOld) {
  const Program p = layout_program(2, 1, false);
  const std::size_t l0 = unit(p, "layer.0");
  std::array<at::Tensor, 2> start;
  std::mutex mutex;
  const auto base = run(p);
  const auto stale = run(deleted(p, "all_gather", "param.layer.0"),
                         {1, [&](exec::Executor& e) {
                            const std::lock_guard lock(mutex);
                            start[0] = e.state("param", static_cast<int>(l0)).clone();  // the same values on both ranks
                          }});
  for (std::size_t r = 0; r < 2; ++r) {
    const auto [first, last] = program::owned_range(p.units[l0].elements, static_cast<int>(r), 2);
    const auto [other, end] = program::owned_range(p.units[l0].elements, 1 - static_cast<int>(r), 2);
    EXPECT_TRUE(
        same(stale[r].param[l0].narrow(0, first, last - first), base[r].param[l0].narrow(0, first, last - first)));
    EXPECT_TRUE(same(stale[r].param[l0].narrow(0, other, end - other), start[0].narrow(0, other, end - other)));
  }
  EXPECT_TRUE(same(base[0].param[l0], base[1].param[l0]));
}

TEST(Collectives, SumsThatAreNotReducedStayLocal) {
  const Program p = layout_program(2, 0, false);
  const auto base = run(p), local = run(deleted(p, "reduce_scalars")),
             part = run(edited(p, {"reduce_scalars"}, "count=2", "count=1"));
  for (double exec::StepResult::*field : {&exec::StepResult::loss_sum, &exec::StepResult::valid_tokens}) {
    const double sum = base[0].steps[0].*field;
    EXPECT_NEAR(local[0].steps[0].*field + local[1].steps[0].*field, sum, 1e-12 * sum);
    EXPECT_LT(local[0].steps[0].*field, sum);
  }
  EXPECT_EQ(part[0].steps[0].loss_sum, base[0].steps[0].loss_sum);
  EXPECT_EQ(part[0].steps[0].valid_tokens, local[0].steps[0].valid_tokens);
}

// Removes chunk 1 of the head, its loss or its logits, from a program of ranks that share the vocabulary.
Program without_chunk(const Program& p, arch::Part part) {
  for (std::size_t k = 0; k < p.bodies[0].steps.size(); ++k)
    if (const auto* c = std::get_if<program::Compute>(&p.bodies[0].steps[k].op);
        c && c->part == part && c->portion == 1)
      return program::parse(program::print(program::without(p, 0, k)), "cut");
  throw Error("no such op");
}

TEST(Tensor, AChunkThatIsGoneIsNotInTheLoss) {
  const Program p = tensor_program(false);
  ASSERT_EQ(p.setting.head_chunks(), 2);
  const auto half = [](std::int32_t*, std::int32_t* labels) { std::fill(labels + 256, labels + 480, -1); };
  const Program q = without_chunk(p, arch::Part::kHeadLoss);
  EXPECT_FALSE(program::verify(q).empty());
  EXPECT_EQ(run_one(q).loss(), run_one(p, {1, [](exec::Executor&) {}, half}).loss());
  EXPECT_GT(run_one(p).loss(), run_one(q).loss() * 1.5);
}

// When the logits of a chunk are not computed, those of the chunk before remain, and the loss of the chunk's labels
// differs.
TEST(Tensor, LogitsThatAreNotMadeAreThoseBefore) {
  const Program p = tensor_program(false), q = without_chunk(p, arch::Part::kHeadLogits);
  EXPECT_FALSE(program::verify(q).empty());
  EXPECT_NE(run_one(q).loss(), run_one(p).loss());
}

// A rank that keeps only its partial sum trains a different model from its peer.
TEST(Tensor, ASumThatIsNotMadeStaysAShare) {
  const Program p = tensor_program(false);
  const auto base = run(p);
  EXPECT_EQ(base[0].loss(), base[1].loss());
  const auto shares = run(deleted(p, "all_reduce", "mid.1"));
  EXPECT_NE(shares[0].grad[unit(p, "final")].sum().item<double>(), base[0].grad[unit(p, "final")].sum().item<double>());
  EXPECT_NE(shares[0].loss(), base[0].loss());
  const Program rows = tensor_program(true);
  EXPECT_NE(run(deleted(rows, "reduce_scatter", "mid.1"))[0].loss(), run(rows)[0].loss());
}

// Checks, when all tests of this file have run, that they cover every kind of op.
class Coverage : public ::testing::Environment {
 public:
  void TearDown() override {
    const auto& unit = *::testing::UnitTest::GetInstance();
    for (int i = 0; i < unit.total_test_suite_count(); ++i)
      for (int k = 0; k < unit.GetTestSuite(i)->total_test_count(); ++k) {
        const auto& test = *unit.GetTestSuite(i)->GetTestInfo(k);
        if (test.file() == std::string(__FILE__) && !test.should_run()) return;
      }
    for (const Program& p : tried().built)
      for (const auto& [step, count] : steps_of(p))
        if (!tried().kinds.contains(step.first)) ADD_FAILURE() << "no test runs a program with another " << step.first;
  }
};
const auto* const kCoverage = ::testing::AddGlobalTestEnvironment(new Coverage);

}  // namespace
}  // namespace molen::prove
