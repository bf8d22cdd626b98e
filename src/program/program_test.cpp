#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "base/test_bounds.h"
#include "base/test_sanitized.h"
#include "program/build/build.h"
#include "program/build/recompute.h"
#include "program/memory/memory.h"
#include "program/test_edit.h"
#include "program/text/text.h"
#include "program/values/signature.h"
#include "program/verify/verify.h"

namespace molen::program {
namespace {

Setting hybrid(int shards, int replicas, int zero, bool own_over_dp) {
  Setting s = setting_of(shards, zero, false, 4 * shards * replicas);
  s.mesh[mesh::Axis::kDpReplicate] = replicas;
  s.own_over_dp = own_over_dp;
  return s;
}

// Generates any set of parts, for every layer or for some layers.
rc::Gen<Recompute> any_recompute() {
  return rc::gen::map(
      rc::gen::pair(rc::gen::inRange(0, 1 << 5), rc::gen::inRange(1, 5)), [](const std::pair<int, int>& chosen) {
        constexpr std::array kParts{arch::Part::kNormQkv, arch::Part::kAttention, arch::Part::kOutProjection,
                                    arch::Part::kNormUp, arch::Part::kActivation};
        Recompute r;
        for (std::size_t i = 0; i < kParts.size(); ++i)
          if (chosen.first >> i & 1) r.add(kParts[i]);
        if (r.any()) r.every = chosen.second;
        return r;
      });
}

rc::Gen<Setting> any_setting() {
  using rc::gen::arbitrary;
  using rc::gen::inRange;
  return rc::gen::map(rc::gen::tuple(inRange(1, 6), inRange(1, 4), inRange(0, 4), arbitrary<bool>(), inRange(1, 30),
                                     arbitrary<bool>(), inRange(0, 4), any_recompute(), inRange(0, 3), inRange(0, 16),
                                     rc::gen::element(DType::kF32, DType::kBF16, DType::kF16)),
                      [](const std::tuple<int, int, int, bool, int, bool, int, Recompute, int, int, DType>& t) {
                        const auto [shards, replicas, zero, recompute, global, own, prefetch, chosen, tensor, host,
                                    reduce] = t;
                        Setting s = setting_of(shards, zero, false, global);
                        s.reduce = reduce;
                        if (recompute) s.recompute = chosen;
                        s.mesh[mesh::Axis::kTp] = std::max(1, tensor);
                        s.sequence_parallel = tensor == 2;
                        s.prefetch = prefetch;
                        if (zero < 2 || shards > 1) s.mesh[mesh::Axis::kDpReplicate] = replicas;
                        s.own_over_dp = own && zero >= 2 && s.replicas() > 1;
                        s.offload = {(host & 7) > 0, (host & 2) != 0, (host & 4) != 0, (host & 8) != 0};
                        if ((s.owns_part() && !s.sharded_parameters()) || s.own_over_dp) s.offload.parameters = false;
                        return s;
                      });
}

RC_GTEST_PROP(Program, EveryBuiltProgramIsSound, (bool tied)) {
  const Program p = build(tiny(tied), *any_setting());
  const auto findings = verify(p);
  RC_LOG() << (findings.empty() ? "" : findings[0].text);
  RC_ASSERT(findings.empty());
}

RC_GTEST_PROP(Program, TextRoundTrip, (bool tied)) {
  const Program p = build(tiny(tied), *any_setting());
  RC_ASSERT(parse(print(p), "test") == p);
  RC_ASSERT(parse(print(p, plan_memory(p)), "test") == p);
}

TEST(Program, EvaluationProgramIsSound) {
  Setting s = setting_of(1, 0, false, 2);
  s.purpose = Purpose::kEvaluate;
  const Program p = build(tiny(), s);
  EXPECT_TRUE(verify(p).empty()) << verify(p)[0].text;
  EXPECT_EQ(p.find_buffer("grad.embed"), -1);
}

// Returns when each op runs if it takes as long as `duration` says. Ops run in list order on their streams, each after
// the ops that it waits for.
std::vector<std::pair<double, double>> run_times(const std::vector<Expanded>& ops,
                                                 const std::function<double()>& duration) {
  std::vector<std::pair<double, double>> times(ops.size());
  std::array<double, kNumStreams> free{};
  for (std::size_t i = 0; i < ops.size(); ++i) {
    double& at = free[static_cast<std::size_t>(ops[i].step->stream)];
    for (const int a : ops[i].after) at = std::max(at, times[static_cast<std::size_t>(a)].second);
    times[i].first = at;
    at = times[i].second = at + duration();
  }
  return times;
}

struct Use1 {
  double start, end;
  std::int64_t first, last;  // bytes
  std::string name;
};

// Returns the uses of scratch and of buffers (from first to last use in an instance) in a run with these times.
std::vector<Use1> uses_in(const Program& p, const MemoryPlan& plan, const std::vector<Expanded>& ops,
                          const std::vector<std::pair<double, double>>& times) {
  std::map<std::pair<int, int>, Use1> buffers;  // by instance and buffer
  std::vector<Use1> all;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto& e = ops[i];
    for (const Use& use : e.step->operands) {
      const auto b = static_cast<std::size_t>(use.buffer);
      if (p.buffers[b].lifetime != Lifetime::kTransient || p.buffers[b].place == Place::kHost) continue;
      const std::int64_t at = plan.buffer_offset[b];
      Use1& u = buffers
                    .try_emplace({e.instance, use.buffer},
                                 Use1{1e300, 0, at, at + p.buffers[b].bytes().value, p.buffers[b].name})
                    .first->second;
      u.start = std::min(u.start, times[i].first);
      u.end = std::max(u.end, times[i].second);
    }
    const std::int64_t at = plan.scratch_offset[static_cast<std::size_t>(e.body)][static_cast<std::size_t>(e.op)];
    if (at >= 0)
      all.push_back(
          {times[i].first, times[i].second, at, at + e.step->scratch.value, "scratch of " + kind_of(e.step->op)});
  }
  for (const auto& [key, use] : buffers) all.push_back(use);
  return all;
}

// Whatever time ops take on their streams, no byte is in use for two purposes at once.
RC_GTEST_PROP(Memory, NothingOverlapsWhileItLives, (bool tied)) {
  const Program p = build(tiny(tied), *any_setting());
  const MemoryPlan plan = plan_memory(p);
  const auto ops = expand(p);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  // Most durations are short and some very long, so that streams drift far apart.
  const auto times = run_times(ops, [&] { return std::pow(std::uniform_real_distribution<>(0.1, 1.0)(random), -3.0); });
  auto uses = uses_in(p, plan, ops, times);
  std::sort(uses.begin(), uses.end(), [](const Use1& a, const Use1& b) { return a.start < b.start; });
  for (std::size_t i = 0; i < uses.size(); ++i) {
    RC_ASSERT(uses[i].last <= plan.peak.value);
    for (std::size_t j = i + 1; j < uses.size() && uses[j].start < uses[i].end; ++j)
      if (uses[i].first < uses[j].last && uses[j].first < uses[i].last)
        RC_FAIL(uses[i].name + " and " + uses[j].name + " share bytes while both live");
  }
}

TEST(Memory, HighWaterHoldsWhatIsLive) {
  for (const int zero : {0, 1, 2, 3}) {
    const Program p = build(tiny(), setting_of(2, zero, zero % 2 == 1, 8));
    const MemoryPlan plan = plan_memory(p);
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
        const Step& step = p.bodies[b].steps[k];
        for (const Use& use : step.operands) {
          const auto i = static_cast<std::size_t>(use.buffer);
          ASSERT_LE(plan.buffer_offset[i] + p.buffers[i].bytes().value, plan.high_water[b][k]);
        }
        ASSERT_LE(plan.scratch_offset[b][k] + step.scratch.value, plan.high_water[b][k]);
        ASSERT_LE(plan.high_water[b][k], plan.peak.value);
      }
  }
}

// Persistent memory of a rank by strategy, in bytes per parameter. It is compared with published formulas: those of
// Rajbhandari et al. 2020 (Fig. 1) and, for groups of S among N ranks, those of FSDP's hybrids (Zhao et al. 2023) and
// of Megatron. Weights are w, gradients g, and optimizer states k. In fp32, k is 8 for the moments, instead of 12 in
// mixed precision. Gradients are in fp32 in bf16 runs too, so g is 4.
struct Bytes3 {
  double w, g, k;
};
struct Strategy {
  const char* name;
  Setting setting;
  double (*formula)(const Bytes3&);
};
constexpr double kN = 4, kS = 2;

std::vector<Strategy> strategies() {
  using B = const Bytes3&;
  return {{"NO_SHARD", setting_of(4, 0, false, 8), [](B b) { return b.w + b.g + b.k; }},
          {"ZeRO-1", setting_of(4, 1, false, 8), [](B b) { return b.w + b.g + b.k / kN; }},
          {"ZeRO-2", setting_of(4, 2, false, 8), [](B b) { return b.w + (b.g + b.k) / kN; }},
          {"ZeRO-3", setting_of(4, 3, false, 8), [](B b) { return (b.w + b.g + b.k) / kN; }},
          {"HYBRID_SHARD", hybrid(2, 2, 3, false), [](B b) { return (b.w + b.g + b.k) / kS; }},
          {"HYBRID_SHARD_ZERO2", hybrid(2, 2, 2, false), [](B b) { return b.w + (b.g + b.k) / kS; }},
          {"HYBRID_SHARD, optimizer over all", hybrid(2, 2, 3, true), [](B b) { return (b.w + b.g) / kS + b.k / kN; }}};
}

TEST(Memory, StrategiesReachTheFormulas) {
  arch::Architecture a = tiny();
  a.layers = 12;
  for (const auto& [compute, bytes] : {std::pair{DType::kF32, Bytes3{4, 4, 8}}, {DType::kBF16, Bytes3{2, 4, 12}}})
    for (const Strategy& strategy : strategies()) {
      Setting s = strategy.setting;
      s.compute = compute;
      const Program p = build(a, s);
      const MemorySummary m = summarize(p, plan_memory(p));
      double parameters = 0;
      for (const auto& u : p.units) parameters += static_cast<double>(u.elements);
      // Each kind of a unit's state (weights, gradients, two moments, master) is cut in blocks of 16 elements. The
      // first rank has up to one block more than its share, or one and a half blocks when states are cut twice.
      const double slack = static_cast<double>(p.units.size()) * 5 * 64 * (s.own_over_dp ? 1.5 : 1.0);
      const double planned = static_cast<double>((m.parameters + m.gradients + m.optimizer).value),
                   published = strategy.formula(bytes);
      fmt::print("{:<5}{:<33}{:6.3f} bytes a parameter, published {:6.3f}\n", name_of(compute), strategy.name,
                 planned / parameters, published);
      EXPECT_GE(planned, published * parameters) << strategy.name;
      EXPECT_LE(planned, published * parameters + slack) << strategy.name;
      EXPECT_LT(slack, 0.25 * parameters) << "figures of a type that differ are a byte apart";
    }
}

// At any time, memory holds the gathered parameters that are in use and those of `prefetch` units ahead.
TEST(Memory, PrefetchBoundsTheGatheredParameters) {
  arch::Architecture a = tiny();
  a.layers = 16;
  a.vocabulary = 50;  // makes embedding and head smaller than a layer
  std::vector<std::int64_t> peaks;
  for (const int prefetch : {0, 1, 2, 3}) {
    Setting s = setting_of(2, 3, true, 4);
    s.sequence = 8;
    s.prefetch = prefetch;
    const Program p = build(a, s);
    const MemoryPlan plan = plan_memory(p);
    peaks.push_back((plan.peak - plan.persistent).value);
    EXPECT_TRUE(verify(p).empty());
  }
  const std::int64_t layer = build(a, setting_of(2, 3, false, 4)).units[1].elements * 4;
  for (std::size_t i = 1; i < peaks.size(); ++i) {
    EXPECT_GT(peaks[i], peaks[i - 1]);
    EXPECT_LE(peaks[i] - peaks[i - 1], 2 * layer);
  }
}

TEST(Memory, RecomputeNeedsLess) {
  auto a = tiny();
  a.layers = 12;
  const auto full = plan_memory(build(a, setting_of(1, 0, true, 2))),
             none = plan_memory(build(a, setting_of(1, 0, false, 2)));
  EXPECT_LT((full.peak - full.persistent).value * 2, (none.peak - none.persistent).value);
}

TEST(Memory, ZeroOneShardsTheMoments) {
  const Program p = build(tiny(), setting_of(4, 1, false, 8)), q = build(tiny(), setting_of(4, 0, false, 8));
  const auto sharded = summarize(p, plan_memory(p)), whole = summarize(q, plan_memory(q));
  EXPECT_EQ(sharded.parameters, whole.parameters);
  // Each rank holds a quarter of the optimizer states, except for the alignment of each unit.
  EXPECT_LE(sharded.optimizer.value, whole.optimizer.value / 4 + static_cast<std::int64_t>(p.units.size()) * 2 * 64);
}

TEST(Program, ALargeModelStaysSmall) {
  Setting s = setting_of(8, 1, true, 1600);
  s.micro_batch = 1;
  s.sequence = 2048;
  const Program p = build(arch::preset("gpt-175b"), s);
  EXPECT_LE(p.bodies.size(), 4u);
  EXPECT_GT(plan_memory(p).peak.value, std::int64_t{174} * 1000 * 1000 * 1000 * 8);
}

TEST(Layout, OwnedRangesTile) {
  for (const std::int64_t elements : {0, 16, 48, 1600, 4111 * 16})
    for (int ranks = 1; ranks < 9; ++ranks) {
      std::int64_t at = 0;
      for (int r = 0; r < ranks; ++r) {
        const auto [first, last] = owned_range(elements, r, ranks);
        EXPECT_EQ(first, at);
        EXPECT_LE(last - first, owned_range(elements, 0, ranks).second);
        at = last;
      }
      EXPECT_EQ(at, elements);
    }
}

// Each parameter has one place, whatever the units are. No unit has layers of two chunks.
TEST(Layout, UnitsHoldEveryParameterOnce) {
  auto a = tiny(false);
  a.layers = 5;
  const auto parameters = arch::parameters(a);
  const std::vector<Chunk> chunks{{0, 0, 3, true, false}, {1, 3, a.layers, false, true}};
  const auto names = [&](std::int64_t unit_layers) {
    std::vector<std::string> names;
    std::vector<int> places(parameters.size());
    for (const Unit& u : make_units(chunks, parameters, 1, unit_layers)) {
      names.push_back(u.name);
      std::int64_t end = 0;
      for (const auto& entry : u.entries) {
        const auto& p = parameters[static_cast<std::size_t>(entry.parameter)];
        EXPECT_GE(entry.offset, end) << u.name;
        end = entry.offset + p.elements();
        EXPECT_TRUE(p.layer < 0 ? !u.of_layers() : u.first <= p.layer && p.layer < u.end) << p.name << " in " << u.name;
        ++places[static_cast<std::size_t>(entry.parameter)];
      }
      EXPECT_LE(end, u.elements);
    }
    EXPECT_EQ(std::count(places.begin(), places.end(), 1), std::ssize(places));
    return names;
  };
  EXPECT_EQ(names(2)[1], "layers.0-1");
  EXPECT_EQ(names(2)[2], "layer.2") << "a chunk ends here";
  EXPECT_EQ(names(kHalfLayer)[1], "layer.0.attention");
  EXPECT_EQ(names(kHalfLayer)[2], "layer.0.mlp");
  EXPECT_EQ(names(1).size(), static_cast<std::size_t>(a.layers) + 2);
  EXPECT_EQ(names(a.layers).size(), 4u);
}

TEST(Text, ErrorsNameTheLine) {
  const std::string text = print(build(tiny(), setting_of(2, 0, false, 4)));
  const auto fails_with = [&](const std::string& from, const std::string& to, const std::string& want) {
    std::string edited = text;
    const auto at = edited.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    edited.replace(at, from.size(), to);
    try {
      parse(edited, "p.txt");
      FAIL() << "accepted " << to;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(want), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("p.txt"), std::string::npos) << error.what();
    }
  };
  fails_with("part=embed", "part=embet", "unknown part");
  fails_with("writes=y:x.0", "writes=y:y.0", "no buffer 'y.0'");
  fails_with("stream=compute", "stream=computer", "unknown stream");
  fails_with("molen-program 16", "molen-program 13", "is of version 13, and this molen reads version 16");
  fails_with("role=param unit=embed", "role=parm unit=embed", "role=parm is no value; did you mean 'param'?");
  fails_with("role=param unit=embed", "role=param unit=embet", "unit=embet: this stage has no such unit");
  fails_with("role=param unit=embed", "role=param", "role=param belongs to a unit");
  fails_with("role=ids", "role=ids unit=embed", "role=ids does not belong to a unit");
  fails_with("role=ids", "copy=1", "a buffer without role=VALUE");
  fails_with("role=ids", "role=ids layr=1", "a buffer has no field 'layr'; did you mean 'layer'?");
  fails_with("role=ids", "role=ids layer=-1", "layer=-1 is no number from 0 to");
  fails_with("role=ids", "role=ids piece=65", "piece=65 is no number from 0 to 64");
  fails_with("\"llama\"", "\"lama\"", "'lama'");
  fails_with("schedule first", "schedule fist", "unknown body");
  fails_with("after=%", "after=%9", "not there");
  fails_with("buffer ids i32", "buffer ids i33", "i33");
  fails_with("forward part=down", "forward part=combine", "the model has no experts, and so no part combine");
  const std::string sum = "all_reduce axis=dp";
  fails_with(sum, "all_reduce axis=cp payload=load layer=0", "the model has no experts, and so no load");
  fails_with(sum, "all_gather axis=ep payload=offsets layer=0", "the model has no experts, and so no offsets");
  fails_with(sum, "all_to_all axis=ep payload=expert_rows layer=0", "the model has no experts, and so no expert_rows");
  fails_with(sum, "all_to_all axis=ep payload=keys layer=0", "expert ranks send each other no keys");
}

// The memory that a parsed program needs is bounded by the size of its text, whatever the text says.
TEST(Text, HostileTextsAreBounded) {
  const std::string text = print(build(tiny(), setting_of(2, 0, false, 4)));
  const auto parsed = [](const std::string& hostile) { return [hostile] { parse(hostile, "p.txt"); }; };
  constexpr int kPart = kSanitized ? 8 : 1;  // the release build takes the whole size
  std::string buffers, bodies, steps = "body hostile\n";
  for (int i = 0; i < 400'000 / kPart; ++i) buffers += fmt::format("buffer b{} u8 1 transient role=ids\n", i);
  for (int i = 0; i < 400'000 / kPart; ++i) bodies += fmt::format("body b{}\n", i);
  for (int i = 0; i < 100'000 / kPart; ++i)
    steps += fmt::format("%{} load_batch writes=ids:ids,labels:labels,scalars:scalars stream=compute phase=data{}\n", i,
                         i > 0 ? fmt::format(" after=%{}", i - 1) : "");
  const std::size_t schedule = text.find("schedule ");
  const auto with = [&](const std::string& more) { return std::string(text).insert(schedule, more); };
  constexpr int kShadow = 3;  // the red zones of many small blocks
  EXPECT_EQ(bounded("a program of 400,000 buffers", parsed(with(buffers)), kShadow), "");
  EXPECT_NE(bounded("the same, and an op that names none of them",
                    parsed(with(buffers + "body b\n%1 load_batch stream=compute phase=data reads=x:x\n")), kShadow),
            "");
  EXPECT_EQ(bounded("a program of 400,000 bodies", parsed(with(bodies))), "");
  EXPECT_EQ(bounded("a body of 100,000 ops", parsed(with(steps))), "");
  // Two megabytes that expand to 5e10 ops.
  std::string instances = "schedule";
  for (int i = 0; i < 500'000; ++i) instances += " hostile";
  EXPECT_NE(bounded("a body of 100,000 ops 500,000 times", parsed(text.substr(0, schedule) + steps + instances + "\n"))
                .find("ops and edges"),
            std::string::npos);
  std::string words = "molen-program 16\n";
  for (int i = 0; i < 8'000'000; ++i) words += "x ";
  EXPECT_NE(bounded("a line of 8 million words", parsed(words)).find("words on a line"), std::string::npos);
  EXPECT_NE(bounded("32 MiB of empty lines", parsed(std::string(32 << 20, '\n'))), "");
  EXPECT_NE(bounded("more than 32 MiB", parsed(std::string((32 << 20) + 1, '\n'))).find("more than the"),
            std::string::npos);
}

TEST(Text, ASchedulesOpsAreCountedBeforeTheyAreExpanded) {
  const std::string text = print(build(tiny(), setting_of(2, 0, false, 4)));
  std::string body = "body many\n";
  for (int i = 0; i < 3000; ++i)
    body += fmt::format("%{} load_batch writes=ids:ids,labels:labels,scalars:scalars stream=compute phase=data\n", i);
  const auto refused = [&](std::int64_t times) -> std::string {
    std::string schedule = "schedule";
    for (std::int64_t i = 0; i < times; ++i) schedule += " many";
    try {
      parse(text.substr(0, text.find("schedule ")) + body + schedule + "\n", "p.txt");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  const std::int64_t most = kMaxExpanded / 3000;
  EXPECT_EQ(refused(most), "");
  EXPECT_NE(refused(most + 1).find("expands to more than 134217728 ops and edges"), std::string::npos);
}

// At most `prefetch` units are gathered ahead of the one in use. A gather therefore waits for the last reader of the
// unit whose place it takes.
TEST(Sharding, AGatherWaitsForTheUnitItReplaces) {
  for (const int ahead : {0, 1, 2}) {
    Setting s = setting_of(2, 3, false, 4);
    s.prefetch = ahead;
    const Program p = build(tiny(), s);
    int bounded = 0;
    for (const Body& body : p.bodies) {
      std::vector<std::size_t> gathers;
      for (std::size_t k = 0; k < body.steps.size(); ++k)
        if (const auto* g = std::get_if<AllGather>(&body.steps[k].op); g && g->axis == Axis::kShard)
          gathers.push_back(k);
      const auto last_reader = [&](std::size_t gather) {
        const int buffer = body.steps[gather].operand(Arg::kTo).buffer;
        std::size_t last = gather;
        for (std::size_t k = gather + 1; k < body.steps.size(); ++k)
          for (const Use& use : body.steps[k].operands)
            if (use.buffer == buffer && use.reads()) last = k;
        return static_cast<int>(last);
      };
      for (std::size_t c = static_cast<std::size_t>(ahead) + 1; c < gathers.size(); ++c) {
        const int bound = last_reader(gathers[c - static_cast<std::size_t>(ahead) - 1]);
        const auto& after = body.steps[gathers[c]].after;
        EXPECT_TRUE(
            std::any_of(after.begin(), after.end(), [&](const OpRef& r) { return r.body < 0 && r.op == bound; }))
            << body.name << " gather " << c << ", " << ahead << " ahead: not after op " << bound;
        ++bounded;
      }
    }
    EXPECT_GT(bounded, 0);
  }
}

// An index in a text is accepted up to the last existing item, and no further.
TEST(Text, NumbersBeyondWhatIsThereAreRefused) {
  const auto p = build(tiny(), setting_of(2, 0, false, 4));
  const std::string text = print(p);
  const auto accepted = [&](const std::string& where, const std::string& from, const std::string& to) {
    try {
      parse(rewrite(text, {where}, from, to), "p.txt");
      return true;
    } catch (const UsageError&) {
      return false;
    }
  };
  const std::int64_t layers = p.arch.layers, chunks = p.setting.head_chunks();
  const std::string last = fmt::format("layer={}", layers - 1);
  EXPECT_TRUE(accepted(" forward part=down " + last, last, "layer=0"));
  for (const std::int64_t wrong : {layers, layers + 1, std::int64_t{-1}})
    EXPECT_FALSE(accepted(" forward part=down " + last, last, fmt::format("layer={}", wrong))) << wrong;
  for (const std::int64_t wrong : {chunks, chunks + 1, std::int64_t{-1}})
    EXPECT_FALSE(accepted("part=head", "chunk=0", fmt::format("chunk={}", wrong))) << wrong;
  EXPECT_TRUE(accepted("reduce_scalars", "count=2", "count=1"));
  for (const char* wrong : {"count=0", "count=-1", "count=99"})
    EXPECT_FALSE(accepted("reduce_scalars", "count=2", wrong)) << wrong;
  EXPECT_FALSE(accepted("reduce_scalars", "first=0", "first=99"));
  const std::string beyond = fmt::format("count={}", static_cast<int>(kNumScalars) + 1);
  EXPECT_FALSE(accepted("reduce_scalars", "count=2", beyond));
  const std::string both = fmt::format("first=1 count={}", static_cast<int>(kNumScalars));
  EXPECT_FALSE(accepted("reduce_scalars", "first=0 count=2", both)) << "one more than is left";
}

// A text names choices, so a reader needs no table of numbers.
TEST(Text, ChoicesAreNames) {
  Setting s = setting_of(2, 1, false, 4);
  s.unit_layers = kHalfLayer;
  const std::string text = print(build(tiny(), s));
  for (const char* name : {"\"family\":\"llama\"", "\"norm\":\"rms\"", "\"position\":\"rope\"",
                           "\"activation\":\"swiglu\"", "unit_layers=half"})
    EXPECT_NE(text.find(name), std::string::npos) << name;
}

TEST(Text, BeginsWithItsMemoryAndIsTheSameWithoutComments) {
  Setting s = setting_of(2, 1, false, 4);
  s.offload.optimizer = true;
  const Program p = build(tiny(), s);
  const auto plan = plan_memory(p);
  const std::string text = print(p, plan);
  EXPECT_EQ(text.find(fmt::format("# planned peak {} bytes", plan.peak.value)),
            std::string("molen-program 16\n").size());
  EXPECT_NE(text.find(fmt::format("# on the host {} bytes", plan.host.value)), std::string::npos);
  EXPECT_EQ(without_comments(text), print(p));
  EXPECT_EQ(parse(text, "with its plan"), p);
}

TEST(Build, RefusesWhatItCannotHonour) {
  Setting s = setting_of(1, 4, false, 4);
  EXPECT_THROW(build(tiny(), s), UsageError);
  s = hybrid(1, 2, 3, false);
  EXPECT_THROW(build(tiny(), s), UsageError);  // nothing to shard over
  s = hybrid(2, 1, 3, true);
  EXPECT_THROW(build(tiny(), s), UsageError);  // no replicas
  s = setting_of(1, 0, false, 4);
  s.mesh[mesh::Axis::kCp] = 2;
  EXPECT_THROW(build(tiny(), s), UsageError);
  s.mesh = mesh::kOne;
  s.compute = DType::kF64;  // which the fused kernels do not have
  EXPECT_THROW(build(tiny(), s), UsageError);
  s = setting_of(2, 0, false, 4);
  s.offload.gradients = true;
  EXPECT_THROW(build(tiny(), s), UsageError);  // the optimizer is on the device
  s.offload = {true, false, true};
  s.zero = 1;
  EXPECT_THROW(build(tiny(), s), UsageError);  // the rank updates only a part of what it keeps
  s = hybrid(2, 2, 3, true);
  s.offload = {true, false, true};
  EXPECT_THROW(build(tiny(), s), UsageError);
}

// Each refusal names the key, and each number is at its place in the message.
TEST(Build, RefusalsNameTheirFigures) {
  const auto why = [](const Setting& s) -> std::string {
    try {
      build(tiny(), s);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  Setting s = setting_of(1, 0, false, 0);
  EXPECT_EQ(why(s), "batch.global: must be at least 1, is 0");
  s = setting_of(1, 0, false, 4), s.micro_batch = 0;
  EXPECT_EQ(why(s), "batch.micro: must be at least 1, is 0");
  s = setting_of(1, 0, false, 4), s.sequence = 0;
  EXPECT_EQ(why(s), "data.sequence_length: must be at least 1, is 0");
  EXPECT_EQ(why(hybrid(1, 5, 2, false)),
            "parallel.data_shard: ZeRO-2 has nothing to shard over with 5 replicas of one rank");
  s = setting_of(1, 0, false, 4), s.mesh[mesh::Axis::kCp] = 4;
  EXPECT_NE(why(s).find("4 ranks have two pieces each of every sequence; 150 tokens"), std::string::npos) << why(s);
  s = setting_of(1, 0, false, 4), s.mesh[mesh::Axis::kTp] = 2, s.sequence_parallel = true, s.sequence = 1,
  s.micro_batch = 1;
  EXPECT_NE(why(s).find("1 tokens of a micro-batch have no row for each of 2 tensor ranks"), std::string::npos)
      << why(s);
}

// Guarded ops wait on every stream. A flag that is read before the decision would be that of the last step, or
// undefined.
TEST(Streams, GuardedOpsWaitForTheAgreement) {
  for (const bool parameters : {false, true}) {
    Setting s = setting_of(2, parameters ? 3 : 1, false, 8);
    s.offload.optimizer = true;
    s.offload.gradients = s.offload.parameters = parameters;
    const Program p = build(tiny(), s);
    const auto ops = expand(p);
    std::vector<bool> after_agree(ops.size(), false);  // whether the agreement is known to have ended before
    std::array<bool, kNumStreams> stream{};
    int guarded = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      bool& known = stream[static_cast<std::size_t>(ops[i].step->stream)];
      for (const int a : ops[i].after) known = known || after_agree[static_cast<std::size_t>(a)];
      if (ops[i].step->unless) {
        ++guarded;
        EXPECT_TRUE(known) << kind_of(ops[i].step->op) << " " << ops[i].op;
      }
      known = known || std::holds_alternative<SetFlag>(ops[i].step->op);
      after_agree[i] = known;
    }
    EXPECT_GE(guarded, static_cast<int>(p.units.size()));
  }
}

// A 16-bit type halves the bytes of gradient messages, which have as many elements as before. It changes no other size.
TEST(Messages, HalveWhatTravelsOfGradients) {
  const auto moved = [](const Program& p) {
    std::map<std::string, std::int64_t> bytes;
    for (const Expanded& e : expand(p))
      if (const auto axis = axis_of(e.step->op))
        bytes[fmt::format("{}/{}/{}", name_of(*axis), e.step->phase == Phase::kGradientReduce ? "gradients" : "others",
                          kind_of(e.step->op))] += e.step->moved.value;
    return bytes;
  };
  std::vector<Setting> settings{setting_of(2, 0, false, 8), setting_of(3, 1, false, 12), setting_of(2, 2, true, 12),
                                setting_of(2, 3, false, 8), hybrid(2, 2, 3, false),      hybrid(2, 2, 2, true)};
  settings.push_back(setting_of(2, 2, false, 8));  // sums over tensor ranks keep their type
  settings.back().mesh[mesh::Axis::kTp] = 2;
  for (Setting s : settings) {
    SCOPED_TRACE(sharding_text(s));
    const auto wide = moved(build(tiny(), s));
    for (const DType type : {DType::kBF16, DType::kF16}) {
      s.reduce = type;
      const Program p = build(tiny(), s);
      EXPECT_TRUE(verify(p).empty());
      EXPECT_EQ(parse(print(p), "text"), p);
      const auto narrow = moved(p);
      ASSERT_EQ(narrow.size(), wide.size());
      int halved = 0;
      for (const auto& [what, bytes] : wide) {
        const bool half = what.find("gradients") != std::string::npos && !what.starts_with("tp/");
        EXPECT_EQ(narrow.at(what), half ? bytes / 2 : bytes) << what;
        halved += half;
      }
      EXPECT_GE(halved, 1);
      // Gradients themselves keep the wide type, and all messages share the memory of the largest one.
      std::int64_t largest = 0, all = 0;
      for (const Buffer& b : p.buffers)
        if (b.name.starts_with("grad.")) {
          EXPECT_EQ(b.dtype, DType::kF32) << b.name;
        } else if (b.role == Value::kGradCommunication) {
          EXPECT_EQ(b.dtype, type);
          EXPECT_EQ(b.lifetime, Lifetime::kTransient);
          largest = std::max(largest, b.bytes().value);
          all += b.bytes().value;
        }
      EXPECT_GT(all, largest);
      const Bytes more = plan_memory(p).peak - plan_memory(build(tiny(),
                                                                 [&] {
                                                                   Setting w = s;
                                                                   w.reduce = DType::kF32;
                                                                   return w;
                                                                 }()))
                                                   .peak;
      EXPECT_LE(more.value, largest + 2 * (arch::kWidenBlock * 4 + 64));
    }
  }
}

TEST(Messages, AreNotNarrowerThanTheirProof) {
  Setting s = setting_of(2, 1, false, 8);
  s.compute = s.master = DType::kF64;
  s.kernels = arch::Kernels::kReference;
  s.reduce = DType::kBF16;
  EXPECT_THROW(build(tiny(), s), UsageError);
  s.reduce = DType::kI32;
  EXPECT_THROW(build(tiny(), s), UsageError);
}

// An fp16 program equals the bf16 program, except for the scratch of its kernels, which widen more values, and for the
// attributes that state the type and the check for overflow. The loss scale is data of the step and no part of the
// program.
TEST(Build, TakesBothTypesOf16Bits) {
  Setting s = setting_of(2, 1, true, 8);
  s.kernels = arch::Kernels::kAten;
  s.compute = DType::kF16;
  Program half = build(tiny(), s);
  EXPECT_TRUE(verify(half).empty());
  EXPECT_EQ(parse(print(half), "text"), half);
  s.compute = DType::kBF16;
  Program other = build(tiny(), s);
  EXPECT_GE(plan_memory(half).peak, plan_memory(other).peak);
  for (Program* p : {&half, &other})
    for (Body& body : p->bodies)
      for (Step& step : body.steps) {
        step.scratch = Bytes(0);
        step.attributes.compute.reset();
        step.attributes.scaled = false;
      }
  EXPECT_EQ(half.bodies, other.bodies);
  EXPECT_EQ(half.schedule, other.schedule);
}

}  // namespace
}  // namespace molen::program
