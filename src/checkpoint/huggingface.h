// Reads and writes Hugging Face model directories: LlamaForCausalLM, Qwen3ForCausalLM, MixtralForCausalLM,
// OlmoeForCausalLM, Qwen3MoeForCausalLM and GPT2LMHeadModel.
//
// Weights keep their bits. Only GPT-2's are rearranged, because its Conv1D stores [in, out] and one matrix for q, k and
// v. Keys that name code (auto_map, ...) are refused, never followed; pickled weights are refused.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/json.h"

namespace molen::checkpoint {

class Checkpoint;
class SafetensorsFile;

// A source of weights by our parameter names (arch/parameters.h): their type, and any flat range of them in that type.
struct TensorSource {
  std::function<DType(const std::string& name)> dtype;
  std::function<void(const std::string& name, std::int64_t offset, std::int64_t count, void* destination)> read;
};
TensorSource source_of(const Checkpoint& checkpoint);  // the checkpoint must outlive it

struct TokenIds {
  std::optional<std::int64_t> bos, pad;
  std::vector<std::int64_t> eos;
};

// --- config.json ----------------------------------------------------------------------------------------------------

struct HfConfig {
  arch::Architecture arch;
  TokenIds tokens;
  std::vector<std::string> ignored;  // keys that change nothing here
};
// Parses config.json. Throws UsageError naming the key for code, for other models, and for options that would change
// the result and are not implemented.
HfConfig parse_hf_config(const Json& json, const std::string& origin);
// Returns the config.json of an architecture. Throws UsageError when transformers has no model of this architecture
// that molen writes.
Json hf_config(const arch::Architecture& arch, const TokenIds& tokens, DType dtype);
// Returns whether the architecture is a Mixtral in transformers, where experts have other names than in other models.
bool is_mixtral(const arch::Architecture& arch);
// Throws UsageError for any key, at any depth, whose value names code to run.
void refuse_code(const Json& json, const std::string& origin);

// --- names ----------------------------------------------------------------------------------------------------------

// One tensor of the directory: our tensors `parts`, stacked along their first dimension; `transposed` swaps its two
// dimensions.
struct HfTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // as in the directory
  bool transposed = false;
  std::vector<std::string> parts;
};
std::vector<HfTensor> hf_tensors(const arch::Architecture& arch);

// --- directories ----------------------------------------------------------------------------------------------------

// Parses model.safetensors.index.json: the file of each tensor. Throws UsageError for a name that is not a file beside
// it.
std::map<std::string, std::string> parse_hf_index(const Json& index, const std::string& origin);

// An opened directory: all names, shapes and types were checked; data is read on demand. Threads may share it.
class HfModel {
 public:
  explicit HfModel(fs::path directory);  // throws UsageError
  ~HfModel();
  HfModel(const HfModel&) = delete;
  HfModel& operator=(const HfModel&) = delete;

  const arch::Architecture& arch() const { return config_.arch; }
  const HfConfig& config() const { return config_; }
  std::optional<fs::path> tokenizer() const;  // tokenizer.json, if there is one
  DType dtype(const std::string& parameter) const;
  void read(const std::string& parameter, std::int64_t offset, std::int64_t count, void* destination) const;
  TensorSource source() const;  // must not outlive this

 private:
  struct Place;
  struct Stored;
  void open_files();
  // `listed`: the file of each tensor according to the index, if there is one.
  void add_file(const std::string& name, const std::map<std::string, std::string>* listed);
  void check_complete();
  void check_tied_head() const;
  const Place& place(const std::string& parameter) const;

  fs::path directory_;
  HfConfig config_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::unique_ptr<Stored>> stored_;        // by position in hf_tensors()
  std::vector<std::pair<std::string, Place>> places_;  // sorted by our name
  std::optional<std::pair<std::size_t, std::string>>
      head_;  // file and name of a stored head that the embedding table replaces
  mutable std::mutex mutex_;
  mutable const Stored* turned_of_ = nullptr;  // the last transposed tensor, kept for the next range of it
  mutable std::vector<char> turned_;
};

struct HfExport {
  std::optional<DType> dtype;  // absent: the types of the source; biases of routers are fp32 instead of 16 bits
  std::int64_t max_shard_bytes = 5'000'000'000;
  std::optional<std::string> tokenizer;  // content of tokenizer.json
  TokenIds tokens;                       // empty ids are looked up in the tokenizer's special tokens
};
// Writes config.json, generation_config.json, model.safetensors (or shards and their index), tokenizer.json and
// tokenizer_config.json. `directory` must be absent or empty; it appears completely or not at all. Throws UsageError,
// Error.
void export_hf(const arch::Architecture& arch, const TensorSource& source, const fs::path& directory,
               const HfExport& options);

}  // namespace molen::checkpoint
