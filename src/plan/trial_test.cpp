#include "plan/trial.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "config/config.h"
#include "data/test_folder.h"

namespace molen::plan {
namespace {

config::Config tried(const std::string& layout) {
  return config::parse(
      "[model]\npreset = \"llama3-8b\"\n[data]\nsequence_length = 4096\n[batch]\nglobal = 64\n" + layout, "trial.toml");
}

Outcome outcome_of(const std::string& layout, int ranks = 16) {
  const auto on = cluster::find("dgx-h100");
  return predict(tried(layout), on, machine_on(on, ranks));
}

std::string refusal_of(int ranks, std::optional<int> of_node = std::nullopt) {
  try {
    machine_on(cluster::find("dgx-h100"), ranks, of_node);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(MachineOn, IsOfTheCluster) {
  const auto on = cluster::find("dgx-h100");
  EXPECT_EQ(machine_on(on, 16).local_ranks, 8);
  EXPECT_EQ(machine_on(on, 4).local_ranks, 4);
  EXPECT_EQ(machine_on(on, 16, 4).local_ranks, 4);
  EXPECT_TRUE(machine_on(on, 16).cuda);
  EXPECT_EQ(machine_on(on, 16).threads, 1);
  EXPECT_NE(refusal_of(on.devices() + 8).find("devices"), std::string::npos);
  EXPECT_NE(refusal_of(16, 9).find("--ranks-per-node: 9 ranks, but a node"), std::string::npos);
  EXPECT_NE(refusal_of(12).find("are not whole nodes of 8 devices"), std::string::npos);
}

TEST(Trial, HasTheFiguresOfItsStep) {
  const Outcome o = outcome_of("[parallel]\ntensor = 2\nzero = 1\n");
  ASSERT_EQ(o.kind, Outcome::Kind::kStep) << o.why;
  const StepFigures& f = o.figures;
  EXPECT_EQ(f.tokens, 64 * 4096);
  EXPECT_EQ(f.ranks, 16);
  EXPECT_LT(f.low_s, f.step_s);
  EXPECT_LT(f.step_s, f.high_s);
  EXPECT_DOUBLE_EQ(f.tokens_per_s_per_device(), 64 * 4096 / f.step_s / 16);
  // 8.03 B parameters take about 6 FLOPs a parameter and token, and attention adds less than a fifth at this length.
  const double flops = 6.0 * 8.03e9 * 64 * 4096, peak = 16 * 989e12;
  EXPECT_GT(*f.mfu, 0.95 * flops / f.step_s / peak);
  EXPECT_LT(*f.mfu, 1.2 * flops / f.step_s / peak);
  EXPECT_DOUBLE_EQ(*f.kwh(), *f.step_j / 3.6e6);
  EXPECT_GT(*o.memory, Bytes(0));
}

// Every other document fills a sequence, and the others are short, so a rank's attention varies with its sequences: the
// fewer it has, the more it widens the interval of a step without a mask. The data of one length of documents hardly
// varies.
TEST(Trial, DocumentsWidenTheInterval) {
  const auto on = cluster::find("dgx-h100");
  const auto spread = [&](int every, const std::string& mask, int global) {
    const data::TestFolder folder;
    data::TestShard shard{"a", "nl", {}};
    for (int d = 0; d < 400; ++d) {
      shard.documents.emplace_back(static_cast<std::size_t>(d % every == 0 ? 63 : 8191), 5);
      shard.documents.back().push_back(0);
    }
    data::write_test_shards(folder.path(), {shard}, 300);
    const Outcome o = predict(
        config::parse(fmt::format("[model]\npreset = \"llama-tiny\"\nmax_sequence = 8192\n[data]\nsequence_length = "
                                  "4096\ntrain = [{{path = \"{}\"}}]\ndocument_mask = {}\n[batch]\nglobal = {}\n",
                                  folder.path().string(), mask, global),
                      "trial.toml"),
        on, machine_on(on, 1));
    EXPECT_EQ(o.kind, Outcome::Kind::kStep) << o.why;
    EXPECT_NEAR(o.figures.high_s / o.figures.step_s, o.figures.step_s / o.figures.low_s, 1e-12);
    return o.figures.high_s / o.figures.step_s - 1.0;
  };
  const double whole = spread(2, "false", 1);
  EXPECT_EQ(spread(1, "false", 1), whole);
  // Equal documents add nothing, in a short step or a long one. Others do, and more in a short one.
  const double short_step = spread(1, "true", 1) / whole, long_step = spread(1, "true", 64) / spread(1, "false", 64);
  EXPECT_NEAR(short_step, long_step, 0.02);
  EXPECT_GT(spread(2, "true", 1) / whole, spread(2, "true", 64) / spread(2, "false", 64) + 0.02);
}

// A description is of devices; a step of processors is no step of theirs.
TEST(Trial, OfProcessorsIsRefused) {
  try {
    outcome_of("[device]\nkind = \"cpu\"\n");
    ADD_FAILURE() << "a step was predicted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("trial.toml:8: device.kind: dgx-h100 describes"), std::string::npos)
        << error.what();
  }
}

// Three ways to have no figures, each told apart.
TEST(Trial, WithoutAStepSaysWhy) {
  const Outcome large = outcome_of("[parallel]\nzero = 0\n");
  EXPECT_EQ(large.kind, Outcome::Kind::kOutOfMemory);
  EXPECT_GT(*large.memory, Bytes(std::int64_t{80} << 30)) << "16 bytes a parameter";
  EXPECT_NE(large.why.find("of a device of which a plan may take"), std::string::npos) << large.why;
  // 16 bytes of state for each parameter leave the devices, and 8 ranks of a node share its 2 TB.
  const Outcome offloaded =
      outcome_of("[parallel]\nzero = 3\noffload = [\"optimizer\", \"gradients\", \"parameters\"]\n");
  EXPECT_EQ(offloaded.kind, Outcome::Kind::kStep) << offloaded.why;
  EXPECT_LT(*offloaded.memory, Bytes(std::int64_t{60} << 30));
  auto small = cluster::find("dgx-h100");
  small.node.host_memory.value = 4e10;
  const Outcome full =
      predict(tried("[parallel]\nzero = 3\noffload = [\"optimizer\"]\n"), small, machine_on(small, 16));
  EXPECT_EQ(full.kind, Outcome::Kind::kOutOfMemory);
  EXPECT_NE(full.why.find("of the host's memory of which a rank has 4.66 GiB"), std::string::npos) << full.why;
  const Outcome refused = outcome_of("[parallel]\ntensor = 3\n");
  EXPECT_EQ(refused.kind, Outcome::Kind::kRefused);
  EXPECT_NE(refused.why.find("parallel.tensor"), std::string::npos) << refused.why;
  EXPECT_FALSE(refused.memory);
  EXPECT_THROW(predict(config::parse("[model]\npreset = \"llama-none\"\n", "t.toml"), cluster::find("dgx-h100"),
                       machine_on(cluster::find("dgx-h100"), 8)),
               UsageError);
}

}  // namespace
}  // namespace molen::plan
