#include "config/config.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "base/test_golden.h"

namespace molen::config {
namespace {

// Runs `make`; returns the text of its error, or "" if there was none.
template <class F>
std::string reason(F make) {
  try {
    make();
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
  return "";
}

std::string reason_of(const std::string& toml) {
  return reason([&] { parse(toml, "run.toml"); });
}

std::string reason_of_set(const std::string& set) {
  return reason([&] { load(std::nullopt, {set}); });
}

// A directory that is removed after the test.
struct Folder {
  fs::path path = fs::temp_directory_path() / fmt::format("molen-config-{}-{}", getpid(), next++);
  static inline int next = 0;
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path write(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
    return path / name;
  }
};

TEST(Config, DefaultsAreValid) {
  const Config c = load(std::nullopt);
  EXPECT_EQ(c.train.until, steps(10000));
  EXPECT_EQ(c.parallel.data_shard, std::nullopt);
  EXPECT_DOUBLE_EQ(c.min_lr(), 3e-5);
  EXPECT_EQ(c.schedule.warmup, steps(1000));
  EXPECT_EQ(c.origins.size(), 1u);
}

// The golden text has all keys with their values and origins. After an intended change, run MOLEN_UPDATE_GOLDEN=1
// config_test.
TEST(Config, TheResolvedTextIsTheGoldenOne) {
  const GoldenMessages golden;
  for (const Config& c :
       {load(std::nullopt), parse("[model]\npreset = \"gpt2\"\n[data]\ntrain = [\"a\", \"b\"]\n", "x")}) {
    const std::string text = to_toml(c);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      GoldenMessages::note(text.substr(at, end - at));
      at = end + 1;
    }
  }
}

// The warmup is a tenth of the run and at most 2000 steps, in whichever unit the length of the run is given.
TEST(Config, WarmupFollowsTheRun) {
  const auto warmup = [](const std::string& until, const std::string& set = "batch.global=8") {
    return load(std::nullopt, {"train.until=" + until, set}).schedule.warmup;
  };
  EXPECT_EQ(warmup("30 steps"), steps(3));
  EXPECT_EQ(warmup("5 steps"), steps(0));
  EXPECT_EQ(warmup("1M steps"), steps(2000));
  EXPECT_EQ(warmup("409600 tokens"), steps(10));  // steps of 8 x 512 tokens
  EXPECT_EQ(warmup("409601 tokens", "batch.global=4"), steps(20));
  EXPECT_EQ(warmup("450B tokens"), steps(2000));
  EXPECT_EQ(warmup("3 epochs"), (Horizon{Horizon::Unit::kEpochs, 3.0 / 10}));
  EXPECT_EQ(warmup("30 steps", "schedule.warmup=7 steps"), steps(7));
  EXPECT_EQ(warmup("30 steps", "schedule.warmup=0 steps"), steps(0));
  EXPECT_NE(to_toml(load(std::nullopt)).find("# derived: of train.until"), std::string::npos);
}

TEST(Config, SequencesOfAModelOfOnesOwn) {
  const std::vector<std::string> own{"model.family=gpt", "model.layers=2",     "model.hidden=64",
                                     "model.heads=4",    "model.vocabulary=9", "data.sequence_length=96"};
  EXPECT_EQ(load(std::nullopt, own).model.max_sequence, 96);
  auto said = own;
  said.push_back("model.max_sequence=128");
  EXPECT_EQ(load(std::nullopt, said).model.max_sequence, 128);
  EXPECT_EQ(load(std::nullopt, {"model.preset=gpt2"}).model.max_sequence, std::nullopt);
}

TEST(Config, AllErrorsAreSaidAtOnce) {
  EXPECT_EQ(reason_of("[train]\nuntil = \"50 steps\"\nmicro_batch = 3\n[modle]\nx = 1\n[model]\nlayers = \"two\"\n"
                      "[schedule]\nwarmup = \"60 steps\"\n[batch]\nmicro = 3"),
            "5 errors:\n"
            "  run.toml:3: unknown key train.micro_batch; did you mean 'batch.micro'? (`molen config reference` lists "
            "all)\n"
            "  run.toml:4: unknown table [modle]; did you mean 'model'?\n"
            "  run.toml:7: model.layers: expected a positive integer, got \"two\"\n"
            "  run.toml:11: batch.micro: 3 does not divide batch.global = 8\n"
            "  run.toml:9: schedule.warmup: 60 steps is longer than train.until = 50 steps; set a shorter one, or "
            "\"none\" for the default");
  // Errors that only follow from a refused value are not reported.
  EXPECT_EQ(reason_of("[batch]\nglobal = \"many\"\nmicro = 3"),
            "run.toml:2: batch.global: expected a positive integer, got \"many\"");
  EXPECT_EQ(
      reason_of("[model]\nfamily = \"gpt\"\nlayers = 2\n[data]\nsequence_length = 0"),
      "4 errors:\n  run.toml:5: data.sequence_length: expected a positive integer, got 0\n"
      "  model.hidden: needed where model.family stands without model.preset (`molen model list` shows the presets)\n"
      "  model.heads: needed where model.family stands without model.preset (`molen model list` shows the presets)\n"
      "  model.vocabulary: needed where neither model.preset nor data.tokenizer gives it");
  EXPECT_EQ(reason([] {
              load(std::nullopt, {"model.layers", "batch.micro=x"});
            }),
            "2 errors:\n  --set model.layers: expected table.key=value\n"
            "  --set batch.micro: expected a positive integer, got \"x\"");
}

// At most fifty errors are shown, followed by the number of the others.
TEST(Config, ErrorsAreShownUpToFifty) {
  for (const int count : {49, 50, 51, 60}) {
    std::string many = "[model]\n", expected = fmt::format("{} errors:", count);
    for (int i = 0; i < count; ++i) {
      many += fmt::format("qqqqqqqq{} = 1\n", i);
      if (i < 50)
        expected +=
            fmt::format("\n  run.toml:{}: unknown key model.qqqqqqqq{} (`molen config reference` lists all)", i + 2, i);
    }
    if (count > 50) expected += fmt::format("\n  and {} more", count - 50);
    EXPECT_EQ(reason_of(many), expected);
  }
}

TEST(Config, UnknownKeysLeadToTheNearest) {
  const GoldenMessages golden;
  const auto hint = [](const std::string& key) {
    const std::string said = reason_of_set(key + "=1"), open = "--set: unknown key " + key,
                      end = " (`molen config reference` lists all)";
    EXPECT_TRUE(said.starts_with(open) && said.ends_with(end)) << said;
    return said.substr(open.size(), said.size() - open.size() - end.size());
  };
  EXPECT_EQ(hint("lr"), "; did you mean 'optimizer.lr'?");
  EXPECT_EQ(hint("train.lr"), "; did you mean 'optimizer.lr'?");
  EXPECT_EQ(hint("model.seed"), "; did you mean 'data.seed'?") << "the same name, though model.tied is near";
  EXPECT_EQ(hint("parallel.max_sequence"), "; did you mean 'model.max_sequence'?");
  EXPECT_EQ(hint("train.sed"), "; did you mean 'train.seed'?");
  EXPECT_EQ(hint("checkpoint.evry"), "; did you mean 'checkpoint.every'?");
  EXPECT_EQ(hint("trian.seed"), "; did you mean 'data.seed'?");
  EXPECT_EQ(hint("bacth.micr"), "; did you mean 'batch.micro'?");
  EXPECT_EQ(hint("zzzzzzzz.qqqqqqqq"), "");
  EXPECT_EQ(hint("train.Learning_Rate"), "; did you mean 'optimizer.lr'?");
  // Longer names are neither compared nor shown in full.
  const std::string cut(100, 'k');
  EXPECT_EQ(hint(std::string(97, 'k') + ".lr"), "; did you mean 'optimizer.lr'?");
  EXPECT_EQ(reason_of_set(std::string(98, 'k') + ".lr=1"),
            "--set: unknown key " + std::string(98, 'k') + ".l... (`molen config reference` lists all)");
  EXPECT_EQ(reason_of_set(cut + "k=1"), "--set: unknown key " + cut + "... (`molen config reference` lists all)");
}

TEST(Config, NamesOfOtherSystemsLeadToOurs) {
  const GoldenMessages golden;
  for (const auto& [theirs, ours] : {std::pair{"learning_rate", "optimizer.lr"},
                                     {"train.learning_rate", "optimizer.lr"},
                                     {"micro_batch", "batch.micro"},
                                     {"batch.micro_batch_size", "batch.micro"},
                                     {"model.n_embd", "model.hidden"},
                                     {"model.num_hidden_layers", "model.layers"},
                                     {"seq_len", "data.sequence_length"},
                                     {"train.warmup_steps", "schedule.warmup"},
                                     {"TP", "parallel.tensor"}})
    EXPECT_NE(reason_of_set(std::string(theirs) + "=1").find(fmt::format("did you mean '{}'?", ours)),
              std::string::npos)
        << reason_of_set(std::string(theirs) + "=1");
}

TEST(Config, ChoicesInAnyCase) {
  EXPECT_EQ(load(std::nullopt, {"parallel.sharding=full_shard"}).parallel.sharding, "FULL_SHARD");
  EXPECT_EQ(load(std::nullopt, {"precision.compute=BF16"}).precision.compute, "bf16");
  EXPECT_EQ(load(std::nullopt, {"parallel.schedule=GPipe"}).parallel.schedule, "gpipe");
  EXPECT_NE(reason_of_set("parallel.sharding=full shard"), "");
}

TEST(Config, ReadsEveryTable) {
  const Config c = parse(R"(
[model]
family = "llama"
layers = 3
hidden = 96
heads = 6
kv_heads = 2
vocabulary = 320
tied = true
rope_scaling = { factor = 32 }
[data]
train = [{ path = "nl", weight = 2, languages = ["nl"] }, "en"]
validation = "held-out"
sequence_length = 128
[batch]
global = 12
micro = 3
[parallel]
data_shard = 2
schedule = "steps/order.csv"
recompute = "8 GiB"
offload = ["optimizer"]
order = "tp,cp,pp,dp-shard,dp-replicate"
[precision]
compute = "bf16"
[schedule]
kind = "wsd"
warmup = "100M tokens"
decay = "10B tokens"
[train]
until = "450B tokens"
trace_steps = [3, 4]
[energy]
slowdown = "5 %"
power_budget = "300 W"
sample_every = "50 ms"
meters = ["rapl", "nvml"]
[run]
name = "first"
)",
                         "run.toml");
  EXPECT_EQ(c.model.layers, 3);
  EXPECT_EQ(c.model.rope_scaling->factor, 32.0);
  EXPECT_EQ(c.model.rope_scaling->original_max_sequence, 8192);
  ASSERT_EQ(c.data.train.size(), 2u);
  EXPECT_EQ(c.data.train[0], (DataSource{"nl", 2.0, {"nl"}}));
  EXPECT_EQ(c.data.train[1], (DataSource{"en", 1.0, {}}));
  EXPECT_EQ(c.data.validation, (std::vector<DataSource>{{"held-out", 1.0, {}}}));
  EXPECT_EQ(c.parallel.data_shard, 2);
  EXPECT_EQ(c.parallel.recompute, (Recompute{Recompute::Mode::kBudget, {}, Bytes(std::int64_t{8} << 30)}));
  EXPECT_EQ(c.parallel.order.front(), "tp");
  EXPECT_EQ(c.train.until, tokens(450'000'000'000));
  EXPECT_DOUBLE_EQ(c.energy.slowdown, 0.05);
  EXPECT_EQ(c.energy.power_budget, Watts(300));
  EXPECT_EQ(c.energy.sample_every, Seconds(0.05));
  EXPECT_EQ(c.origins.at("model.layers").describe(), "run.toml:4");
  EXPECT_FALSE(c.origins.contains("batch.rank"));
}

TEST(Config, ErrorsNameFileLineKeyAndTheNearest) {
  const GoldenMessages golden;
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[model]\nlayers = \"twelve\"", "run.toml:2: model.layers: expected a positive integer, got \"twelve\""},
      {"[model]\nlayers = 0", "run.toml:2: model.layers: expected a positive integer, got 0"},
      {"[model]\nlayers = 1.5", "run.toml:2: model.layers: expected a positive integer, got 1.5"},
      {"[model]\nlayers = 9223372036854775807",
       "run.toml:2: model.layers: expected at most 2147483648, got 9223372036854775807"},
      {"[model]\n\nlayer = 3", "run.toml:3: unknown key model.layer; did you mean 'model.layers'?"},
      {"[train]\nlr = 3", "run.toml:2: unknown key train.lr; did you mean 'optimizer.lr'?"},
      {"lr = 3", "run.toml:1: unknown key lr; did you mean 'optimizer.lr'?"},
      {"[modle]\nlayers = 3", "run.toml:1: unknown table [modle]; did you mean 'model'?"},
      {"model = 3", "run.toml:1: model: expected a table"},
      {"[optimizer]\nlr = nan", "run.toml:2: optimizer.lr: expected a positive number, got nan"},
      {"[optimizer]\nlr = inf", "run.toml:2: optimizer.lr: expected a positive number, got inf"},
      {"[optimizer]\nbeta1 = 1.0", "run.toml:2: optimizer.beta1: expected a number from 0 to below 1, got 1.0"},
      {"[precision]\nloss_scale = 0", "run.toml:2: precision.loss_scale: expected a number from 1 to 2^126, got 0"},
      {"[precision]\nloss_scale = inf", "run.toml:2: precision.loss_scale: expected a number from 1 to 2^126"},
      {"[precision]\nloss_scale = 1e39", "run.toml:2: precision.loss_scale: expected a number from 1 to 2^126"},
      {"[precision]\nloss_scale_window = 0", "run.toml:2: precision.loss_scale_window: expected a positive integer"},
      {"[optimizer]\nlr = true", "run.toml:2: optimizer.lr: expected a positive number, got true"},
      {"[precision]\ncompute = \"fp23\"",
       "run.toml:2: precision.compute: expected one of auto, fp64, fp32, bf16, fp16, got \"fp23\"; did you mean "
       "'fp32'?"},
      // Long text is cut between characters.
      {"[precision]\ncompute = \"" + std::string(58, 'x') + "\u00e9\u00e9" + std::string(90, 'y') + "\"",
       "got \"" + std::string(58, 'x') + "..."},
      {"[train]\nuntil = 2000", "run.toml:2: train.until: expected a length such as \"2000 steps\""},
      {"[train]\nuntil = \"0 steps\"", "above zero, got \"0 steps\""},
      {"[train]\nuntil = \"2000\"", "run.toml:2: train.until: expected a length"},
      {"[train]\nuntil = 2024-01-01", "run.toml:2: a date"},
      {"[data]\ntrain = [{ weight = 1 }]", "path is missing"},
      {"[data]\ntrain = [{ path = \"a\", wieght = 1 }]", "unknown key 'wieght'; did you mean 'weight'?"},
      {"[data]\ntrain = [{ path = \"a\", weight = -1 }]", "run.toml:2: data.train: expected a positive number, got -1"},
      {"[data]\ntrain = [1]", "run.toml:2: data.train: expected a path"},
      {"[data]\ntokenizer = \"\"", "run.toml:2: data.tokenizer: expected a path, got \"\""},
      {"[parallel]\norder = [\"tp\"]", "expected each of pp, dp-replicate"},
      {"[parallel]\nschedule = \"1f1c\"", "did you mean '1f1b'?"},
      {"[parallel]\nzero = 4", "run.toml:2: parallel.zero: expected at most 3, got 4"},
      {"[parallel]\noffload = [\"optimiser\"]", "did you mean 'optimizer'?"},
      {"[parallel]\nrecompute = \"8 Gib\"", "expected a size such as"},
      {"[parallel]\nrecompute = \"0 B\"", "run.toml:2: parallel.recompute: expected none, full"},
      {"[parallel]\nrecompute = \"full/0\"", "run.toml:2: parallel.recompute: expected none, full, full/2"},
      {"[parallel]\nrecompute = \"full/two\"", "run.toml:2: parallel.recompute: expected none, full, full/2"},
      {"[parallel]\nrecompute = \"/2\"", "run.toml:2: parallel.recompute: expected none, full, full/2"},
      {"[parallel]\nrecompute = [\"attention/2\"]", "run.toml:2: parallel.recompute: expected none, full, full/2"},
      {"[parallel]\nrecompute = 2", "run.toml:2: parallel.recompute: expected none, full"},
      {"[parallel]\ndata_shard = \"all\"", "expected \"auto\" or a positive integer, got \"all\""},
      {"[device]\nkind = 3", "run.toml:2: device.kind: expected one of auto, cpu, cuda, got 3"},
      {"[parallel]\nschedule = 3", "run.toml:2: parallel.schedule: expected one of "},
      {"[data]\ntokenizer = 3", "run.toml:2: data.tokenizer: expected a path, got 3"},
      {"[run]\ntags = [3]", "run.toml:2: run.tags: expected "},
      {"[train]\nhang_timeout = \"0 s\"", "run.toml:2: train.hang_timeout: expected "},
      {"[run]\nname = \"../x\"", "run.toml:2: run.name: expected a directory name without '/'"},
      {"[energy]\nslowdown = \"5 W\"", "expected a share such as 0.05"},
      {"[model\n", "run.toml:1: not TOML: "},
      {"[model]\nlayers = 1\nlayers = 2", "run.toml:3: not TOML: "},
      {"[model]\nlayers = 99999999999999999999", "run.toml:2: not TOML: "},
      {"extends = \"base.toml\"", "run.toml:1: extends: only a file"},
  };
  for (const auto& [toml, expected] : cases) {
    EXPECT_NE(reason_of(toml).find(expected), std::string::npos) << toml << "\n  " << reason_of(toml);
  }
}

TEST(Config, ContradictionsAreRefused) {
  const GoldenMessages golden;
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[model]\npreset = \"gpt2\"\nfamily = \"gpt\"",
       "run.toml:3: model.family: a preset (gpt2) has its family; drop one of the two, or set it to \"none\""},
      {"[model]\nheads = 6\nkv_heads = 4", "run.toml:3: model.kv_heads: 4 does not divide model.heads = 6"},
      {"[model]\nheads = 7\nhidden = 96",
       "run.toml:2: model.heads: 7 does not divide model.hidden = 96; or set model.head_dim"},
      {"[model]\nmax_sequence = 128", "data.sequence_length: 512 is longer than model.max_sequence = 128"},
      {"[batch]\nmicro = 3", "run.toml:2: batch.micro: 3 does not divide batch.global = 8"},
      {"[parallel]\nsharding = \"FULL_SHARD\"\nzero = 1",
       "run.toml:3: parallel.zero: 1 contradicts parallel.sharding = FULL_SHARD, which is stage 3"},
      {"[parallel]\nvirtual_stages = 2",
       "2 errors:\n  run.toml:2: parallel.virtual_stages: 2 needs parallel.pipeline above 1\n  run.toml:2: "
       "parallel.virtual_stages: 2 needs parallel.schedule = \"interleaved\" or \"zb-v\", is \"1f1b\""},
      {"[parallel]\nvirtual_stages = 2\npipeline = 2",
       "run.toml:2: parallel.virtual_stages: 2 needs parallel.schedule = \"interleaved\" or \"zb-v\", is \"1f1b\""},
      {"[precision]\ncompute = \"fp64\"\nmaster = \"fp32\"",
       "run.toml:3: precision.master: fp32 is narrower than precision.compute = fp64"},
      {"[precision]\nloss_scale = 1024",
       "run.toml:2: precision.loss_scale: is for precision.compute or precision.reduce = \"fp16\", not \"auto\" and "
       "\"auto\""},
      {"[precision]\ncompute = \"fp64\"\nreduce = \"bf16\"",
       "run.toml:3: precision.reduce: bf16 is narrower than precision.compute = fp64"},
      {"[precision]\ncompute = \"bf16\"\nloss_scale_window = 10",
       "run.toml:3: precision.loss_scale_window: is for precision.compute or precision.reduce = \"fp16\", not \"bf16\" "
       "and \"auto\""},
      {"[train]\nuntil = \"50 steps\"\n[schedule]\nwarmup = \"60 steps\"",
       "run.toml:4: schedule.warmup: 60 steps is longer than train.until = 50 steps; set a shorter one, or \"none\" "
       "for the default"},
      {"[train]\nstop_after = \"20000 steps\"",
       "run.toml:2: train.stop_after: 20000 steps is after train.until = 10000 steps"},
      {"[schedule]\ndecay = \"10 steps\"",
       "run.toml:2: schedule.decay: is for schedule.kind = \"wsd\", not \"cosine\""},
      {"[schedule]\nkind = \"wsd\"\ndecay = \"9500 steps\"",
       "run.toml:3: schedule.decay: 9500 steps with warm-up is longer than train.until = 10000 steps"},
      {"[schedule]\nmin_lr = 1.0", "run.toml:2: schedule.min_lr: 1 is above optimizer.lr = 0.0003"},
  };
  for (const auto& [toml, expected] : cases) EXPECT_EQ(reason_of(toml), expected) << toml;
  EXPECT_EQ(reason_of("[parallel]\nsharding = \"HYBRID_SHARD\"\nzero = 3"), "");
  for (const auto& [name, stage] :
       {std::pair{"NO_SHARD", 0}, {"SHARD_GRAD_OP", 2}, {"HYBRID_SHARD_ZERO2", 2}, {"FULL_SHARD", 3}})
    for (int zero = 0; zero <= 3; ++zero) {
      const bool hybrid = std::string(name).starts_with("HYBRID");
      const std::string reason = reason_of(fmt::format("[parallel]\nsharding = \"{}\"\nzero = {}", name, zero));
      if (zero == stage || (hybrid && zero == 1))
        EXPECT_EQ(reason, "") << name << zero;
      else
        EXPECT_NE(
            reason.find(fmt::format("{} contradicts parallel.sharding = {}, which is stage {}", zero, name, stage)),
            std::string::npos)
            << reason;
    }
  EXPECT_EQ(reason_of("[parallel]\nsharding = \"HYBRID_SHARD\"\nzero = 1"), "");
  EXPECT_EQ(reason_of("[precision]\ncompute = \"fp16\"\nloss_scale = 1\nloss_scale_window = 1"), "");
  EXPECT_EQ(reason_of("[precision]\nreduce = \"fp16\"\nloss_scale = 8"), "");
  // The bound itself is allowed.
  for (const char* fits :
       {"[train]\nuntil = \"50 steps\"\n[schedule]\nwarmup = \"50 steps\"", "[train]\nstop_after = \"10000 steps\"",
        "[schedule]\nkind = \"wsd\"\ndecay = \"9000 steps\"", "[schedule]\nmin_lr = 3e-4",
        "[model]\nmax_sequence = 512", "[model]\nheads = 7\nhidden = 96\nhead_dim = 16",
        "[parallel]\npipeline = 2\nvirtual_stages = 2\nschedule = \"interleaved\"",
        "[parallel]\npipeline = 2\nvirtual_stages = 2\nschedule = \"zb-v\"",
        "[data]\nvalidation = [{ path = \"a\", weight = 1.0 }]"})
    EXPECT_EQ(reason_of(fits), "") << fits;
  EXPECT_EQ(reason_of("[schedule]\nkind = \"wsd\"\ndecay = \"9001 steps\""),
            "run.toml:3: schedule.decay: 9001 steps with warm-up is longer than train.until = 10000 steps");
  for (const char* schedule : {"gpipe", "zb-h1"})
    EXPECT_EQ(reason_of(fmt::format("[parallel]\npipeline = 2\nvirtual_stages = 2\nschedule = \"{}\"", schedule)),
              fmt::format("run.toml:3: parallel.virtual_stages: 2 needs parallel.schedule = \"interleaved\" or "
                          "\"zb-v\", is \"{}\"",
                          schedule));
  EXPECT_EQ(reason_of("[train]\nuntil = \"50M tokens\""), "");  // other unit: nothing to compare
}

TEST(Config, SetsComeLastAndInOrder) {
  const Config c =
      parse("[optimizer]\nlr = 1e-3\n[batch]\nglobal = 4", "run.toml",
            {"optimizer.lr=2e-3", "optimizer.lr = 4e-3", "train.until=3000 steps", "run.name=7", "data.train=a",
             "run.tags=x, y", "parallel.offload=[\"optimizer\",\"gradients\"]", "energy.slowdown=5%",
             "train.deterministic=false", "precision.compute=fp64", "parallel.recompute=attention,norm_up",
             "data.tokenizer=\"with space\"", "train.trace_steps=[2,3]"});
  EXPECT_EQ(c.optimizer.lr, 4e-3);
  EXPECT_EQ(c.batch.global, 4);
  EXPECT_EQ(c.train.until, steps(3000));
  EXPECT_EQ(c.run.name, "7");
  EXPECT_EQ(c.data.train[0].path, "a");
  EXPECT_EQ(c.run.tags, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(c.parallel.offload, (std::vector<std::string>{"optimizer", "gradients"}));
  EXPECT_FALSE(c.train.deterministic);
  EXPECT_EQ(c.precision.compute, "fp64");
  EXPECT_EQ(c.parallel.recompute.parts, (std::vector<std::string>{"attention", "norm_up"}));
  EXPECT_EQ(c.data.tokenizer, "with space");
  EXPECT_EQ(c.train.trace_steps, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(c.origins.at("optimizer.lr").describe(), "--set");
  EXPECT_EQ(c.origins.at("batch.global").describe(), "run.toml:4");
}

// A batch system sets keys by variables: they win over the file, and `--set` wins over them.
TEST(Config, VariablesWinOverTheFile) {
  const Folder folder;
  const auto file =
      folder.write("run.toml", "[energy]\npolicy = \"monitor\"\nslowdown = 0.5\npower_budget = \"1 kW\"\n");
  std::map<std::string, std::string> variables{
      {"MOLEN_ENERGY_POLICY", "min_energy"}, {"MOLEN_ENERGY_SLOWDOWN", "5%"}, {"MOLEN_ENERGY_POWER_BUDGET", ""}};
  const Environment environment = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  Config c = load(file, {"energy.slowdown=0.1"}, {}, environment);
  EXPECT_EQ(c.energy.policy, "min_energy");
  EXPECT_EQ(c.origins.at("energy.policy").describe(), "MOLEN_ENERGY_POLICY");
  EXPECT_EQ(c.where("energy.policy"), "MOLEN_ENERGY_POLICY: energy.policy");
  EXPECT_DOUBLE_EQ(c.energy.slowdown, 0.1);
  EXPECT_EQ(c.origins.at("energy.slowdown").describe(), "--set");
  EXPECT_EQ(c.energy.power_budget, Watts(1000)) << "an empty variable sets nothing";
  EXPECT_NE(to_toml(c).find("MOLEN_ENERGY_POLICY"), std::string::npos);
  EXPECT_EQ(load(file).energy.policy, "monitor") << "no variable is read unless the caller asks for it";
  variables["MOLEN_ENERGY_POWER_BUDGET"] = "none";
  c = load(file, {}, {}, environment);
  EXPECT_EQ(c.energy.power_budget, std::nullopt);
  EXPECT_DOUBLE_EQ(c.energy.slowdown, 0.05);
  for (const char* wrong : {"fast", "5 W", "-1", "\xff", "a\nb"}) {
    variables["MOLEN_ENERGY_SLOWDOWN"] = wrong;
    try {
      load(file, {}, {}, environment);
      ADD_FAILURE() << wrong;
    } catch (const UsageError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("MOLEN_ENERGY_SLOWDOWN")) << error.what();
    }
  }
}

TEST(Config, NoneResetsWhatMayBeAbsent) {
  const Config c = parse("[energy]\npower_budget = \"300 W\"\n[model]\nlayers = 3", "run.toml",
                         {"energy.power_budget=none", "model.layers=none"});
  EXPECT_EQ(c.energy.power_budget, std::nullopt);
  EXPECT_EQ(c.model.layers, std::nullopt);
  EXPECT_NE(reason_of_set("batch.global=none"), "");
}

TEST(Config, BadSets) {
  const GoldenMessages golden;
  EXPECT_EQ(reason_of_set("data.validation=[{path=\"x\", weight=2.0}]"),
            "--set data.validation: x has a weight; weights mix data.train, and each held-out set is read whole");
  EXPECT_EQ(reason_of_set("model.layers"), "--set model.layers: expected table.key=value");
  EXPECT_EQ(reason_of_set("model.layers=x"), "--set model.layers: expected a positive integer, got \"x\"");
  EXPECT_EQ(reason_of_set("model.layers="), "--set model.layers: expected a positive integer, got \"\"");
  EXPECT_NE(reason_of_set("lr=3").find("did you mean 'optimizer.lr'?"), std::string::npos);
  EXPECT_NE(reason_of_set("data.train[0].weight=3").find("unknown key"), std::string::npos);
  EXPECT_NE(reason_of_set("run.name=\xff\xfe").find("not UTF-8"), std::string::npos);
  EXPECT_NE(reason_of_set("run.name=a\nb"), "");
  EXPECT_NE(reason_of_set(std::string(100000, 'k') + "=1").find("unknown key"), std::string::npos);
  EXPECT_LT(reason_of_set(std::string(100000, 'k') + "=1").size(), 400u);
  EXPECT_LT(reason_of_set("batch.global=" + std::string(100000, 'x')).size(), 400u);
}

TEST(Config, ExtendsIsReadFirstAndRelativeToItsFile) {
  const Folder folder;
  folder.write("base/root.toml", "[batch]\nglobal = 16\nmicro = 2\n[run]\nname = \"root\"");
  folder.write("base/middle.toml", "extends = \"root.toml\"\n[batch]\nmicro = 4");
  const fs::path file = folder.write("run.toml", "extends = \"base/middle.toml\"\n\n[run]\nname = \"mine\"");
  const Config c = load(file, {"batch.global=32"});
  EXPECT_EQ(c.batch.global, 32);
  EXPECT_EQ(c.batch.micro, 4);
  EXPECT_EQ(c.run.name, "mine");
  EXPECT_EQ(c.origins.at("batch.micro").describe(), (folder.path / "base/middle.toml").string() + ":3");
}

TEST(Config, ExtendsCyclesDepthAndAbsence) {
  const GoldenMessages golden;
  const Folder folder;
  folder.write("a.toml", "extends = \"b.toml\"");
  folder.write("b.toml", "extends = \"./a.toml\"");
  EXPECT_NE(reason([&] { load(folder.path / "a.toml"); }).find("extends itself"), std::string::npos);
  folder.write("self.toml", "extends = \"self.toml\"");
  EXPECT_NE(reason([&] { load(folder.path / "self.toml"); }).find("extends itself"), std::string::npos);
  const fs::path lost = folder.write("lost.toml", "\nextends = \"nowhere.toml\"");
  EXPECT_NE(reason([&] { load(lost); }).find("lost.toml:2: extends: there is no file"), std::string::npos);
  const fs::path wrong = folder.write("wrong.toml", "extends = 3");
  EXPECT_NE(reason([&] { load(wrong); }).find("wrong.toml:1: extends: expected the path"), std::string::npos);
  for (int i = 0; i < 40; ++i) folder.write(fmt::format("{}.toml", i), fmt::format("extends = \"{}.toml\"", i + 1));
  folder.write("40.toml", "");
  EXPECT_NE(reason([&] { load(folder.path / "0.toml"); }).find("more than 16 files"), std::string::npos);
  EXPECT_EQ(reason([&] { load(folder.path / "30.toml"); }), "");
  EXPECT_NE(reason([&] { load(folder.path / "absent.toml"); }).find("absent.toml"), std::string::npos);
  EXPECT_NE(reason([&] { load(folder.path); }), "");  // a directory
}

TEST(Config, HostileDocuments) {
  std::string arrays = "[data]\ntrain = " + std::string(200000, '[');
  EXPECT_NE(reason_of(arrays).find("not TOML"), std::string::npos);
  std::string dotted = "model";
  for (int i = 0; i < 200000; ++i) dotted += ".a";
  EXPECT_NE(reason_of(dotted + " = 1").find("too many dots"), std::string::npos);
  EXPECT_NE(reason_of("[" + dotted + "]\nb = 1"), "");
  std::string below = "data";
  for (int i = 0; i < 9000; ++i) below += ".a";
  EXPECT_NE(reason_of(below + " = 1"), "");
  const auto nested = [](const std::string& open, const std::string& close, int depth) {
    std::string text = "1";
    for (int i = 0; i < depth; ++i) text = open + text + close;
    return reason_of("[data]\ntrain = " + text);
  };
  for (const auto& [open, close] : {std::pair{"[", "]"}, {"{a=", "}"}}) {
    EXPECT_EQ(nested(open, close, 9), "run.toml:2: values are nested more than 8 deep");
    EXPECT_NE(nested(open, close, 8).find("data.train: expected a path"), std::string::npos);
  }
  EXPECT_NE(reason_of(std::string(2 << 20, '#')).find("larger"), std::string::npos);
  EXPECT_NE(reason_of(std::string("[run]\nname = \"\0\"", 16)), "");
  EXPECT_NE(reason_of("[run]\nname = \"\\u0000\""), "");
  EXPECT_NE(reason_of("[run]\nname = \"\xff\""), "");
  EXPECT_NE(reason_of("[\"mod\\nel\"]\nx = 1"), "");
  EXPECT_EQ(reason_of(""), "");
  std::string many = "[run]\ntags = [";
  for (int i = 0; i < 5000; ++i) many += fmt::format("\"t{}\",", i);
  EXPECT_NE(reason_of(many + "]"), "");
}

// A run's directory is one path component below run.dir, whatever gives its name: a file, a flag, a checkpoint.
TEST(Config, NoRunLeavesItsFolder) {
  const std::vector<std::string> names{"../x",     "..",
                                       ".",        "/etc/cron.d/x",
                                       "a/b",      "a/../../x",
                                       "a\nb",     "\x1b]52;c;eA==\x07",
                                       "a\x7f",    std::string("a\0b", 3),
                                       "\xc2\x9b", std::string(201, 'a')};
  for (const std::string& name : names) {
    const std::string shown = Json(name).dump();
    EXPECT_NE(reason_of_set("run.name=" + name), "") << shown;
    EXPECT_NE(reason_of("[run]\nname = " + shown), "") << shown;
    Json document{{"run", {{"name", name}}}};
    EXPECT_NE(reason([&] { from_json(document, "state.json"); }), "") << shown;
  }
  EXPECT_EQ(reason_of("[run]\nname = \"..x\""), "");
}

TEST(Config, AssignRecordsItsOrigin) {
  const GoldenMessages golden;
  Config c = load(std::nullopt);
  assign(c, "precision.compute", "bf16", {Origin::Kind::kOther, "measured"});
  EXPECT_EQ(c.precision.compute, "bf16");
  EXPECT_NE(to_toml(c).find("# measured"), std::string::npos);
  EXPECT_EQ(reason([&] {
              assign(c, "math.threads", -1, {Origin::Kind::kOther, "measured"});
            }),
            "measured: math.threads: expected an integer of 0 or more, got -1");
  EXPECT_NE(reason([&] { assign(c, "math.thread", 1, {}); }).find("did you mean 'math.threads'?"), std::string::npos);
}

// Characters that control a terminal are escaped in errors and in the resolved file; other text is unchanged.
TEST(Config, TextAsToml) {
  EXPECT_EQ(toml_value("a\x7f\x1f\x01 \xc2\x80\xc3\xa9~\n\t\"\\/"),
            "\"a\\u007f\\u001f\\u0001 \xc2\x80\xc3\xa9~\\n\\t\\\"\\\\/\"");
  EXPECT_EQ(toml_value(1.0), "1.0");
  EXPECT_EQ(toml_value(0.1), "0.1");
  EXPECT_EQ(toml_value(1e300), "1e+300");
  EXPECT_EQ(toml_value(std::nan("")), "nan");
  EXPECT_EQ(toml_value(HUGE_VAL), "inf");
  EXPECT_EQ(toml_value(-HUGE_VAL), "-inf");
  EXPECT_EQ(toml_value(-3), "-3");
  EXPECT_EQ(toml_value(std::uint64_t{18446744073709551615u}), "18446744073709551615");
  EXPECT_EQ(toml_value(true), "true");
  EXPECT_EQ(toml_value(false), "false");
  EXPECT_EQ(toml_value(Json()), "none");
  EXPECT_EQ(toml_value(Json::parse(R"(["a", 1, []])")), "[\"a\", 1, []]");
  EXPECT_EQ(toml_value(Json::parse(R"({"b c": 1, "a-b_9": {}})")), "{ \"b c\" = 1, a-b_9 = {} }");
  Config c = load(std::nullopt);
  c.origins["batch.micro"] = {Origin::Kind::kOther, "a\x1f\x7f\n\xc2\x80 ~"};
  EXPECT_NE(to_toml(c).find("# a???\xc2\x80 ~\n"), std::string::npos);
}

TEST(Config, DiffSaysWhatDecidesTheNumbers) {
  const Config a = load(std::nullopt);
  const Config b =
      load(std::nullopt, {"optimizer.lr=1e-3", "parallel.zero=1", "precision.reduce=bf16", "train.seed=3"});
  const auto changes = diff(a, b);
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[0].key, "parallel.zero");
  EXPECT_EQ(changes[0].before, "none");
  EXPECT_EQ(changes[0].after, "1");
  EXPECT_EQ(changes[0].effect, Effect::kRun);
  EXPECT_EQ(changes[2].key, "optimizer.lr");
  EXPECT_EQ(changes[2].before, "0.0003");
  EXPECT_EQ(changes[2].effect, Effect::kNumbers);
  EXPECT_EQ(changes[3].effect, Effect::kNumbers);
  EXPECT_TRUE(diff(a, a).empty());
}

// Only these keys decide the numbers of a training.
TEST(Config, EffectsFollowTheDesign) {
  const std::set<std::string> tables{"model", "data", "batch", "optimizer", "schedule"};
  const std::set<std::string> keys{"train.until", "train.seed", "precision.compute"};
  for (const Field& f : fields()) {
    const bool expected = tables.contains(f.key.substr(0, f.key.find('.'))) || keys.contains(f.key);
    EXPECT_EQ(f.effect == Effect::kNumbers, expected) << f.key;
  }
}

TEST(Config, FieldsAreNamedOnceAndReadTheirOwnDefault) {
  std::set<std::string> keys;
  for (const Field& f : fields()) {
    EXPECT_TRUE(keys.insert(f.key).second) << f.key;
    const Json value = f.write(Config{});
    if (value.is_null()) continue;
    Config c;
    EXPECT_NO_THROW(f.read(c, value)) << f.key;
    EXPECT_TRUE(diff(c, Config{}).empty()) << f.key;
  }
}

// Users rely on the reference page. After an intended change, run MOLEN_UPDATE_GOLDEN=1 config_test.
TEST(Config, ReferenceIsFrozen) {
  const fs::path golden = "src/config/reference.golden.txt";
  if (std::getenv("MOLEN_UPDATE_GOLDEN")) write_file_atomic(golden, reference());
  EXPECT_EQ(reference(), read_file(golden));
  EXPECT_EQ(reference_json().size(), fields().size());
}

// Returns a configuration with random values in many keys.
Config any_config() {
  const auto maybe = [](auto gen) { return *rc::gen::maybe(gen); };
  const auto word = rc::gen::map(rc::gen::nonEmpty(rc::gen::container<std::string>(
                                     rc::gen::element('a', ',', '"', '\\', '#', ' ', '=', '[', '\'', 'z', '.', '-'))),
                                 [](const std::string& s) { return "w" + s; });
  Config c;
  if (const auto preset = maybe(word)) c.model.preset = *preset;
  if (const auto n = maybe(rc::gen::inRange<std::int64_t>(1, 100))) c.model.layers = *n;
  if (const auto t = maybe(rc::gen::arbitrary<bool>())) c.model.tied = *t;
  if (*rc::gen::arbitrary<bool>()) c.model.rope_scaling = RopeScaling{.factor = 1.0 / *rc::gen::inRange(1, 1000)};
  const int sources = *rc::gen::inRange(0, 4);
  for (int i = 0; i < sources; ++i) {
    c.data.train.push_back(
        {*word, *rc::gen::inRange(1, 1000) / 7.0, *rc::gen::container<std::vector<std::string>>(word)});
  }
  c.data.seed = *rc::gen::inRange<std::int64_t>(0, 1 << 30);
  c.batch.micro = *rc::gen::inRange<std::int64_t>(1, 9);
  c.batch.global = c.batch.micro * *rc::gen::inRange<std::int64_t>(1, 9);
  c.optimizer.lr = *rc::gen::inRange(1, 1 << 30) / 7.3e9;
  c.schedule.warmup = steps(*rc::gen::inRange<std::int64_t>(0, 3000));
  c.train.until = {Horizon::Unit::kTokens,
                   static_cast<double>(*rc::gen::inRange<std::int64_t>(1, std::int64_t{1} << 50))};
  if (*rc::gen::arbitrary<bool>())
    c.train.stop_after = Horizon{Horizon::Unit::kSeconds, *rc::gen::inRange(1, 1 << 30) / 9.0};
  c.train.trace_steps = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(1, 1000));
  if (*rc::gen::arbitrary<bool>()) c.train.hang_timeout = Seconds(*rc::gen::inRange(1, 1 << 30) / 7.0);
  if (*rc::gen::arbitrary<bool>()) c.energy.power_budget = Watts(*rc::gen::inRange(1, 1 << 30) / 3.0);
  c.energy.slowdown = *rc::gen::inRange(0, 1000) / 1001.0;
  if (*rc::gen::arbitrary<bool>()) {
    c.energy.energy_budget = Joules(*rc::gen::inRange(1, 1 << 30) * 1200.0);
    c.energy.on_budget = *rc::gen::element<std::string>("stop", "shrink");
  }
  if (*rc::gen::arbitrary<bool>()) c.energy.co2_budget = Kilograms(*rc::gen::inRange(1, 1 << 30) / 7.0);
  c.parallel.recompute = *rc::gen::element(Recompute{}, Recompute{Recompute::Mode::kFull, {}, Bytes(0)},
                                           Recompute{Recompute::Mode::kFull, {}, Bytes(0), 3},
                                           Recompute{Recompute::Mode::kParts, {"attention", "norm_up"}, Bytes(0), 2},
                                           Recompute{Recompute::Mode::kParts, {"attention", "down"}, Bytes(0)},
                                           Recompute{Recompute::Mode::kBudget, {}, Bytes(123456789)});
  if (*rc::gen::arbitrary<bool>()) {
    c.precision.compute = "fp16";
    c.precision.loss_scale = *rc::gen::inRange(100, 1 << 30) / 99.0;
  }
  if (*rc::gen::arbitrary<bool>()) c.parallel.data_shard = 1;
  if (const auto dir = maybe(word)) c.checkpoint.dir = *dir;
  c.origins["checkpoint.dir"] = {Origin::Kind::kFile, "a\nb = 1.toml:3"};
  return c;
}

std::string describe(const std::vector<Difference>& changes) {
  std::string text;
  for (const Difference& d : changes) text += d.key + ": " + d.before + " -> " + d.after + "\n";
  return text;
}

RC_GTEST_PROP(Config, ResolvedTomlAndJsonReadBackTheSame, ()) {
  const Config c = any_config();
  const std::string toml = to_toml(c);
  RC_LOG(toml);
  const auto from_text = diff(c, parse(toml, "config.toml"));
  RC_LOG(describe(from_text));
  RC_ASSERT(from_text.empty());
  RC_ASSERT(diff(c, from_json(parse_json(to_json(c).dump(), "config.json"), "config.json")).empty());
}

TEST(Config, JsonFromOutsideIsChecked) {
  const GoldenMessages golden;
  const auto bad = [](const char* text) { return reason([&] { from_json(parse_json(text, "c.json"), "c.json"); }); };
  EXPECT_NE(bad("[]"), "");
  EXPECT_NE(bad("{\"model\": 3}"), "");
  EXPECT_NE(bad("{\"model\": {\"layer\": 3}}").find("did you mean 'model.layers'?"), std::string::npos);
  EXPECT_NE(bad("{\"model\": {\"layers\": null}}").find("expected a positive integer, got none"), std::string::npos);
  EXPECT_NE(bad("{\"model\": {\"layers\": 18446744073709551615}}").find("expected"), std::string::npos);
}

// Each of the fuzzer's seeds is read or refused. A configuration that is read equals the one read from its resolved
// form.
TEST(Config, FuzzSeeds) {
  int seeds = 0, read = 0;
  for (const auto& entry : fs::directory_iterator("tests/fuzz/seeds/config")) {
    ++seeds;
    try {
      const Config c = parse(read_file(entry.path()), "seed");
      ++read;
      EXPECT_TRUE(diff(c, parse(to_toml(c), "again")).empty()) << entry.path();
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()).rfind("again", 0), std::string::npos) << entry.path() << error.what();
    }
  }
  EXPECT_GE(read, 4);
  EXPECT_GE(seeds, 10);
}

}  // namespace
}  // namespace molen::config
