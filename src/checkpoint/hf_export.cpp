// Writes a Hugging Face directory under a temporary name beside its target, and renames it when it is complete.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "arch/parameters.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/transpose.h"

namespace molen::checkpoint {
namespace {

class Exporter {
 public:
  Exporter(const arch::Architecture& arch, const TensorSource& source, fs::path folder, const HfExport& options)
      : arch_(arch), source_(source), folder_(std::move(folder)), options_(options), tensors_(hf_tensors(arch)) {
    for (const arch::Parameter& p : arch::parameters(arch)) {
      elements_[p.name] = p.elements();
      if (arch::moved_by_load(p.role)) biases_.insert(p.name);
    }
  }

  // Biases of routers are at least fp32, as in the checkpoints of DeepSeek-V3: a step moves them by less than 16 bits
  // resolve.
  DType dtype_of(const HfTensor& tensor) const {
    const DType stored = source_.dtype(tensor.parts.front()), dtype = options_.dtype ? *options_.dtype : stored;
    if (!is_floating(dtype)) throw UsageError("weights of type {} cannot be exported", name_of(dtype));
    return size_of(dtype) < 4 && biases_.contains(tensor.parts.front()) ? DType::kF32 : dtype;
  }

  // Returns the tensors of each file, in order. A new file begins whenever the next tensor would exceed the limit.
  std::vector<std::vector<const HfTensor*>> shards() const {
    std::vector<std::vector<const HfTensor*>> result(1);
    std::int64_t filled = 0;
    for (const HfTensor& tensor : tensors_) {
      const std::int64_t bytes = elements_of(tensor.shape) * size_of(dtype_of(tensor));
      if (filled > 0 && filled + bytes > options_.max_shard_bytes) {
        result.emplace_back();
        filled = 0;
      }
      result.back().push_back(&tensor);
      filled += bytes;
    }
    return result;
  }

  void write_weights() {
    const auto all = shards();
    Json weight_map = Json::object();
    std::int64_t total = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string name =
          all.size() == 1 ? "model.safetensors" : fmt::format("model-{:05d}-of-{:05d}.safetensors", i + 1, all.size());
      std::vector<TensorSpec> specs;
      for (const HfTensor* tensor : all[i]) {
        specs.push_back({tensor->name, dtype_of(*tensor), tensor->shape});
        weight_map.get_ref<Json::object_t&>().emplace_back(tensor->name, name);
        total += elements_of(tensor->shape) * size_of(dtype_of(*tensor));
      }
      SafetensorsWriter writer(folder_ / name, std::move(specs), {.metadata = {{"format", "pt"}}, .hashes = false});
      for (const HfTensor* tensor : all[i]) write_tensor(writer, *tensor);
      writer.finish();
    }
    if (all.size() == 1) return;
    const Json index{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    write_file_atomic(folder_ / "model.safetensors.index.json", index.dump(2) + "\n");
  }

 private:
  // Converts a part range by range and passes the ranges to `take` in order.
  template <class F>
  void stream(const std::string& part, DType to, F&& take) {
    const DType from = source_.dtype(part);
    const std::int64_t step = kBlockBytes / 8;
    for (std::int64_t at = 0; at < elements_.at(part); at += step) {
      const std::int64_t count = std::min(step, elements_.at(part) - at);
      raw_.resize(static_cast<std::size_t>(count * size_of(from)));
      source_.read(part, at, count, raw_.data());
      converted_.resize(static_cast<std::size_t>(count * size_of(to)));
      convert(from, raw_.data(), to, converted_.data(), count);
      take(converted_);
    }
  }

  void write_tensor(SafetensorsWriter& writer, const HfTensor& tensor) {
    const DType to = dtype_of(tensor);
    std::uint64_t offset = 0;
    std::vector<char> stacked;
    for (const std::string& part : tensor.parts) {
      stream(part, to, [&](const std::vector<char>& bytes) {
        if (tensor.transposed) {
          stacked.insert(stacked.end(), bytes.begin(), bytes.end());
        } else {
          writer.write(tensor.name, offset, bytes.data(), bytes.size());
          offset += bytes.size();
        }
      });
    }
    if (!tensor.transposed) return;
    std::vector<char> turned(stacked.size());
    transpose(stacked.data(), tensor.shape[1], tensor.shape[0], size_of(to), turned.data());
    writer.write(tensor.name, 0, turned.data(), turned.size());
  }

  const arch::Architecture& arch_;
  const TensorSource& source_;
  fs::path folder_;
  const HfExport& options_;
  std::vector<HfTensor> tensors_;
  std::map<std::string, std::int64_t> elements_;
  std::set<std::string> biases_;  // of routers
  std::vector<char> raw_, converted_;
};

// Returns the special tokens of tokenizer.json: content -> id.
std::map<std::string, std::int64_t> special_tokens(const std::string& tokenizer) {
  std::map<std::string, std::int64_t> found;
  const Json json = parse_json(tokenizer, "tokenizer.json");
  const auto tokens = json.is_object() ? json.find("added_tokens") : json.end();
  if (!json.is_object() || tokens == json.end() || !tokens->is_array()) return found;
  for (const Json& token : *tokens) {
    if (token.is_object() && token.contains("content") && token["content"].is_string() && token.contains("id") &&
        token["id"].is_number_unsigned()) {
      found[token["content"].get<std::string>()] = token["id"].get<std::int64_t>();
    }
  }
  return found;
}

// Looks up unset ids by the names that published tokenizers use.
TokenIds complete_ids(TokenIds ids, const std::map<std::string, std::int64_t>& tokens) {
  constexpr std::array kBegin{"<|begin_of_text|>", "<s>", "<|startoftext|>", "<|endoftext|>"};
  constexpr std::array kEnd{"<|end_of_text|>", "</s>", "<|endoftext|>"};
  for (const char* name : kBegin)
    if (!ids.bos && tokens.contains(name)) ids.bos = tokens.at(name);
  for (const char* name : kEnd)
    if (ids.eos.empty() && tokens.contains(name)) ids.eos = {tokens.at(name)};
  return ids;
}

Json tokenizer_config(const arch::Architecture& arch, const TokenIds& ids,
                      const std::map<std::string, std::int64_t>& tokens) {
  Json json{{"tokenizer_class", "PreTrainedTokenizerFast"},
            {"model_max_length", arch.max_sequence},
            {"clean_up_tokenization_spaces", false}};
  for (const auto& [content, id] : tokens) {
    if (id == ids.bos) json["bos_token"] = content;
    if (!ids.eos.empty() && id == ids.eos.front()) json["eos_token"] = content;
    if (id == ids.pad) json["pad_token"] = content;
  }
  return json;
}

Json generation_config(const arch::Architecture& arch, const Json& config) {
  Json json = Json::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (!config[key].is_null()) json[key] = config[key];
  json["do_sample"] = true;
  json["temperature"] = 1.0;
  json["top_p"] = 1.0;
  json["max_length"] = arch.max_sequence;
  json["transformers_version"] = config["transformers_version"];
  return json;
}

void write_all(const arch::Architecture& arch, const TensorSource& source, const fs::path& folder,
               const HfExport& options) {
  Exporter exporter(arch, source, folder, options);
  const auto tokens = options.tokenizer ? special_tokens(*options.tokenizer) : std::map<std::string, std::int64_t>{};
  const TokenIds ids = complete_ids(options.tokens, tokens);
  const Json config = hf_config(arch, ids, exporter.dtype_of(hf_tensors(arch).front()));
  const auto write = [&](const char* name, const Json& json) { write_file_atomic(folder / name, json.dump(2) + "\n"); };
  write("config.json", config);
  write("generation_config.json", generation_config(arch, config));
  if (options.tokenizer) {
    write_file_atomic(folder / "tokenizer.json", *options.tokenizer);
    write("tokenizer_config.json", tokenizer_config(arch, ids, tokens));
  }
  exporter.write_weights();
}

}  // namespace

TensorSource source_of(const Checkpoint& checkpoint) {
  return {[&](const std::string& name) { return checkpoint.tensor(name).dtype; },
          [&](const std::string& name, std::int64_t offset, std::int64_t count, void* out) {
            checkpoint.read(name, offset, count, out);
          }};
}

void export_hf(const arch::Architecture& arch, const TensorSource& source, const fs::path& directory,
               const HfExport& options) {
  hf_config(arch, {}, DType::kF32);  // refuses an architecture without a form before anything is written
  MOLEN_CHECK(options.max_shard_bytes > 0, "shards of {} bytes", options.max_shard_bytes);
  std::error_code error;
  if (fs::exists(directory) && !(fs::is_directory(directory) && fs::is_empty(directory, error))) {
    throw UsageError("{}: exists and is not an empty directory; nothing is written over", directory.string());
  }
  fs::path target = fs::absolute(directory).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  // Removed again when the export fails.
  TemporaryDirectory partial(target);
  write_all(arch, source, partial.path(), options);
  partial.publish();
}

}  // namespace molen::checkpoint
