#include "plan/resolve_parallel.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "plan/resolve.h"
#include "program/schedule/schedule.h"

namespace molen::plan {
namespace {

using Sets = std::vector<std::string>;

Machine machine_of(int ranks, int local_ranks) {
  Machine machine;
  machine.ranks = ranks;
  machine.local_ranks = local_ranks;
  return machine;
}

// Resolves a setting of a model with 6 layers, 4 heads, FFN 704 and a vocabulary of 16384.
program::Setting setting_on(Sets sets, const Machine& machine) {
  sets.insert(sets.end(), {"schedule.warmup=\"0 steps\"", "model.preset=llama-tiny", "precision.compute=fp32"});
  auto c = config::load(std::nullopt, sets);
  return resolve_setting(c, resolve_architecture(c), machine);
}

std::string refusal(const Sets& sets, const Machine& machine) {
  try {
    setting_on(sets, machine);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

// A refusal gives the value, the figures that it contradicts, and values that would fit, because a user reads no more
// than this line.
TEST(ResolveParallel, TensorRanksThatDoNotFit) {
  const Machine eight = machine_of(8, 4);
  EXPECT_EQ(
      refusal({"parallel.tensor=8"}, eight),
      "--set parallel.tensor: 8 ranks cannot share 4 heads, FFN 704 and vocabulary 16384; these degrees fit: 1, 2, 4");
  EXPECT_EQ(
      refusal({"parallel.tensor=3"}, machine_of(6, 6)),
      "--set parallel.tensor: 3 ranks cannot share 4 heads, FFN 704 and vocabulary 16384; these degrees fit: 1, 2");
  EXPECT_EQ(refusal({"parallel.tensor=4"}, machine_of(6, 6)),
            "--set parallel.tensor: 4 does not divide the world of 6 ranks; these degrees fit: 1, 2");
  EXPECT_EQ(refusal({"parallel.tensor=4"}, machine_of(8, 2)),
            "--set parallel.tensor: groups of 4 do not lie within a node of 2 ranks; these degrees fit: 1, 2");
  EXPECT_EQ(
      refusal({"parallel.tensor=8"}, machine_of(6, 4)),
      "--set parallel.tensor: 8 ranks cannot share 4 heads, FFN 704 and vocabulary 16384; these degrees fit: 1, 2");
  EXPECT_EQ(
      refusal({"parallel.tensor=2", "model.qk_norm=all"}, eight),
      "--set parallel.tensor: 2 ranks have different heads, and model.qk_norm = \"all\" takes one norm over all of "
      "them, which is not implemented; parallel.tensor = 1 trains this model");
  EXPECT_EQ(setting_on({"parallel.tensor=2", "model.qk_norm=head"}, eight).tensor_ranks(), 2);
  EXPECT_EQ(refusal({"parallel.sequence=true"}, eight),
            "--set parallel.sequence: sequence parallelism cuts rows over tensor ranks; parallel.tensor is 1");
  EXPECT_EQ(refusal({"parallel.expert_tiles=2"}, eight),
            "--set parallel.expert_tiles: 2 tiles of the experts of sparse layers, which this model does not have "
            "(model.experts)");
  EXPECT_EQ(refusal({"parallel.tensor=2", "parallel.tensor_chunks=2"}, eight),
            "--set parallel.tensor_chunks: rows can travel in pieces only with sequence parallelism; set "
            "parallel.sequence = true");
  const auto s = setting_on({"parallel.tensor=2", "parallel.sequence=true", "parallel.tensor_chunks=2"}, eight);
  EXPECT_EQ(s.tensor_ranks(), 2);
  EXPECT_TRUE(s.sequence_parallel);
  EXPECT_EQ(s.tensor_chunks, 2);
  EXPECT_EQ(setting_on({"parallel.tensor=4"}, eight).tensor_ranks(), 4);
}

TEST(ResolveParallel, ContextRanksThatDoNotFit) {
  const Machine eight = machine_of(8, 4);
  EXPECT_EQ(
      refusal({"parallel.context_form=ring"}, eight),
      "--set parallel.context_form: \"ring\" passes keys and values between context ranks, but parallel.context is 1; "
      "raise it, or set parallel.context_form = \"gather\"");
  EXPECT_EQ(refusal({"parallel.context=3"}, eight),
            "--set parallel.context: 3 ranks for each sequence do not divide the world of 8 ranks; 1, 2, 4 and 8 do");
  EXPECT_EQ(refusal({"parallel.context=8", "parallel.tensor=2", "parallel.pipeline=2"}, eight),
            "--set parallel.context: 8 ranks for each sequence x tensor 2 x pipeline 2 do not divide the world of 8 "
            "ranks; 1 and 2 do");
  EXPECT_EQ(refusal({"parallel.context=3", "data.sequence_length=12"}, machine_of(8, 8)),
            "--set parallel.context: 3 ranks for each sequence do not divide the world of 8 ranks; 1 and 2 do");
  EXPECT_EQ(
      refusal({"parallel.context=8", "parallel.tensor=2", "data.sequence_length=12"}, eight),
      "--set parallel.context: 8 ranks for each sequence x tensor 2 do not divide the world of 8 ranks; 1 and 2 do");
  EXPECT_EQ(refusal({"parallel.context=2", "data.sequence_length=50"}, machine_of(1, 1)),
            "--set parallel.context: 2 ranks for each sequence do not divide the world of 1 ranks; only 1 does");
  EXPECT_EQ(refusal({"parallel.context=4", "data.sequence_length=100"}, eight),
            "--set parallel.context: 4 ranks have two pieces each of every sequence; 100 tokens (--set "
            "data.sequence_length) do not divide by 8, 104 tokens do");
  EXPECT_EQ(refusal({"parallel.context=4", "data.sequence_length=104", "batch.global=2", "batch.micro=1"}, eight),
            "accepted");
}

TEST(ResolveParallel, StagesThatDoNotFit) {
  const Machine eight = machine_of(8, 4);
  EXPECT_EQ(refusal({"parallel.virtual_stages=2"}, eight),
            "2 errors:\n  --set parallel.virtual_stages: 2 needs parallel.pipeline above 1\n  --set "
            "parallel.virtual_stages: 2 needs parallel.schedule = \"interleaved\" or \"zb-v\", is \"1f1b\"");
  EXPECT_EQ(refusal({"parallel.schedule=gpipe"}, eight),
            "--set parallel.schedule: \"gpipe\" orders pipeline stages; parallel.pipeline is 1");
  EXPECT_EQ(refusal({"parallel.stage_layers=[6]"}, eight),
            "--set parallel.stage_layers: the list has 1 count of layers, but parallel.pipeline is 1, so there are no "
            "stages "
            "to divide them over; leave the list out, or raise parallel.pipeline");
  EXPECT_EQ(refusal({"parallel.pipeline=3"}, eight),
            "--set parallel.pipeline: 3 stages do not divide the world of 8 ranks; 1, 2 and 4 do");
  EXPECT_EQ(refusal({"parallel.pipeline=3", "parallel.tensor=2"}, eight),
            "--set parallel.pipeline: 3 stages of 2 tensor ranks do not divide the world of 8 ranks; 1, 2 and 4 do");
  EXPECT_EQ(refusal({"parallel.pipeline=2", "parallel.tensor=2"}, machine_of(6, 6)),
            "--set parallel.pipeline: 2 stages of 2 tensor ranks do not divide the world of 6 ranks; 1 and 3 do");
  EXPECT_EQ(refusal({"parallel.pipeline=9", "parallel.tensor=2"}, machine_of(18, 18)),
            "--set parallel.pipeline: 9 stages of 1 chunk need a layer each; the model has 6; 1 and 3 do");
  EXPECT_EQ(refusal({"parallel.pipeline=6"}, machine_of(6, 6)), "accepted");
  EXPECT_EQ(refusal({"parallel.pipeline=8"}, eight),
            "--set parallel.pipeline: 8 stages of 1 chunk need a layer each; the model has 6; 1, 2 and 4 do");
  EXPECT_EQ(refusal({"parallel.pipeline=8", "parallel.tensor=2"}, machine_of(16, 8)),
            "--set parallel.pipeline: 8 stages of 1 chunk need a layer each; the model has 6; 1, 2 and 4 do");
  EXPECT_EQ(refusal({"parallel.pipeline=4", "parallel.virtual_stages=2", "parallel.schedule=interleaved"}, eight),
            "--set parallel.pipeline: 4 stages of 2 chunks need a layer each; the model has 6; 1 and 2 do");
  EXPECT_EQ(refusal({"parallel.pipeline=2", "parallel.schedule=interleaved"}, eight),
            "--set parallel.schedule: interleaved stages need several chunks each, but parallel.virtual_stages is 1; "
            "raise it, or choose 1f1b");
  EXPECT_EQ(refusal({"parallel.pipeline=2", "parallel.virtual_stages=2"}, eight),
            "--set parallel.virtual_stages: 2 needs parallel.schedule = \"interleaved\" or \"zb-v\", is \"1f1b\"");
  EXPECT_EQ(refusal({"parallel.pipeline=2", "parallel.virtual_stages=3", "parallel.schedule=zb-v"}, eight),
            "--set parallel.virtual_stages: zb-v has 2 chunks a stage, not 3");
  EXPECT_EQ(setting_on({"parallel.pipeline=2", "parallel.schedule=zb-v"}, eight).pipeline.chunks, 2);
  EXPECT_EQ(
      setting_on({"parallel.pipeline=2", "parallel.virtual_stages=2", "parallel.schedule=zb-v"}, eight).pipeline.chunks,
      2);
}

// A value that is assigned after the configuration was read is checked only here.
TEST(ResolveParallel, ChunksWithoutStages) {
  auto c = config::load(std::nullopt, {"model.preset=llama-tiny", "precision.compute=fp32"});
  config::assign(c, "parallel.virtual_stages", 2, {config::Origin::Kind::kOther, "planned"});
  try {
    resolve_setting(c, resolve_architecture(c), machine_of(1, 1));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "planned: parallel.virtual_stages: 2 chunks of a stage; parallel.pipeline is 1");
  }
}

TEST(ResolveParallel, CountsOfLayersThatDoNotFit) {
  const Machine eight = machine_of(8, 4);
  EXPECT_EQ(refusal({"parallel.pipeline=2", "parallel.stage_layers=[4, 3]"}, eight),
            "--set parallel.stage_layers: the list has 2 counts and 7 layers in all, but 2 stages of 1 chunk need 2 "
            "counts, and the model has 6 layers; a balanced list is [5, 1]");
  EXPECT_EQ(refusal({"parallel.pipeline=2", "parallel.virtual_stages=2", "parallel.schedule=interleaved",
                     "parallel.stage_layers=[3, 3]"},
                    eight),
            "--set parallel.stage_layers: the list has 2 counts and 6 layers in all, but 2 stages of 2 chunks need 4 "
            "counts, and the model has 6 layers; a balanced list is [1, 2, 2, 1]");
  EXPECT_EQ(refusal({"parallel.pipeline=2", "parallel.stage_layers=[2, 2, 2]"}, eight),
            "--set parallel.stage_layers: the list has 3 counts and 6 layers in all, but 2 stages of 1 chunk need 2 "
            "counts, and the model has 6 layers; a balanced list is [5, 1]");
  EXPECT_EQ(refusal({"parallel.unit_layers=7"}, eight),
            "--set parallel.unit_layers: units of 7 layers; the model has 6");
  EXPECT_EQ(setting_on({"parallel.unit_layers=6"}, eight).unit_layers, 6);
}

TEST(ResolveParallel, AFileOfAnotherPipeline) {
  const TemporaryDirectory directory(fs::temp_directory_path() / "molen_schedule");
  const fs::path file = directory.path() / "order.csv";
  write_file_atomic(file,
                    program::print_schedule(program::make_schedule(program::ScheduleKind::kInterleaved, 2, 2, 4)));
  const std::string set = "parallel.schedule=\"" + file.string() + "\"";
  const Machine eight = machine_of(8, 4);
  EXPECT_EQ(refusal({"parallel.pipeline=4", set}, eight),
            "--set parallel.schedule: the file has 2 stages of 2 chunks, but parallel.pipeline is 4 and "
            "parallel.virtual_stages is 1");
  EXPECT_EQ(refusal({"parallel.pipeline=2", "parallel.virtual_stages=3", set}, eight),
            "--set parallel.schedule: the file has 2 stages of 2 chunks, but parallel.pipeline is 2 and "
            "parallel.virtual_stages is 3");
  for (const char* chunks : {"1", "2"}) {
    const auto s = setting_on({"parallel.pipeline=2", std::string("parallel.virtual_stages=") + chunks, set}, eight);
    EXPECT_EQ(s.pipeline.schedule, program::ScheduleKind::kFile);
    EXPECT_EQ(s.pipeline.chunks, 2);
  }
}

TEST(ResolveParallel, GroupsThatDoNotFit) {
  const Machine eight = machine_of(8, 4), one = machine_of(1, 1);
  EXPECT_EQ(refusal({"parallel.data_replicate=3"}, eight),
            "--set parallel.data_replicate: 3 groups cannot be made of 8 ranks; 1, 2, 4 and 8 do");
  EXPECT_EQ(refusal({"parallel.data_replicate=2"}, one),
            "--set parallel.data_replicate: 2 groups cannot be made of 1 rank; only 1 does");
  EXPECT_EQ(refusal({"parallel.data_replicate=3", "parallel.tensor=2"}, eight),
            "--set parallel.data_replicate: 3 groups cannot be made of 4 ranks; 1, 2 and 4 do");
  EXPECT_EQ(
      refusal({"parallel.data_shard=3"}, eight),
      "--set parallel.data_shard: data_replicate 1 x data_shard 3 is not the world of 8 ranks; of shards only 8 does");
  EXPECT_EQ(
      refusal({"parallel.data_replicate=2", "parallel.data_shard=8"}, eight),
      "--set parallel.data_shard: data_replicate 2 x data_shard 8 is not the world of 8 ranks; of shards only 4 does");
  EXPECT_EQ(refusal({"parallel.sharding=HYBRID_SHARD", "parallel.data_shard=3"}, eight),
            "--set parallel.data_shard: data_replicate 2 x data_shard 3 is not the world of 8 ranks; of shards 2, 4 "
            "and 8 do");
  EXPECT_EQ(
      refusal({"parallel.sharding=HYBRID_SHARD", "parallel.data_replicate=4", "parallel.data_shard=4"}, eight),
      "--set parallel.data_shard: data_replicate 4 x data_shard 4 is not the world of 8 ranks; of shards only 2 does");
  EXPECT_EQ(refusal({"parallel.context=2", "parallel.tensor=2", "parallel.pipeline=2", "parallel.data_shard=3"},
                    machine_of(16, 8)),
            "--set parallel.data_shard: data_replicate 1 x data_shard 3 x context 2 x tensor 2 x pipeline 2 is not the "
            "world of 16 ranks; of shards only 2 does");
  EXPECT_EQ(refusal({"parallel.sharding=HYBRID_SHARD", "parallel.context=8"}, eight),
            "--set parallel.sharding: HYBRID_SHARD shards within a node of 4 ranks, which 1 tensor x 8 context ranks "
            "do not divide; parallel.data_shard says other groups");
  EXPECT_EQ(refusal({"parallel.sharding=FULL_SHARD", "parallel.data_replicate=2"}, eight),
            "--set parallel.sharding: FULL_SHARD shards over all data-parallel ranks; with 2 copies "
            "(parallel.data_replicate) choose HYBRID_SHARD");
  EXPECT_EQ(refusal({"parallel.sharding=SHARD_GRAD_OP", "parallel.data_replicate=2"}, eight),
            "--set parallel.sharding: SHARD_GRAD_OP shards over all data-parallel ranks; with 2 copies "
            "(parallel.data_replicate) choose HYBRID_SHARD_ZERO2");
  EXPECT_EQ(
      refusal({"parallel.sharding=HYBRID_SHARD", "parallel.data_shard=1"}, eight),
      "--set parallel.sharding: HYBRID_SHARD needs groups of more than one rank; set parallel.data_shard, or NO_SHARD");
  // A value that a message suggests is not refused next.
  for (const char* shards : {"2", "4", "8"})
    EXPECT_EQ(refusal({"parallel.sharding=HYBRID_SHARD", std::string("parallel.data_shard=") + shards}, eight),
              "accepted");
  EXPECT_EQ(refusal({"parallel.sharding=HYBRID_SHARD", "parallel.context=2", "parallel.data_shard=3"}, eight),
            "--set parallel.data_shard: data_replicate 1 x data_shard 3 x context 2 is not the world of 8 ranks; of "
            "shards 1, 2 and 4 do");
  EXPECT_EQ(
      refusal({"parallel.sharding=HYBRID_SHARD", "parallel.data_shard=3"}, one),
      "--set parallel.data_shard: data_replicate 0 x data_shard 3 is not the world of 1 ranks; of shards only 1 does");
  EXPECT_EQ(refusal({"parallel.sharding=HYBRID_SHARD"}, machine_of(6, 4)),
            "parallel.data_replicate: data_replicate 1 x data_shard 4 is not the world of 6 ranks");
  EXPECT_EQ(refusal({"parallel.data_shard=8"}, eight), "accepted");
  EXPECT_EQ(refusal({"parallel.data_replicate=2", "parallel.data_shard=4"}, eight), "accepted");
  EXPECT_EQ(refusal({"parallel.sharding=NO_SHARD", "parallel.data_replicate=2"}, eight), "accepted");
  EXPECT_EQ(refusal({"parallel.sharding=HYBRID_SHARD"}, one), "accepted");
}

TEST(ResolveParallel, OrdersThatSpreadAGroup) {
  const Machine sixteen = machine_of(16, 8);
  const std::string tp_first = R"(parallel.order=["tp", "pp", "dp-replicate", "dp-shard", "cp"])",
                    pp_inside = R"(parallel.order=["dp-replicate", "dp-shard", "pp", "cp", "tp"])";
  EXPECT_EQ(refusal({"parallel.sharding=HYBRID_SHARD", "parallel.pipeline=2", "batch.global=16", pp_inside}, sixteen),
            "--set parallel.order: HYBRID_SHARD shards within a node of 8 ranks, over which this order of axes spreads "
            "them; parallel.data_shard says other groups");
  EXPECT_EQ(refusal({"parallel.tensor=2", "batch.global=16", tp_first}, sixteen),
            "--set parallel.order: this order of axes spreads groups of 2 tensor ranks over nodes of 8 ranks; with tp "
            "last they share one");
}

// Tests each of PyTorch's names and each ZeRO stage on several ranks; on a single rank all would be the same.
TEST(ResolveParallel, StagesOfSharding) {
  const Machine eight = machine_of(8, 4);
  const auto zero = [&](const Sets& sets) { return setting_on(sets, eight).zero; };
  EXPECT_EQ(zero({}), 0);
  for (int stage = 0; stage < 4; ++stage) EXPECT_EQ(zero({fmt::format("parallel.zero={}", stage)}), stage);
  for (const auto& [name, stage] : {std::pair{"NO_SHARD", 0},
                                    {"SHARD_GRAD_OP", 2},
                                    {"FULL_SHARD", 3},
                                    {"HYBRID_SHARD", 3},
                                    {"HYBRID_SHARD_ZERO2", 2}})
    EXPECT_EQ(zero({std::string("parallel.sharding=") + name}), stage) << name;
  EXPECT_EQ(setting_on({"parallel.prefetch=3"}, eight).prefetch, 3);
}

}  // namespace
}  // namespace molen::plan
