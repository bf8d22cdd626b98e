// Tests directories written and read back bit for bit, the forms that other programs write, and everything that must be
// refused.
#include "checkpoint/huggingface.h"

#include <gtest/gtest.h>

#include <cstring>
#include <sstream>

#include "arch/parameters.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/test_golden.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/commands.h"
#include "checkpoint/convert.h"
#include "checkpoint/naming.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_folder.h"

namespace molen::checkpoint {
namespace {

using arch::Architecture;

Architecture tiny_llama(bool tied) {
  Architecture a;
  a.name = "tiny";
  a.layers = 2, a.hidden = 18, a.ffn = 26, a.heads = 6, a.kv_heads = 2, a.head_dim = 4, a.vocabulary = 37,
  a.max_sequence = 50;
  a.tied = tied;
  a.rope_theta = 500000.0;
  a.rope_scaling = arch::RopeScaling{8.0, 1.0, 4.0, 16};
  return a;
}

Architecture tiny_qwen3() {
  Architecture a = tiny_llama(true);
  a.qk_norm = arch::QkNorm::kHead;
  return a;
}

// Returns a small model like Mixtral, OLMoE or Qwen3-MoE.
Architecture tiny_sparse(arch::QkNorm qk_norm, bool norm_topk) {
  Architecture a = tiny_llama(false);
  a.qk_norm = qk_norm;
  a.experts = arch::Experts{.count = 3, .per_token = 2, .ffn = 9, .norm_topk = norm_topk, .balance_loss = 0.25};
  if (qk_norm != arch::QkNorm::kHead) a.ffn = a.experts->ffn;    // their config.json has no other width
  if (qk_norm == arch::QkNorm::kAll) a.hidden = a.query_size();  // an OLMoE has no head_dim of its own
  return a;
}

Architecture tiny_dots1() {
  Architecture a = tiny_sparse(arch::QkNorm::kHead, true);
  a.experts->dense_layers = 1, a.experts->shared = 2, a.experts->scale = 2.5;
  a.experts->scores = arch::RouterScores::kSigmoid;
  a.experts->balance_loss = 0.0, a.experts->bias_rate = 0.001;  // no config.json has these
  return a;
}

Architecture tiny_gpt2() {
  Architecture a;
  a.name = "tiny";
  a.family = arch::Family::kGpt;
  a.norm = arch::Norm::kLayer, a.position = arch::Position::kLearned, a.activation = arch::Activation::kGeluTanh;
  a.layers = 2, a.hidden = 15, a.ffn = 22, a.heads = a.kv_heads = 3, a.head_dim = 5, a.vocabulary = 37,
  a.max_sequence = 20;
  a.tied = a.biases = true;
  return a;
}

// Returns a number for each element of each parameter.
float weight(const std::string& name, std::int64_t index) {
  return static_cast<float>(normal_at(stream_key(7, name), static_cast<std::uint64_t>(index)));
}

TensorSource synthetic() {
  return {[](const std::string&) { return DType::kF32; },
          [](const std::string& name, std::int64_t offset, std::int64_t count, void* out) {
            for (std::int64_t i = 0; i < count; ++i) static_cast<float*>(out)[i] = weight(name, offset + i);
          }};
}

void expect_synthetic(const TensorSource& source, const Architecture& arch) {
  for (const arch::Parameter& p : arch::parameters(arch)) {
    std::vector<float> got(static_cast<std::size_t>(p.elements()));
    // In two ranges, so that offsets are used.
    const std::int64_t half = p.elements() / 2;
    source.read(p.name, 0, half, got.data());
    source.read(p.name, half, p.elements() - half, got.data() + half);
    for (std::int64_t i = 0; i < p.elements(); ++i)
      ASSERT_EQ(got[static_cast<std::size_t>(i)], weight(p.name, i)) << p.name << i;
  }
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
    return "accepted";
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
}

#define EXPECT_REFUSED(action, why)                                                             \
  do {                                                                                          \
    const std::string text = refusal([&] { action; });                                          \
    EXPECT_NE(text.find(why), std::string::npos) << "got: " << text << "\nexpected: " << (why); \
  } while (0)

TEST(HuggingFace, OutAndInAgainKeepsEveryBit) {
  for (const Architecture& arch :
       {tiny_llama(false), tiny_llama(true), tiny_qwen3(), tiny_gpt2(), tiny_sparse(arch::QkNorm::kNone, true),
        tiny_sparse(arch::QkNorm::kAll, false), tiny_sparse(arch::QkNorm::kHead, true), tiny_dots1()}) {
    for (const std::int64_t shard : {std::int64_t{1} << 40, std::int64_t{3000}}) {
      const TestFolder folder;
      HfExport options;
      options.max_shard_bytes = shard;
      options.tokens = {1, std::nullopt, {2, 3}};
      export_hf(arch, synthetic(), folder / "hf", options);
      const HfModel model(folder / "hf");
      Architecture expected = arch;
      expected.name = "custom";
      EXPECT_EQ(model.arch(), expected);
      EXPECT_EQ(model.config().tokens.bos, 1);
      EXPECT_EQ(model.config().tokens.eos, (std::vector<std::int64_t>{2, 3}));
      EXPECT_TRUE(model.config().ignored.empty());
      expect_synthetic(model.source(), arch);
      EXPECT_EQ(fs::exists(folder / "hf/model.safetensors.index.json"), shard == 3000);
    }
  }
}

// w1, w2 and w3 are gate, down and up.
TEST(HuggingFace, MixtralHasNamesOfItsOwn) {
  const TestFolder folder;
  export_hf(tiny_sparse(arch::QkNorm::kNone, true), synthetic(), folder / "hf", {});
  const SafetensorsFile file(folder / "hf/model.safetensors");
  const std::string theirs = "model.layers.1.block_sparse_moe.", ours = "model.layers.1.mlp.";
  for (const auto& [their, our] : {std::pair{"gate.weight", "gate.weight"},
                                   {"experts.2.w1.weight", "experts.2.gate_proj.weight"},
                                   {"experts.2.w2.weight", "experts.2.down_proj.weight"},
                                   {"experts.2.w3.weight", "experts.2.up_proj.weight"}}) {
    float first = 0;
    file.read(file.at(theirs + their), 0, 1, &first);
    EXPECT_EQ(first, weight(ours + our, 0)) << their;
  }
}

TEST(HuggingFace, Gpt2IsStoredAsConv1D) {
  const TestFolder folder;
  const Architecture arch = tiny_gpt2();
  export_hf(arch, synthetic(), folder / "hf", {});
  const SafetensorsFile file(folder / "hf/model.safetensors");
  const TensorInfo& info = file.at("transformer.h.1.attn.c_attn.weight");
  ASSERT_EQ(info.shape, (std::vector<std::int64_t>{15, 45}));
  std::vector<float> values(15 * 45);
  file.read(info, 0, 15 * 45, values.data());
  // Input 4 to output 7 of the keys.
  EXPECT_EQ(values[4 * 45 + 15 + 7], weight("model.layers.1.self_attn.k_proj.weight", 7 * 15 + 4));
  std::vector<float> bias(45);
  file.read(file.at("transformer.h.1.attn.c_attn.bias"), 0, 45, bias.data());
  EXPECT_EQ(bias[30 + 3], weight("model.layers.1.self_attn.v_proj.bias", 3));
  EXPECT_EQ(file.at("transformer.h.0.mlp.c_fc.weight").shape, (std::vector<std::int64_t>{15, 22}));
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);
}

// GPT-2's Conv1D matrices are [in, out]; nothing else is turned.
TEST(HuggingFace, MatricesOfGpt2AreTurnedAndNothingElseIs) {
  const Architecture arch = tiny_gpt2();
  std::map<std::string, std::vector<std::int64_t>> turned;
  for (const HfTensor& t : hf_tensors(arch))
    if (t.transposed) turned[t.name] = t.shape;
  std::map<std::string, std::vector<std::int64_t>> want;
  for (std::int64_t layer = 0; layer < arch.layers; ++layer) {
    const std::string at = fmt::format("transformer.h.{}.", layer);
    want[at + "attn.c_attn.weight"] = {15, 45};
    want[at + "attn.c_proj.weight"] = {15, 15};
    want[at + "mlp.c_fc.weight"] = {15, 22};
    want[at + "mlp.c_proj.weight"] = {22, 15};
  }
  EXPECT_EQ(turned, want);
  const TestFolder folder;
  export_hf(arch, synthetic(), folder / "hf", {});
  const SafetensorsFile file(folder / "hf/model.safetensors");
  const TensorInfo& down = file.at("transformer.h.0.mlp.c_proj.weight");
  ASSERT_EQ(down.shape, (std::vector<std::int64_t>{22, 15}));
  std::vector<float> values(22 * 15);
  file.read(down, 0, 22 * 15, values.data());
  EXPECT_EQ(values[20 * 15 + 3], weight("model.layers.0.mlp.down_proj.weight", 3 * 22 + 20));
}

TEST(HuggingFace, ConvertsTheTypeOnExport) {
  const TestFolder folder;
  HfExport options;
  options.dtype = DType::kBF16;
  export_hf(tiny_gpt2(), synthetic(), folder / "hf", options);
  const HfModel model(folder / "hf");
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  EXPECT_EQ(model.dtype(name), DType::kBF16);
  std::uint16_t got = 0, expected = 0;
  model.read(name, 33, 1, &got);
  const float value = weight(name, 33);
  convert(DType::kF32, &value, DType::kBF16, &expected, 1);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(read_json(folder / "hf/config.json")["torch_dtype"], "bfloat16");
}

// As in the checkpoints of DeepSeek-V3. In 16 bits, the small change of a bias in a step would be rounded away.
TEST(HuggingFace, BiasesOfRoutersStayInFp32) {
  const Architecture arch = tiny_dots1();
  const std::string gate = "model.layers.1.mlp.gate.";
  for (const auto& [wanted, biases] :
       {std::pair{DType::kBF16, DType::kF32}, {DType::kF16, DType::kF32}, {DType::kF64, DType::kF64}}) {
    const TestFolder folder;
    HfExport options;
    options.dtype = wanted;
    export_hf(arch, synthetic(), folder / "hf", options);
    const HfModel model(folder / "hf");
    EXPECT_EQ(model.dtype(gate + "weight"), wanted);
    ASSERT_EQ(model.dtype(gate + "e_score_correction_bias"), biases);
    if (biases != DType::kF32) continue;
    std::vector<float> got(3);
    model.read(gate + "e_score_correction_bias", 0, 3, got.data());
    for (std::int64_t i = 0; i < 3; ++i)
      EXPECT_EQ(got[static_cast<std::size_t>(i)], weight(gate + "e_score_correction_bias", i));
  }
}

TEST(HuggingFace, FindsSpecialTokensOfTheTokenizer) {
  const TestFolder folder;
  HfExport options;
  options.tokenizer = R"({"added_tokens": [{"id": 36, "content": "<|endoftext|>"}]})";
  export_hf(tiny_llama(true), synthetic(), folder / "hf", options);
  EXPECT_EQ(read_json(folder / "hf/config.json")["eos_token_id"], 36);
  EXPECT_EQ(read_json(folder / "hf/generation_config.json")["eos_token_id"], 36);
  EXPECT_EQ(read_json(folder / "hf/tokenizer_config.json")["eos_token"], "<|endoftext|>");
  EXPECT_EQ(read_file(folder / "hf/tokenizer.json"), *options.tokenizer);
  // The default sampling draws from the model's own distribution, up to the model's length.
  const Json generation = read_json(folder / "hf/generation_config.json");
  EXPECT_EQ(generation["do_sample"], true);
  EXPECT_EQ(generation["temperature"], 1.0);
  EXPECT_EQ(generation["top_p"], 1.0);
  EXPECT_EQ(generation["max_length"], 50);
}

// A tokenizer without added tokens, or with a malformed list of them, has no special tokens.
TEST(HuggingFace, TokenizersWithoutSpecialTokens) {
  for (const char* tokenizer : {"{}", "[]", "3", R"({"added_tokens": {}})", R"({"added_tokens": null})",
                                R"({"added_tokens": [3, {"id": -1, "content": "a"}, {"id": 1}]})"}) {
    const TestFolder folder;
    HfExport options;
    options.tokenizer = tokenizer;
    export_hf(tiny_llama(true), synthetic(), folder / "hf", options);
    EXPECT_TRUE(read_json(folder / "hf/config.json")["eos_token_id"].is_null()) << tokenizer;
  }
}

// The index of several files gives the tensors' total bytes and the file of each tensor.
TEST(HuggingFace, TheIndexOfShards) {
  const TestFolder folder;
  HfExport options;
  options.max_shard_bytes = 3000;
  options.dtype = DType::kBF16;
  const Architecture arch = tiny_llama(false);
  export_hf(arch, synthetic(), folder / "hf", options);
  const Json index = read_json(folder / "hf/model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], 2 * arch::num_parameters(arch));
  for (const auto& [tensor, file] : index["weight_map"].items())
    EXPECT_TRUE(fs::exists(folder / "hf" / file.get<std::string>())) << tensor;
}

TEST(Naming, AttachmentsHavePlainNames) {
  for (const char* good : {"a", "tokenizer.json", "config.toml", "A-b_c.9", "ran-0"})
    EXPECT_TRUE(is_attachment_name(good)) << good;
  EXPECT_TRUE(is_attachment_name(std::string(200, 'x')));
  EXPECT_FALSE(is_attachment_name(std::string(201, 'x')));
  for (const char* bad :
       {"", ".hidden", "..", "a/b", "/a", "a b", "a\nb", "\xc3\xa9", "index.json", "state.json", "rank-0.safetensors"})
    EXPECT_FALSE(is_attachment_name(bad)) << bad;
}

TEST(HuggingFace, WritesNothingOver) {
  const TestFolder folder;
  write_file_atomic(folder / "precious", "x");
  EXPECT_REFUSED(export_hf(tiny_gpt2(), synthetic(), folder.path(), {}), "not an empty directory");
  EXPECT_REFUSED(export_hf(tiny_gpt2(), synthetic(), folder / "precious", {}), "not an empty directory");
  Architecture alibi = tiny_gpt2();
  alibi.position = arch::Position::kAlibi;
  EXPECT_REFUSED(export_hf(alibi, synthetic(), folder / "hf", {}), "has no Hugging Face form");
  {
    const ScopedFileLimit limit(2000);
    EXPECT_NOTED(export_hf(tiny_gpt2(), synthetic(), folder / "hf", {}), Error);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
  fs::create_directory(folder / "empty");
  export_hf(tiny_gpt2(), synthetic(), folder / "empty", {});
  HfModel(folder / "empty");
}

// config.json as transformers 5 writes it: rope_parameters instead of rope_theta and rope_scaling, dtype, an id list.
TEST(HuggingFace, ReadsTheNewFormOfConfig) {
  const std::string text = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 24,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6, "vocab_size": 97, "dtype": "float32",
    "eos_token_id": [2, 3, 500], "bos_token_id": -1, "rope_parameters": {"factor": 8.0, "high_freq_factor": 4.0,
    "low_freq_factor": 1.0, "original_max_position_embeddings": 16, "rope_theta": 250000.0, "rope_type": "llama3"},
    "_attn_implementation_autoset": true, "some_new_key": 1})";
  const Json json = parse_json(text, "x");
  const HfConfig config = parse_hf_config(json, "config.json");
  EXPECT_EQ(config.arch.rope_theta, 250000.0);
  EXPECT_EQ(config.arch.rope_scaling, (arch::RopeScaling{8.0, 1.0, 4.0, 16}));
  EXPECT_EQ(config.arch.kv_heads, 6);
  EXPECT_EQ(config.arch.head_dim, 4);
  EXPECT_EQ(config.arch.norm_eps, 1e-6);
  EXPECT_EQ(config.tokens.eos, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(config.tokens.bos, std::nullopt);
  EXPECT_EQ(config.ignored, (std::vector<std::string>{"_attn_implementation_autoset", "some_new_key"}));
}

TEST(HuggingFace, RefusesConfigsItCannotHonour) {
  const GoldenMessages golden;
  const Json llama = hf_config(tiny_llama(false), {}, DType::kF32), gpt2 = hf_config(tiny_gpt2(), {}, DType::kF32);
  const auto with = [](Json json, const char* key, const Json& value) {
    json[key] = value;
    return refusal([&] { parse_hf_config(json, "config.json"); });
  };
  const auto expect = [&](const Json& base, const char* key, const Json& value, const char* why) {
    const std::string text = with(base, key, value);
    EXPECT_NE(text.find(why), std::string::npos) << key << ": " << text;
    EXPECT_NE(text.find("config.json"), std::string::npos) << text;
  };
  expect(llama, "auto_map", {{"AutoModel", "x--modeling.Model"}}, "'auto_map' names code");
  expect(llama, "_attn_implementation_internal", "someone/kernel", "names code");
  expect(llama, "_attn_implementation", "someone/kernel", "names code");
  expect(llama, "trust_remote_code", true, "names code");
  expect(llama, "text_config", {{"auto_map", {{"a", "b"}}}}, "names code");
  expect(llama, "model_type", "mistral", "'mistral' is not implemented");
  expect(llama, "model_type", nullptr, "'model_type' is missing");
  expect(llama, "architectures", Json::array({"LlamaForSequenceClassification"}), "architectures");
  expect(llama, "hidden_act", "gelu", "only silu");
  expect(llama, "attention_bias", true, "not implemented");
  expect(llama, "rope_scaling", {{"type", "yarn"}, {"factor", 2.0}}, "'yarn' is not implemented");
  expect(llama, "rope_scaling", {{"rope_type", "llama3"}}, "'factor' is missing");
  expect(llama, "sliding_window", 16, "'sliding_window': attention over a window shorter");
  expect(llama, "sliding_window", true, "must be a whole number");
  for (const Json& harmless : {Json(nullptr), Json(50), Json(4096)})  // the model has 50 positions
    EXPECT_EQ(with(llama, "sliding_window", harmless), "accepted") << harmless.dump();
  expect(llama, "quantization_config", {{"bits", 4}}, "quantised");
  expect(llama, "hidden_size", -4, "must be positive");
  expect(llama, "hidden_size", 4.5, "must be a whole number");
  expect(llama, "hidden_size", "18", "must be a whole number");
  expect(llama, "hidden_size", nullptr, "'hidden_size' is missing");
  expect(llama, "hidden_size", std::uint64_t{1} << 63, "must be a whole number");
  expect(llama, "num_attention_heads", 0, "num_attention_heads");
  expect(llama, "num_key_value_heads", 4, "must divide");
  expect(llama, "num_hidden_layers", 1'000'000'000, "beyond");
  expect(gpt2, "activation_function", "relu", "only gelu_new");
  expect(gpt2, "scale_attn_by_inverse_layer_idx", true, "only false");
  expect(gpt2, "n_embd", INT64_MAX, "n_embd");
  EXPECT_REFUSED(parse_hf_config(Json::array(), "config.json"), "must be a JSON object");
}

// Copies a directory with one tensor added, replaced or left out.
class Rewritten {
 public:
  explicit Rewritten(const fs::path& directory)
      : file_(directory / "model.safetensors"), path_(directory / "model.safetensors") {
    for (const TensorInfo& info : file_.tensors()) {
      specs_.push_back({info.name, *info.dtype, info.shape});
      bytes_[info.name].resize(info.end - info.begin);
      file_.read_bytes(info, 0, info.end - info.begin, bytes_[info.name].data());
    }
  }
  void rename(const std::function<std::string(std::string)>& to) {
    std::map<std::string, std::string> renamed;
    for (TensorSpec& spec : specs_) {
      renamed[to(spec.name)] = bytes_[spec.name];
      spec.name = to(spec.name);
    }
    bytes_ = renamed;
  }
  void add(TensorSpec spec, std::string content) {
    bytes_[spec.name] = std::move(content);
    specs_.push_back(std::move(spec));
  }
  void drop(const std::string& name) {
    std::erase_if(specs_, [&](const TensorSpec& spec) { return spec.name == name; });
  }
  const std::string& bytes(const std::string& name) { return bytes_[name]; }
  void write() {
    SafetensorsWriter writer(path_, specs_);
    for (const TensorSpec& spec : specs_)
      writer.write(spec.name, 0, bytes_[spec.name].data(), bytes_[spec.name].size());
    writer.finish();
  }

 private:
  SafetensorsFile file_;
  fs::path path_;
  std::vector<TensorSpec> specs_;
  std::map<std::string, std::string> bytes_;
};

TEST(HuggingFace, AcceptsGpt2AsPublished) {
  const TestFolder folder;
  export_hf(tiny_gpt2(), synthetic(), folder / "hf", {});
  Rewritten file(folder / "hf");
  file.rename([](std::string name) { return name.substr(std::string("transformer.").size()); });
  file.add({"h.0.attn.bias", DType::kF32, {1, 1, 20, 20}}, std::string(1600, '\0'));
  file.add({"lm_head.weight", DType::kF32, {37, 15}}, file.bytes("wte.weight"));
  file.write();
  expect_synthetic(HfModel(folder / "hf").source(), tiny_gpt2());
}

TEST(HuggingFace, RefusesWrongTensors) {
  const GoldenMessages golden;
  const auto with = [](const std::function<void(Rewritten&)>& change) {
    const TestFolder folder;
    export_hf(tiny_llama(true), synthetic(), folder / "hf", {});
    Rewritten file(folder / "hf");
    change(file);
    file.write();
    return refusal([&] { HfModel model(folder / "hf"); });
  };
  const std::string down = "model.layers.1.mlp.down_proj.weight";
  EXPECT_EQ(with([](Rewritten&) {}), "accepted");
  EXPECT_NE(with([&](Rewritten& f) { f.drop(down); }).find("'" + down + "' is missing (1 of"), std::string::npos);
  EXPECT_NE(with([&](Rewritten& f) {
              f.add({"extra", DType::kF32, {1}}, "abcd");
            }).find("'extra' does not belong"),
            std::string::npos);
  EXPECT_NE(with([&](Rewritten& f) {
              const std::string content = f.bytes(down);
              f.drop(down);
              f.add({down, DType::kF32, {26, 18}}, content);
            }).find("has shape [26, 18], config.json implies [18, 26]"),
            std::string::npos);
  EXPECT_NE(with([&](Rewritten& f) {
              const std::string content = f.bytes(down);
              f.drop(down);
              f.add({down, DType::kI32, {18, 26}}, content);
            }).find("weights must be"),
            std::string::npos);
  EXPECT_NE(with([&](Rewritten& f) {
              f.add({"lm_head.weight", DType::kF32, {37, 18}}, std::string(37 * 18 * 4, 'x'));
            }).find("differs from the embedding table"),
            std::string::npos);
}

// The head and the table are compared in blocks of 16 MiB.
TEST(HuggingFace, ReadsTheWholeHeadOfATiedModel) {
  const TestFolder folder;
  Architecture a = tiny_llama(true);
  a.vocabulary = 250'000;  // 18 MB of a table
  export_hf(a, synthetic(), folder / "hf", {});
  Rewritten file(folder / "hf");
  std::string head = file.bytes("model.embed_tokens.weight");
  ASSERT_GT(head.size(), std::size_t{1} << 24);
  file.add({"lm_head.weight", DType::kF32, {a.vocabulary, a.hidden}}, head);
  file.write();
  EXPECT_EQ(refusal([&] { HfModel model(folder / "hf"); }), "accepted");
  head.back() ^= 1;
  file.drop("lm_head.weight");
  file.add({"lm_head.weight", DType::kF32, {a.vocabulary, a.hidden}}, head);
  file.write();
  EXPECT_REFUSED(HfModel(folder / "hf"), "differs from the embedding table");
}

TEST(HuggingFace, RefusesBadDirectories) {
  const GoldenMessages golden;
  const TestFolder folder;
  EXPECT_REFUSED(HfModel(folder / "absent"), "no such directory");
  EXPECT_REFUSED(HfModel model(folder.path()), "no config.json");
  HfExport options;
  options.max_shard_bytes = 3000;
  export_hf(tiny_llama(false), synthetic(), folder / "hf", options);
  const fs::path index = folder / "hf/model.safetensors.index.json";
  const Json good = read_json(index);
  const auto with = [&](const std::string& tensor, const Json& file) {
    Json json = good;
    json["weight_map"][tensor] = file;
    write_file_atomic(index, json.dump());
    return refusal([&] { HfModel model(folder / "hf"); });
  };
  const std::string norm = "model.norm.weight";
  EXPECT_EQ(with(norm, good["weight_map"][norm]), "accepted");
  for (const Json& bad : {Json("../model.safetensors"), Json("/etc/passwd"), Json("a\\b.safetensors"), Json(""),
                          Json("x.bin"), Json(3)}) {
    EXPECT_NE(with(norm, bad).find("plain name"), std::string::npos) << bad;
  }
  EXPECT_NE(with(norm, "absent.safetensors").find("absent.safetensors: cannot be read"), std::string::npos);
  EXPECT_NE(with(norm, "model-00001-of-00099.safetensors").find("cannot be read"), std::string::npos);
  EXPECT_NE(with(norm, good["weight_map"]["model.embed_tokens.weight"]).find("is not listed for this file"),
            std::string::npos);
  EXPECT_NE(with("extra", good["weight_map"][norm]).find("tensor 'extra' is not in"), std::string::npos);
  for (const auto& entry : fs::directory_iterator(folder / "hf"))
    if (entry.path().filename().string().starts_with("model")) fs::remove(entry.path());
  EXPECT_REFUSED(HfModel model(folder / "hf"), "neither");
  write_file_atomic(folder / "hf/pytorch_model.bin", "x");
  EXPECT_REFUSED(HfModel model(folder / "hf"), "pickled weights only");
  write_file_atomic(folder / "hf/tokenizer_config.json", R"({"auto_map": {"AutoTokenizer": ["a.b", null]}})");
  EXPECT_REFUSED(HfModel model(folder / "hf"), "tokenizer_config.json: 'auto_map' names code");
}

TEST(HuggingFace, CommandsImportVerifyListAndExport) {
  const GoldenMessages golden;
  const TestFolder folder;
  std::ostringstream out, err;
  HfExport options;
  options.tokenizer = R"({"added_tokens": []})";
  options.tokens = {1, std::nullopt, {5}};
  export_hf(tiny_gpt2(), synthetic(), folder / "hf", options);
  import_command({folder / "hf", folder / "run/checkpoints", false}, out, err);
  EXPECT_REFUSED(import_command({folder / "hf", folder / "run/checkpoints", false}, out, err),
                 "nothing is written over");
  list_command({folder / "run", false}, out, err);
  verify_command({folder / "run", false, true}, out, err);
  ExportOptions again;
  again.source = folder / "run";
  again.destination = folder / "again/";
  export_command(again, out, err);
  for (const char* name :
       {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(read_file(folder / "again" / name), read_file(folder / "hf" / name)) << name;
  }
  EXPECT_NE(out.str().find("step-000000000"), std::string::npos);
  EXPECT_NE(out.str().find("every block equals its hash"), std::string::npos);
  EXPECT_EQ(err.str(), "");
  again.dtype = "i32";
  again.destination = folder / "third";
  EXPECT_REFUSED(export_command(again, out, err), "cannot be exported as i32");
  again.dtype = "float32";
  EXPECT_REFUSED(export_command(again, out, err), "unknown element type");
}

}  // namespace
}  // namespace molen::checkpoint
