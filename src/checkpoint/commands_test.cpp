// Tests the whole output of the commands, and their refusals.
#include "checkpoint/commands.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <sstream>

#include "arch/json.h"
#include "arch/parameters.h"
#include "base/error.h"
#include "base/json.h"
#include "base/test_golden.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/digest.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/test_folder.h"

namespace molen::checkpoint {
namespace {

arch::Architecture tiny() {
  arch::Architecture a;
  a.name = "tiny";
  a.layers = 1, a.hidden = 8, a.ffn = 12, a.heads = a.kv_heads = 2, a.head_dim = 4, a.vocabulary = 16,
  a.max_sequence = 10;
  return a;
}

Json state_of_tiny() {
  return {{"arch", arch::to_json(tiny())}, {"special_tokens", {{"bos", 1}, {"eos", {2, "x", 3}}, {"pad", 4}}}};
}

// Saves a checkpoint of the model's weights with a distinct number in each.
fs::path save_tiny(const fs::path& directory, std::int64_t step, const Json& state = state_of_tiny(),
                   const std::map<std::string, std::string>& attachments = {},
                   const std::function<void(Span&)>& change = {}) {
  std::vector<Span> spans;
  for (const arch::Parameter& p : arch::parameters(tiny())) {
    spans.push_back({p.name, DType::kF32, p.shape, whole_box(p.shape), nullptr,
                     [](std::int64_t first, std::int64_t count, void* to) {
                       for (std::int64_t i = 0; i < count; ++i)
                         static_cast<float*>(to)[i] = static_cast<float>(first + i) / 8;
                     }});
    if (change) change(spans.back());
  }
  SaveOptions options;
  options.directory = directory;
  options.step = step;
  options.state = state;
  options.attachments = attachments;
  return save(spans, options);
}

// The output of a command.
struct Printed {
  std::string out, err;
};
template <class Options>
Printed printed(void (*command)(const Options&, std::ostream&, std::ostream&), const Options& options) {
  std::ostringstream out, err;
  command(options, out, err);
  return {out.str(), err.str()};
}
template <class Options>
std::string command_refusal(void (*command)(const Options&, std::ostream&, std::ostream&), const Options& options) {
  try {
    printed(command, options);
    return "accepted";
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
}

std::int64_t bytes_of_tiny() {
  return 4 * arch::num_parameters(tiny());
}

TEST(CheckpointCommands, ListShowsEachAndWhatIsWrongWithIt) {
  const TestFolder folder;
  const fs::path directory = folder / "run/checkpoints";
  for (const int step : {1, 2, 3, 4}) save_tiny(directory, step);
  fs::rename(directory / "step-000000003", directory / "step-000000007");
  fs::remove(directory / "step-000000002/index.json");
  std::string state = read_file(directory / "step-000000004/state.json");
  state.replace(state.find("\"format_version\": 2"), 19, "\"format_version\": 9");
  write_file_atomic(directory / "step-000000004/state.json", state);
  fs::create_directory(directory / "step-000000008.partial-1");
  fs::rename(save_tiny(directory, 9), directory / "step-000000009.damaged-1");

  const std::size_t tensors = arch::parameters(tiny()).size();
  const auto path = [&](const char* name) { return (directory / name).string(); };
  const std::string gone = path("step-000000002/index.json"), version = path("step-000000004/state.json");
  const Printed table = printed(list_command, {folder / "run", false});
  EXPECT_EQ(table.out,
            fmt::format("      step   tensors         bytes  path\n"
                        "         1  {:>8}  {:>12}  {}\n"
                        "         2  damaged: {}: cannot be read: No such file or directory\n"
                        "         4  of another version: {}: format version 9; this molen reads 1 to 2: use "
                        "the version of molen that wrote it\n"
                        "         7  damaged: {}: holds step 3\n",
                        tensors, bytes_of_tiny(), path("step-000000001"), gone, version, path("step-000000007")));
  EXPECT_EQ(table.err, fmt::format("{}: unfinished, skipped\n{}: set aside as damaged\n",
                                   path("step-000000008.partial-1"), path("step-000000009.damaged-1")));

  // A path to a directory of checkpoints works as well.
  const Printed json = printed(list_command, {directory, true});
  const Json rows = Json::parse(json.out);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0],
            (Json{{"path", path("step-000000001")}, {"step", 1}, {"tensors", tensors}, {"bytes", bytes_of_tiny()}}));
  EXPECT_EQ(
      rows[3],
      (Json{{"path", path("step-000000007")}, {"step", 7}, {"problem", path("step-000000007") + ": holds step 3"}}));
  EXPECT_EQ(json.err, table.err);
  EXPECT_EQ(command_refusal(list_command, {folder / "absent", false}),
            (folder / "absent").string() + ": no such directory");
}

// A checkpoint under the name of another step cannot be resumed.
TEST(CheckpointCommands, ResolveSaysWhyThereIsNone) {
  const GoldenMessages golden;
  const TestFolder folder;
  const auto resolved = [](const fs::path& path) -> std::string {
    try {
      return resolve(path).string();
    } catch (const UsageError& error) {
      return GoldenMessages::note(error.what());
    }
  };
  EXPECT_EQ(resolved(folder / "absent"), (folder / "absent").string() + ": no such directory");
  write_file_atomic(folder / "file", "x");
  EXPECT_EQ(resolved(folder / "file"), (folder / "file").string() + ": no such directory");
  const std::string none =
      folder.path().string() + ": there is no complete checkpoint in this folder or in its 'checkpoints'";
  EXPECT_EQ(resolved(folder.path()), none);
  fs::rename(save_tiny(folder / "checkpoints", 3), folder / "checkpoints/step-000000007");
  EXPECT_EQ(resolved(folder.path()), none);
  std::vector<std::string> skipped;
  EXPECT_EQ(latest(folder / "checkpoints", &skipped), std::nullopt);
  EXPECT_EQ(skipped, std::vector<std::string>{(folder / "checkpoints/step-000000007").string() +
                                              ": holds another step; skipped"});
  const fs::path good = save_tiny(folder / "checkpoints", 2);
  EXPECT_EQ(resolved(folder.path()), good.string());
  EXPECT_EQ(resolved(folder / "checkpoints"), good.string());
}

TEST(CheckpointCommands, VerifySaysHowMuchItReadAndTheDigest) {
  const TestFolder folder;
  const std::vector<float> values(1 << 20, 0.5f);  // 4 MiB
  const fs::path path =
      save({{"w", DType::kF32, {1 << 20}, {{0}, {1 << 20}}, values.data(), {}}}, {.directory = folder.path(),
                                                                                  .step = 1,
                                                                                  .rank = 0,
                                                                                  .ranks = 1,
                                                                                  .agree = {},
                                                                                  .state = Json::object(),
                                                                                  .attachments = {},
                                                                                  .keep = 0});
  fs::create_directory(folder / "step-000000002.partial-1");
  const Printed text = printed(verify_command, {folder.path(), false, true});
  EXPECT_EQ(text.err, (folder / "step-000000002.partial-1").string() + ": unfinished, skipped\n");
  const std::string begin = path.string() + ": 1 tensors, 4194304 bytes, every block equals its hash (";
  const std::string end = " MiB/s)\ndigest " + state_digest(Checkpoint(path)).hex() + "\n";
  ASSERT_TRUE(text.out.starts_with(begin)) << text.out;
  ASSERT_TRUE(text.out.ends_with(end)) << text.out;
  // "0.01 s, 400": the rate belongs to the unrounded time; the printed time has two decimals.
  double seconds = 0, rate = 0;
  ASSERT_EQ(std::sscanf(text.out.c_str() + begin.size(), "%lf s, %lf MiB/s)", &seconds, &rate), 2) << text.out;
  EXPECT_GE(rate, 4 / (seconds + 0.0051) - 1) << text.out;
  EXPECT_LE(rate, seconds > 0.01 ? 4 / (seconds - 0.0051) + 1 : 1e9) << text.out;

  EXPECT_EQ(printed(verify_command, {path, false, false}).out.find("digest"), std::string::npos);
  Json json = Json::parse(printed(verify_command, {path, true, true}).out);
  EXPECT_GT(json["seconds"], 0.0);
  json.erase("seconds");
  EXPECT_EQ(json, (Json{{"path", path.string()},
                        {"tensors", 1},
                        {"bytes", 4194304},
                        {"digest", state_digest(Checkpoint(path)).hex()}}));
  EXPECT_FALSE(Json::parse(printed(verify_command, {path, true, false}).out).contains("digest"));
}

TEST(CheckpointCommands, ExportSaysWhatItWroteAndTakesTheTokenizerItIsGiven) {
  const TestFolder folder;
  const fs::path path = save_tiny(folder / "checkpoints", 1);
  ExportOptions options;
  options.source = folder.path();
  options.destination = folder / "hf";
  Printed said = printed(export_command, options);
  EXPECT_EQ(said.out, fmt::format("{}: {} parameters of tiny written to {}\n", path.string(), bytes_of_tiny() / 4,
                                  (folder / "hf").string()));
  EXPECT_EQ(said.err, "no tokenizer.json in the checkpoint; the directory will hold none\n");
  EXPECT_FALSE(fs::exists(folder / "hf/tokenizer.json"));
  const Json config = read_json(folder / "hf/config.json");
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_EQ(config["bos_token_id"], 1);
  EXPECT_EQ(config["eos_token_id"], Json::array({2, 3}));
  EXPECT_EQ(config["pad_token_id"], 4);

  write_file_atomic(folder / "mine.json", R"({"added_tokens": []})");
  options.tokenizer = folder / "mine.json";
  options.destination = folder / "bf16";
  options.dtype = "bf16";
  options.json = true;
  said = printed(export_command, options);
  EXPECT_EQ(Json::parse(said.out), (Json{{"checkpoint", path.string()},
                                         {"directory", (folder / "bf16").string()},
                                         {"parameters", bytes_of_tiny() / 4}}));
  EXPECT_EQ(said.err, "");
  EXPECT_EQ(read_file(folder / "bf16/tokenizer.json"), R"({"added_tokens": []})");
  EXPECT_EQ(read_json(folder / "bf16/config.json")["torch_dtype"], "bfloat16");
}

// The given tokenizer takes precedence over the attached one.
TEST(CheckpointCommands, ExportPrefersTheTokenizerItIsGiven) {
  const TestFolder folder;
  save_tiny(folder.path(), 1, {{"arch", arch::to_json(tiny())}}, {{"tokenizer.json", R"({"attached": 1})"}});
  ExportOptions options;
  options.source = folder.path();
  options.destination = folder / "hf";
  EXPECT_EQ(printed(export_command, options).err, "");
  EXPECT_EQ(read_file(folder / "hf/tokenizer.json"), R"({"attached": 1})");
  EXPECT_TRUE(read_json(folder / "hf/config.json")["bos_token_id"].is_null());
  write_file_atomic(folder / "mine.json", R"({"mine": 1})");
  options.tokenizer = folder / "mine.json";
  options.destination = folder / "hf2";
  printed(export_command, options);
  EXPECT_EQ(read_file(folder / "hf2/tokenizer.json"), R"({"mine": 1})");
}

TEST(CheckpointCommands, ExportRefuses) {
  const TestFolder folder;
  const auto refused = [&](const fs::path& source, auto&& change) {
    ExportOptions options;
    options.source = source;
    options.destination = folder / "hf";
    change(options);
    const std::string text = command_refusal(export_command, options);
    EXPECT_FALSE(fs::exists(folder / "hf")) << text;
    return text;
  };
  const auto nothing = [](ExportOptions&) {};
  const fs::path good = save_tiny(folder / "a", 1);
  EXPECT_EQ(refused(good, [](ExportOptions& o) { o.max_shard_bytes = 0; }),
            "the largest size of a shard must be positive, is 0");
  EXPECT_EQ(refused(good, [](ExportOptions& o) { o.dtype = "i32"; }),
            "weights cannot be exported as i32; known: fp32, bf16, fp16, fp64");
  const fs::path nameless = save_tiny(folder / "b", 1, {{"step", 1}}), empty = save_tiny(folder / "c", 1, Json());
  for (const fs::path& path : {nameless, empty})
    EXPECT_EQ(refused(path, nothing),
              (path / "state.json").string() + ": says nothing of the model ('arch'), so it cannot be exported");
  const std::string norm = "model.norm.weight";
  const fs::path shaped = save_tiny(folder / "d", 1, state_of_tiny(), {}, [&](Span& span) {
    if (span.tensor == norm) span.shape = {2, 4}, span.box = whole_box(span.shape);
  });
  EXPECT_EQ(refused(shaped, nothing),
            shaped.string() + ": tensor '" + norm + "' is fp32 [2, 4], the model needs [8] of a floating type");
  const fs::path whole = save_tiny(folder / "e", 1, state_of_tiny(), {}, [&](Span& span) {
    if (span.tensor == norm) span.dtype = DType::kI32;
  });
  EXPECT_EQ(refused(whole, nothing),
            whole.string() + ": tensor '" + norm + "' is i32 [8], the model needs [8] of a floating type");
  const fs::path lacks = save_tiny(folder / "f", 1, state_of_tiny(), {}, [&](Span& span) {
    if (span.tensor == norm) span.tensor = "model.norm.weigth";
  });
  EXPECT_EQ(refused(lacks, nothing),
            lacks.string() + ": no tensor 'model.norm.weight'; did you mean 'model.norm.weigth'?");
}

TEST(CheckpointCommands, ImportSaysWhatItTookAndWhatItDidNotUse) {
  const TestFolder folder;
  save_tiny(folder / "from", 1);
  ExportOptions out;
  out.source = folder / "from";
  out.destination = folder / "hf";
  printed(export_command, out);
  Json config = read_json(folder / "hf/config.json");
  config["some_new_key"] = 1;
  write_file_atomic(folder / "hf/config.json", config.dump());
  const std::string parameters = std::to_string(bytes_of_tiny() / 4);
  const Printed said = printed(import_command, {folder / "hf", folder / "to", false});
  EXPECT_EQ(said.err, "config.json: 'some_new_key' is not used\n");
  EXPECT_EQ(said.out, (folder / "hf").string() + ": " + parameters + " parameters written to " +
                          (folder / "to/step-000000000").string() + "\n");
  const Checkpoint checkpoint(folder / "to/step-000000000");
  EXPECT_EQ(checkpoint.step(), 0);
  EXPECT_EQ(checkpoint.state()["step"], 0);
  EXPECT_EQ(checkpoint.state()["imported"], true);
  EXPECT_EQ(checkpoint.state()["special_tokens"], (Json{{"bos", 1}, {"eos", {2, 3}}, {"pad", 4}}));
  EXPECT_EQ(state_digest(checkpoint).hex(), state_digest(Checkpoint(folder / "from/step-000000001")).hex());
  EXPECT_FALSE(checkpoint.has_attachment("tokenizer.json"));
  const std::string again = ": holds checkpoints already; nothing is written over";
  EXPECT_EQ(command_refusal(import_command, {folder / "hf", folder / "to", false}), (folder / "to").string() + again);
  EXPECT_EQ(command_refusal(import_command, {folder / "hf", folder / "to/step-000000000", false}),
            (folder / "to/step-000000000").string() + again);
  fs::create_directory(folder / "empty");
  EXPECT_EQ(Json::parse(printed(import_command, {folder / "hf", folder / "empty", true}).out),
            (Json{{"checkpoint", (folder / "empty/step-000000000").string()}, {"parameters", bytes_of_tiny() / 4}}));
}

}  // namespace
}  // namespace molen::checkpoint
