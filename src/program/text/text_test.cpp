// Tests the setting line of a program's text: all fields of a setting survive printing and parsing, and refusals name
// their cause.
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/test_golden.h"
#include "program/build/build.h"
#include "program/build/recompute.h"
#include "program/ir/program.h"
#include "program/test_edit.h"
#include "program/text/excerpt.h"
#include "program/text/text.h"
#include "program/text/text_detail.h"

namespace molen::program::detail {
namespace {

// Returns a setting in which no value is a default and no two numbers are equal.
Setting unusual() {
  Setting s;
  s.purpose = Purpose::kEvaluate;
  s.mesh = mesh::PerAxis{};
  s.mesh[mesh::Axis::kDpReplicate] = 2;
  s.mesh[mesh::Axis::kDpShard] = 3;
  s.mesh[mesh::Axis::kCp] = 4;
  s.mesh[mesh::Axis::kTp] = 5;
  s.mesh[mesh::Axis::kPp] = 6;
  s.mesh[mesh::Axis::kEp] = 7;
  s.order = {mesh::Axis::kTp,      mesh::Axis::kCp,          mesh::Axis::kPp,
             mesh::Axis::kDpShard, mesh::Axis::kDpReplicate, mesh::Axis::kEp};
  s.zero = 2;
  s.own_over_dp = true;
  s.sequence_parallel = true;
  s.tensor_chunks = 7;
  s.expert_tiles = 15;
  s.context_form = ContextForm::kRing;
  s.unit_layers = 8;
  s.prefetch = 9;
  s.offload = {true, true, false, true};
  s.pipeline.schedule = ScheduleKind::kZbV;
  s.pipeline.placement = Placement::kV;
  s.pipeline.chunks = 2;
  s.pipeline.halves = true;
  s.pipeline.layers = {3, 4, 5};
  s.pipeline.stage = 1;
  s.recompute = recompute_from_text("attention");
  s.global_batch = 10;
  s.micro_batch = 11;
  s.sequence = 12;
  s.document_mask = true;
  s.compute = DType::kBF16;
  s.master = DType::kF64;
  s.reduce = DType::kF16;
  s.kernels = arch::Kernels::kAten;
  s.threads = 13;
  s.head_chunk = 14;
  return s;
}

std::map<std::string, std::string> values_of(const Setting& s) {
  std::map<std::string, std::string> values;
  std::istringstream in(setting_to_text(s));
  for (std::string word; in >> word;) values[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  return values;
}

std::string refusal(const Setting& s, const std::string& key, const std::string& value) {
  auto values = values_of(s);
  values[key] = value;
  try {
    (void)setting_from_text(values, "p.txt:3");
    return "accepted";
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
}

TEST(SettingText, HoldsAllOfASetting) {
  EXPECT_EQ(setting_from_text(values_of(unusual()), "x"), unusual());
  EXPECT_EQ(setting_from_text(values_of(Setting{}), "x"), Setting{});
  Setting s = unusual();
  s.unit_layers = kHalfLayer;
  s.pipeline.layers.clear();
  s.kernels = arch::Kernels::kReference;
  EXPECT_EQ(setting_from_text(values_of(s), "x"), s);
  EXPECT_EQ(setting_to_text(unusual()),
            "purpose=evaluate dp_replicate=2 dp_shard=3 cp=4 tp=5 order=tp,cp,pp,dp_shard,dp_replicate,ep "
            "sequence_parallel=1 zero=2 own_over_dp=1 prefetch=9 offload=optimizer,gradients,activations "
            "recompute=attention global_batch=10 micro_batch=11 sequence=12 document_mask=1 compute=bf16 master=fp64 "
            "reduce=fp16 kernels=aten threads=13 head_chunk=14 context_form=ring ep=7 tensor_chunks=7 expert_tiles=15 "
            "unit_layers=8 pp=6 schedule=zb-v placement=v chunks=2 halves=1 stage=1 layers=3,4,5");
}

TEST(SettingText, EveryKeyIsNeeded) {
  // Keys that older texts lack keep their defaults.
  const std::map<std::string, bool> optional{
      {"tensor_chunks", true}, {"expert_tiles", true}, {"unit_layers", true}, {"layers", true}, {"ep", true}};
  for (const auto& [key, value] : values_of(unusual())) {
    auto values = values_of(unusual());
    values.erase(key);
    try {
      (void)setting_from_text(values, "p.txt:3");
      EXPECT_TRUE(optional.contains(key)) << key;
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()), "p.txt:3: setting has no '" + key + "'");
      EXPECT_FALSE(optional.contains(key)) << key;
    }
  }
}

// A key that no part of the setting reads would be ignored without a word.
TEST(SettingText, KeysWithoutAMeaningAreRefused) {
  const Setting plain;
  EXPECT_EQ(refusal(plain, "optimzer", "lion"),
            "p.txt:3: setting optimzer=lion has no meaning here; did you mean 'optimizer'?");
  EXPECT_EQ(refusal(plain, "optimizer", "lion"), "accepted");
  EXPECT_EQ(refusal(plain, "context_form", "ring"), "p.txt:3: setting context_form=ring has no meaning here");
  EXPECT_EQ(refusal(plain, "schedule", "zb-v"), "p.txt:3: setting schedule=zb-v has no meaning here");
  for (const char* key : {"compute", "master", "reduce", "order", "optimizer"})
    EXPECT_TRUE(refusal(plain, key, "x").starts_with(fmt::format("p.txt:3: setting {}: ", key)))
        << refusal(plain, key, "x");
}

// Sizes that the model cannot have are refused where the setting states them.
TEST(SettingText, ExpertsThatDoNotDivideAreRefusedWithTheirLine) {
  Setting s = setting_of(2, 1, false, 8);
  s.mesh[mesh::Axis::kDpShard] = 1;
  s.mesh[mesh::Axis::kEp] = 5;
  s.global_batch = 10;
  const std::string text = print(build(tiny_sparse(), s));
  const std::string said = program::refusal(rewrite(text, {"setting "}, " ep=5", " ep=2"));
  EXPECT_TRUE(said.starts_with("edited:3: ")) << said;
  EXPECT_NE(said.find("5 experts"), std::string::npos) << said;
}

TEST(SettingText, NumbersHaveTheirRanges) {
  struct Case {
    const char* key;
    std::int64_t low, high;
  };
  for (const auto& [key, low, high] : std::vector<Case>{{"dp_replicate", 1, 1 << 20},
                                                        {"dp_shard", 1, 1 << 20},
                                                        {"cp", 1, 1 << 16},
                                                        {"tp", 1, 1 << 16},
                                                        {"pp", 1, 1 << 16},
                                                        {"sequence_parallel", 0, 1},
                                                        {"unit_layers", 1, 1 << 16},
                                                        {"own_over_dp", 0, 1},
                                                        {"prefetch", 0, 1 << 16},
                                                        {"zero", 0, 3},
                                                        {"global_batch", 1, std::int64_t{1} << 40},
                                                        {"micro_batch", 1, 1 << 30},
                                                        {"sequence", 1, 1 << 30},
                                                        {"document_mask", 0, 1},
                                                        {"threads", 1, 1 << 16},
                                                        {"head_chunk", 1, 1 << 30}}) {
    const Setting plain;
    const auto why = [&](const std::string& value) {
      return fmt::format("p.txt:3: setting {}={} must be an integer in [{}, {}]", key, value, low, high);
    };
    const bool further = std::string_view(key) == "pp" || std::string_view(key) == "cp";  // need further keys
    for (const std::int64_t good : {low, high}) {
      const std::string said = further ? "accepted" : refusal(plain, key, std::to_string(good));
      EXPECT_EQ(said, "accepted") << key << " " << good;
    }
    for (const std::string& bad : {std::to_string(low - 1), std::to_string(high + 1), std::string("x"), std::string(""),
                                   std::string("1x"), std::string("99999999999999999999")})
      EXPECT_EQ(refusal(plain, key, bad), why(bad));
  }
  Setting s = unusual();
  EXPECT_EQ(refusal(s, "stage", "6"), "p.txt:3: setting stage=6 must be an integer in [0, 5]");
  EXPECT_EQ(refusal(s, "stage", "5"), "accepted");
  EXPECT_EQ(refusal(s, "halves", "2"), "p.txt:3: setting halves=2 must be an integer in [0, 1]");
  for (const char* bad : {"1", "3"})
    EXPECT_EQ(refusal(s, "chunks", bad), fmt::format("p.txt:3: setting chunks={} must be an integer in [2, 2]", bad));
  s.pipeline.placement = Placement::kInterleaved;
  EXPECT_EQ(refusal(s, "chunks", "0"), "p.txt:3: setting chunks=0 must be an integer in [1, 65536]");
  EXPECT_EQ(refusal(s, "chunks", "65536"), "accepted");
}

TEST(SettingText, NamesAreOfTheirList) {
  const GoldenMessages golden;
  const Setting s = unusual();
  EXPECT_EQ(refusal(s, "purpose", "training"), "p.txt:3: purpose must be train or evaluate");
  EXPECT_EQ(refusal(s, "purpose", "train"), "accepted");
  EXPECT_EQ(refusal(s, "schedule", "x"),
            "p.txt:3: setting schedule=x must be one of gpipe, 1f1b, interleaved, zb-h1, zb-v, file");
  EXPECT_EQ(refusal(s, "placement", "x"), "p.txt:3: setting placement=x must be one of interleaved, v");
  EXPECT_EQ(refusal(s, "context_form", "x"), "p.txt:3: setting context_form=x must be one of gather, ring");
  for (const char* good : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "file"})
    EXPECT_EQ(refusal(s, "schedule", good), "accepted") << good;
  EXPECT_EQ(refusal(s, "kernels", "x"), "p.txt:3: setting kernels=x must be one of reference, fused, aten");
  for (const char* good : {"reference", "fused", "aten"}) EXPECT_EQ(refusal(s, "kernels", good), "accepted");
  for (const char* bad : {"x", "", "3,", ",3", "3;4", "0", "-1", "2147483649"})
    EXPECT_EQ(refusal(s, "layers", bad),
              fmt::format("p.txt:3: setting layers={} must be a list of layers such as 3,4", bad));
  EXPECT_EQ(refusal(s, "layers", "2147483648"), "accepted");
  for (const char* bad : {"x", "optimizer,x", "optimizer,optimizer", "none,optimizer"})
    EXPECT_EQ(refusal(s, "offload", bad),
              fmt::format("p.txt:3: setting offload={} must be none, or a list such as optimizer,gradients", bad));
  EXPECT_TRUE(refusal(s, "recompute", "x").starts_with("p.txt:3: setting recompute: ")) << refusal(s, "recompute", "x");
  Setting many;
  many.mesh[mesh::Axis::kDpReplicate] = 1 << 15;
  EXPECT_EQ(refusal(many, "dp_shard", "32768"), "accepted") << "2^30 ranks";
  EXPECT_EQ(refusal(many, "dp_shard", "32769"), "p.txt:3: more than 1073741824 ranks");
}

TEST(Excerpt, ShowsThreeOpsOnEitherSide) {
  const Program p = build(arch::preset("llama-tiny"), Setting{});
  const auto ops = expand(p);
  const int last = static_cast<int>(ops.size()) - 1;
  ASSERT_GT(last, 12);
  const auto shown = [&](int op) {
    std::vector<int> places;
    std::istringstream lines(excerpt(p, ops, op));
    int here = -1;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("  body ")) continue;
      places.push_back(std::stoi(line));
      if (line.ends_with("  <-- here")) here = places.back();
      EXPECT_NE(line.find(print_step(p, *ops[static_cast<std::size_t>(places.back())].step)), std::string::npos)
          << line;
    }
    EXPECT_EQ(here, op);
    return places;
  };
  EXPECT_EQ(shown(10), (std::vector<int>{7, 8, 9, 10, 11, 12, 13}));
  EXPECT_EQ(shown(3), (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(shown(1), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(shown(last), (std::vector<int>{last - 3, last - 2, last - 1, last}));
  for (const int none : {-1, last + 1}) {
    EXPECT_EQ(excerpt(p, ops, none), "");
    EXPECT_EQ(op_title(p, ops, none), "");
  }
  EXPECT_EQ(op_title(p, ops, 0), print_op(ops[0].step->op));
}

TEST(SettingText, TheShardingInWords) {
  Setting s;
  EXPECT_EQ(sharding_text(s), "ZeRO-0");
  s.mesh[mesh::Axis::kDpReplicate] = 2;
  s.mesh[mesh::Axis::kDpShard] = 4;
  s.zero = 1;
  EXPECT_EQ(sharding_text(s), "ZeRO-1");
  s.zero = 3;
  EXPECT_EQ(sharding_text(s), "ZeRO-3 over dp_replicate 2 x dp_shard 4");
  s.mesh[mesh::Axis::kDpReplicate] = 1;
  EXPECT_EQ(sharding_text(s), "ZeRO-3");
  EXPECT_EQ(sharding_text(unusual()),
            "ZeRO-2 over dp_replicate 2 x dp_shard 3 x ep 7 x cp 4, optimizer states over all, "
            "optimizer,gradients,activations on the host, 7 expert ranks in 15 tiles, 4 context ranks in a ring, 5 "
            "tensor ranks, "
            "sequence parallel in 7 pieces, 6 stages, zb-v of 2 chunks each");
  s = unusual();
  s.context_form = ContextForm::kGather;
  s.sequence_parallel = false;
  s.pipeline.chunks = 1;
  s.own_over_dp = false;
  s.offload = {};
  EXPECT_EQ(sharding_text(s),
            "ZeRO-2 over dp_replicate 2 x dp_shard 3 x ep 7 x cp 4, 7 expert ranks in 15 tiles, 4 context ranks, 5 "
            "tensor ranks, 6 stages, zb-v");
}

// Ranks of a later stage have the program of that stage. Without a pipeline, all ranks have the same program.
TEST(SettingText, TheStageOfARank) {
  Setting s;
  s.mesh[mesh::Axis::kPp] = 3;
  s.mesh[mesh::Axis::kDpShard] = 2;
  std::vector<int> stages;
  for (int rank = 0; rank < 6; ++rank) stages.push_back(at_rank(s, rank).pipeline.stage);
  EXPECT_EQ(stages, (std::vector<int>{0, 0, 1, 1, 2, 2}));
  s.order = {mesh::Axis::kDpReplicate, mesh::Axis::kDpShard, mesh::Axis::kEp,
             mesh::Axis::kPp,          mesh::Axis::kCp,      mesh::Axis::kTp};
  stages.clear();
  for (int rank = 0; rank < 6; ++rank) stages.push_back(at_rank(s, rank).pipeline.stage);
  EXPECT_EQ(stages, (std::vector<int>{0, 1, 2, 0, 1, 2}));
  s.mesh[mesh::Axis::kPp] = 1;
  EXPECT_EQ(at_rank(s, 1), s);
}

// A text may change the kernel of an op. A line without costs gets the costs of its kernel.
TEST(Kernels, AreChosenOpByOp) {
  Setting s;
  s.micro_batch = s.global_batch = 2;
  s.sequence = 16;
  const Program fused = build(tiny(), s);
  EXPECT_EQ(parse(without_costs(print(fused)), "bare"), fused);
  const std::string text =
      rewrite(without_costs(print(fused)), {" backward part=attention layer=1"}, "kernel=fused", "kernel=reference");
  const Program mixed = parse(text, "mixed");
  EXPECT_TRUE(verify(mixed).empty());
  int others = 0;
  for (std::size_t k = 0; k < fused.bodies.front().steps.size(); ++k) {
    const Step &was = fused.bodies.front().steps[k], &is = mixed.bodies.front().steps[k];
    if (was == is) continue;
    ++others;
    EXPECT_EQ(kind_of(is.op), "backward attention");
    EXPECT_EQ(is.attributes.kernel, arch::Kernels::kReference);
    EXPECT_NE(is.scratch, was.scratch) << "the reference needs another scratch";
    EXPECT_EQ(is.hardware_flops, was.hardware_flops);
  }
  EXPECT_EQ(others, 1);
  EXPECT_EQ(parse(print(mixed), "again"), mixed);
}

TEST(Kernels, ThatCannotComputeAnOpAreRefused) {
  Setting s;
  s.micro_batch = s.global_batch = 2;
  s.sequence = 16;
  s.compute = DType::kBF16;
  s.master = s.reduce = DType::kF32;
  s.kernels = arch::Kernels::kAten;
  const std::string text = without_costs(print(build(tiny(), s)));
  const auto with = [&](const std::string& to) {
    return program::refusal(rewrite(text, {" forward part=down layer=0"}, "kernel=aten", to));
  };
  EXPECT_EQ(with("kernel=aten"), "");
  EXPECT_NE(with("kernel=fused")
                .find("(forward down): kernel=fused cannot compute it: the fused kernels compute in fp32, "
                      "not in bf16"),
            std::string::npos)
      << with("kernel=fused");
  EXPECT_NE(with("kernel=reference").find("the reference kernels compute in fp64 or fp32, not in bf16"),
            std::string::npos);
  EXPECT_NE(with("kernel=fast").find("unknown kernel 'fast'"), std::string::npos) << with("kernel=fast");
  EXPECT_NE(with("kernel=unfused").find("down has the kernels fused, aten, reference, and none named unfused"),
            std::string::npos)
      << with("kernel=unfused");
  EXPECT_NE(with("").find("needs [rows=2x16 compute=bf16 kernel=aten threads=1]"), std::string::npos) << with("");
  EXPECT_NE(with("kernel=aten threads=2").find("'threads' appears twice"), std::string::npos);
}

// Unfused attention needs whole sequences.
TEST(Kernels, OfContextRanksAreInTiles) {
  Setting s;
  s.sequence = 16;
  s.mesh[mesh::Axis::kCp] = 2;
  const std::string text = without_costs(print(build(tiny(), s)));
  EXPECT_NE(program::refusal(rewrite(text, {" forward part=attention layer=0"}, "kernel=fused", "kernel=unfused"))
                .find("kernel=unfused cannot compute it: unfused attention needs whole sequences"),
            std::string::npos);
}

// A setting may give kernels to single parts. They are read and written, and refused for a part without such a kernel.
TEST(Kernels, OfPartsAreInTheSetting) {
  Setting s;
  s.sequence = 16;
  s.other_kernels = {{arch::Part::kAttention, arch::Kernels("unfused")},
                     {arch::Part::kDown, arch::Kernels::kReference}};
  const std::string text = print(build(tiny(), s));
  EXPECT_EQ(parse(text, "p").setting, s);
  const std::string given = "other_kernels=attention:unfused,down:reference";
  for (const char* wrong :
       {"other_kernels=attention", "other_kernels=attention:fast", "other_kernels=down:reference,down:fused",
        "other_kernels=mlp:fused", "other_kernels=", "other_kernels=down:unfused", "other_kernels=down:fused"})
    EXPECT_NE(program::refusal(rewrite(text, {given}, given, wrong)), "") << wrong;
}

}  // namespace
}  // namespace molen::program::detail
