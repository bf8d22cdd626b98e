// Tests the whole error text of each kind for values that it refuses.
#include "config/kinds.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "config/config.h"

namespace molen::config {
namespace {

std::string refusal(const std::string& key, const Json& value) {
  Config c;
  try {
    assign(c, key, value, {Origin::Kind::kOther, "here"});
  } catch (const UsageError& error) {
    const std::string said = error.what(), begin = "here: " + key + ": expected ";
    return said.starts_with(begin) ? said.substr(begin.size()) : said;
  }
  return "accepted";
}

Json read(const std::string& key, const Json& value) {
  Config c;
  assign(c, key, value, {});
  return field(key).write(c);
}

TEST(Kinds, RopeScaling) {
  const std::string key = "model.rope_scaling";
  EXPECT_EQ(refusal(key, 8),
            "a table such as { factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0, original_max_sequence = "
            "8192 }, got 8");
  EXPECT_EQ(refusal(key, Json{{"factr", 8}}),
            "a table such as { factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0, original_max_sequence = "
            "8192 }, got { factr = 8 }; unknown key 'factr'; did you mean 'factor'?");
  EXPECT_EQ(refusal(key, Json{{"factor", 0}}), "a positive number, got 0");
  EXPECT_EQ(refusal(key, Json{{"low_freq_factor", "x"}}), "a positive number, got \"x\"");
  EXPECT_EQ(refusal(key, Json{{"high_freq_factor", -1.5}}), "a positive number, got -1.5");
  EXPECT_EQ(refusal(key, Json{{"original_max_sequence", 0.5}}), "a positive integer, got 0.5");
  const Json all{{"factor", 3.0}, {"low_freq_factor", 1.5}, {"high_freq_factor", 5.0}, {"original_max_sequence", 128}};
  EXPECT_EQ(read(key, all), all);
  EXPECT_EQ(read(key, Json::object()), Json::parse(R"({"factor": 8.0, "low_freq_factor": 1.0,
                                                       "high_freq_factor": 4.0, "original_max_sequence": 8192})"));
}

TEST(Kinds, SeedsAreWhatADoubleHolds) {
  EXPECT_EQ(refusal("train.seed", std::int64_t{1} << 53), "accepted");
  EXPECT_NE(refusal("train.seed", (std::int64_t{1} << 53) + 1), "accepted");
}

// Text that begins with any digit was meant as a size.
TEST(Kinds, RecomputeThatBeginsWithADigitIsASize) {
  for (const char* text : {"0x", "5 XiB", "9x"}) {
    const std::string said = refusal("parallel.recompute", text);
    EXPECT_EQ(said.find("attention"), std::string::npos) << said;
    EXPECT_NE(said, "accepted");
  }
}

TEST(Kinds, Sources) {
  const std::string key = "data.train";
  EXPECT_EQ(refusal(key, 1), "a path, or a list of paths or { path, weight, languages } tables, got 1");
  EXPECT_EQ(refusal(key, Json::array({1})),
            "a path, or a table such as { path = \"data/nl\", weight = 1.0, languages = [\"nl\"] }, got 1");
  EXPECT_EQ(refusal(key, Json::array({Json{{"weight", 1}}})),
            "a path, or a table such as { path = \"data/nl\", weight = 1.0, languages = [\"nl\"] }, got { weight = 1 "
            "}; path is missing");
  EXPECT_EQ(refusal(key, Json::array({Json{{"path", 3}}})), "path to be a string, got 3");
  EXPECT_EQ(refusal(key, Json::array({Json{{"path", "a"}, {"wieght", 1}}})),
            "a path, or a table such as { path = \"data/nl\", weight = 1.0, languages = [\"nl\"] }, got { path = "
            "\"a\", wieght = 1 }; unknown key 'wieght'; did you mean 'weight'?");
  EXPECT_EQ(refusal(key, Json::array({Json{{"path", "a"}, {"weight", 0}}})), "a positive number, got 0");
  EXPECT_EQ(refusal(key, Json::array({Json{{"path", "a"}, {"languages", 3}}})),
            "languages such as [\"nl\", \"en\"], got 3");
}

TEST(Kinds, Numbers) {
  EXPECT_EQ(refusal("model.layers", 0), "a positive integer, got 0");
  EXPECT_EQ(refusal("model.layers", 1), "accepted");
  EXPECT_EQ(refusal("model.layers", std::uint64_t{18446744073709551615u}),
            "a positive integer, got 18446744073709551615");
  EXPECT_EQ(refusal("model.layers", std::uint64_t{7}), "accepted");
  EXPECT_EQ(refusal("math.threads", -1), "an integer of 0 or more, got -1");
  EXPECT_EQ(refusal("math.threads", 0), "accepted");
  EXPECT_EQ(refusal("optimizer.lr", 0.0), "a positive number, got 0.0");
  EXPECT_EQ(refusal("optimizer.weight_decay", -0.5), "a number of 0 or more, got -0.5");
  EXPECT_EQ(refusal("optimizer.weight_decay", 0), "accepted");
  EXPECT_EQ(refusal("optimizer.beta1", 1), "a number from 0 to below 1, got 1");
  EXPECT_EQ(refusal("optimizer.beta1", 0), "accepted");
  EXPECT_EQ(refusal("optimizer.beta1", -0.1), "a number from 0 to below 1, got -0.1");
  EXPECT_EQ(refusal("precision.loss_scale", 0.5), "a number from 1 to 2^126, got 0.5");
  EXPECT_EQ(refusal("precision.loss_scale", 1), "accepted");
  EXPECT_EQ(refusal("precision.loss_scale", 0x1p+126), "accepted");
  EXPECT_EQ(refusal("precision.loss_scale", 0x1p+127), "a number from 1 to 2^126, got 1.7014118346046923e+38");
  EXPECT_EQ(refusal("train.deterministic", "yes"), "true or false, got \"yes\"");
}

TEST(Kinds, Shares) {
  const std::string key = "energy.slowdown";
  EXPECT_EQ(refusal(key, "5 W"), "a share such as 0.05 or \"5 %\", got \"5 W\"");
  EXPECT_EQ(refusal(key, ""), "a share such as 0.05 or \"5 %\", got \"\"");
  EXPECT_EQ(refusal(key, "five %"), "a share such as 0.05 or \"5 %\", got \"five %\"");
  EXPECT_EQ(refusal(key, "1001 %"), "a share such as 0.05 or \"5 %\", got \"1001 %\"");
  EXPECT_EQ(refusal(key, 10.5), "a share such as 0.05 or \"5 %\", got 10.5");
  EXPECT_EQ(refusal(key, -0.5), "a share such as 0.05 or \"5 %\", got -0.5");
  EXPECT_EQ(read(key, "1000 %"), 10.0);
  EXPECT_EQ(read(key, 10), 10.0);
  EXPECT_EQ(read(key, "5 %"), 0.05);
  EXPECT_EQ(read(key, 0), 0.0);
}

TEST(Kinds, Text) {
  const auto names = [](int count) {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.push_back(fmt::format("t{}", i));
    return all;
  };
  EXPECT_EQ(refusal("data.tokenizer", ""), "a path, got \"\"");
  EXPECT_EQ(refusal("data.tokenizer", "a\tb"), "a path, got \"a\\tb\"");
  EXPECT_EQ(refusal("data.tokenizer", std::string(4096, 'x')), "accepted");
  EXPECT_EQ(refusal("data.tokenizer", std::string(4097, 'x')),
            "a path, got \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...");
  EXPECT_EQ(refusal("data.tokenizer", 3), "a path, got 3");
  EXPECT_EQ(refusal("run.name", "a/b"), "a directory name without '/', got \"a/b\"");
  EXPECT_EQ(refusal("run.name", std::string(200, 'x')), "accepted");
  EXPECT_EQ(refusal("run.name", std::string(201, 'x')),
            "a directory name without '/', got \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...");
  EXPECT_EQ(refusal("run.tags", Json::array({3})), "a list of names, got 3");
  EXPECT_EQ(refusal("run.tags", names(4096)), "accepted");
  EXPECT_NE(refusal("run.tags", names(4097)), "accepted");
  EXPECT_EQ(read("run.tags", " a b ,, c,"), Json::array({"a b", "c"}));
  // Cut after 60 characters, but not inside a character.
  EXPECT_EQ(refusal("data.tokenizer", "\n" + std::string(56, 'y')), "a path, got \"\\n" + std::string(56, 'y') + "\"");
  EXPECT_EQ(refusal("data.tokenizer", "\n" + std::string(57, 'y')), "a path, got \"\\n" + std::string(57, 'y') + "...");
}

TEST(Kinds, Choices) {
  EXPECT_EQ(refusal("device.kind", 3), "one of auto, cpu, cuda, got 3");
  EXPECT_EQ(refusal("device.kind", "cdua"), "one of auto, cpu, cuda, got \"cdua\"; did you mean 'cuda'?");
  EXPECT_EQ(read("device.kind", "CUDA"), "cuda");
  EXPECT_EQ(refusal("parallel.schedule", "1f1c"),
            "one of gpipe, 1f1b, interleaved, zb-h1, zb-v, got \"1f1c\"; did you mean '1f1b'?");
  EXPECT_EQ(refusal("parallel.schedule", 3), "one of gpipe, 1f1b, interleaved, zb-h1, zb-v, got 3");
  EXPECT_EQ(read("parallel.schedule", "order.csv"), "order.csv");
  EXPECT_EQ(read("parallel.schedule", "./order"), "./order");
  EXPECT_EQ(read("parallel.schedule", "GPipe"), "gpipe");
  EXPECT_EQ(refusal("parallel.order", Json::array({"tp"})),
            "each of pp, dp-replicate, dp-shard, cp, tp once, got [\"tp\"]");
  EXPECT_EQ(refusal("parallel.offload", Json::array({"optimiser"})),
            "a list of optimizer, gradients, parameters, activations, got [\"optimiser\"]; did you mean 'optimizer'?");
  EXPECT_EQ(refusal("parallel.data_shard", "all"), "\"auto\" or a positive integer, got \"all\"");
  EXPECT_EQ(refusal("parallel.data_shard", 0), "a positive integer, got 0");
  EXPECT_EQ(refusal("parallel.data_shard", "auto"), "accepted");
  EXPECT_EQ(refusal("parallel.unit_layers", "third"), "a positive integer or \"half\", got \"third\"");
  EXPECT_EQ(refusal("parallel.unit_layers", 0), "a positive integer, got 0");
  EXPECT_EQ(read("parallel.unit_layers", "half"), "half");
  EXPECT_EQ(read("parallel.unit_layers", 2), 2);
}

TEST(Kinds, Quantities) {
  EXPECT_EQ(refusal("train.until", 2000),
            "a length such as \"2000 steps\", \"450B tokens\", \"12 h\" or \"3 epochs\", got 2000");
  EXPECT_EQ(refusal("train.until", "0 steps"),
            "a length such as \"2000 steps\", \"450B tokens\", \"12 h\" or \"3 epochs\", above zero, got \"0 steps\"");
  EXPECT_EQ(refusal("train.until", "12 m"),
            "a length such as \"2000 steps\", \"450B tokens\", \"12 h\" or \"3 epochs\", got \"12 m\"");
  EXPECT_EQ(refusal("schedule.warmup", "0 steps"), "accepted");
  EXPECT_EQ(refusal("train.hang_timeout", "0 s"),
            "a time such as \"100 ms\", \"30 s\" or \"12 h\", above zero, got \"0 s\"");
  EXPECT_EQ(refusal("train.hang_timeout", 5), "a time such as \"100 ms\", \"30 s\" or \"12 h\", got 5");
  EXPECT_EQ(read("train.hang_timeout", "auto"), "auto");
  EXPECT_EQ(read("train.hang_timeout", "90 s"), "90 s");
  EXPECT_EQ(refusal("energy.power_budget", "0 W"), "a power such as \"300 W\" or \"1.2 MW\", above zero, got \"0 W\"");
  EXPECT_EQ(refusal("energy.power_budget", "300"), "a power such as \"300 W\" or \"1.2 MW\", got \"300\"");
}

TEST(Kinds, Recompute) {
  const std::string key = "parallel.recompute";
  EXPECT_EQ(refusal(key, 2),
            "none, full, full/2 (every second layer), a list of parts such as [\"attention\"], or a size such as \"8 "
            "GiB\", got 2");
  EXPECT_EQ(refusal(key, "8 Gib"), "a size such as \"512 MiB\" or \"40 GB\", got \"8 Gib\"");
  for (const Json& bad : {Json("0 B"), Json("full/0"), Json("full/two"), Json("full/"), Json("full/2x"), Json("/2"),
                          Json("full/99999999999"), Json::array({"attention/2"}), Json::array({"full"}),
                          Json::array({"none", "attention"})})
    EXPECT_EQ(refusal(key, bad),
              "none, full, full/2 (every second layer), a list of parts such as [\"attention\"], or a size such as "
              "\"8 GiB\", got " +
                  toml_value(bad));
  EXPECT_EQ(read(key, "none"), "none");
  EXPECT_EQ(read(key, ""), "none");
  EXPECT_EQ(read(key, "full"), "full");
  EXPECT_EQ(read(key, "full/1"), "full");
  EXPECT_EQ(read(key, "full/3"), "full/3");
  EXPECT_EQ(read(key, "attention,norm_up/2"), "attention,norm_up/2");
  EXPECT_EQ(read(key, "attention"), Json::array({"attention"}));
  EXPECT_EQ(read(key, "8 GiB"), "8 GiB");
}

}  // namespace
}  // namespace molen::config
