// Opens a Hugging Face directory. Names, shapes and types are compared with what config.json implies before anything is
// used.
#include <algorithm>
#include <cstring>
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

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSingle = "model.safetensors";

// Returns our spelling of a stored name: GPT-2 was published without "transformer.".
std::string canonical(const std::string& name, bool gpt2) {
  if (!gpt2 || name.starts_with("transformer.") || name.starts_with("lm_head.")) return name;
  return "transformer." + name;
}

// Recognizes buffers that older versions of transformers stored among the weights.
bool is_buffer(std::string_view name, bool gpt2) {
  return gpt2 ? name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
              : name.ends_with(".rotary_emb.inv_freq");
}

bool is_shard_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.front() != '.' && name.find_first_of("/\\") == std::string::npos &&
         name.find("..") == std::string::npos && name.find('\0') == std::string::npos;
}

bool holds_pickle(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt") return true;
  }
  return false;
}

}  // namespace

// Returns a map, because a Json object searches its list for every name.
std::map<std::string, std::string> parse_hf_index(const Json& index, const std::string& origin) {
  const Json& weight_map = json_member(index, "weight_map", origin);
  if (!weight_map.is_object() || weight_map.empty())
    throw UsageError("{}: 'weight_map' must name files by tensor", origin);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : weight_map.items()) {
    if (!file.is_string() || !is_shard_name(file.get_ref<const std::string&>())) {
      throw UsageError("{}: 'weight_map' of '{}' must be the plain name of a .safetensors file in this directory",
                       origin, tensor);
    }
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

// A tensor found in a file, and its rearrangement.
struct HfModel::Stored {
  HfTensor tensor;
  const SafetensorsFile* file = nullptr;
  const TensorInfo* info = nullptr;
};

// The place of one of our parameters: a range of rows of a stored tensor (after transposition).
struct HfModel::Place {
  const Stored* stored = nullptr;
  std::int64_t offset = 0;  // elements
};

HfModel::~HfModel() = default;

HfModel::HfModel(fs::path directory) : directory_(std::move(directory)) {
  if (!fs::is_directory(directory_)) throw UsageError("{}: no such directory", directory_.string());
  const fs::path config = directory_ / "config.json";
  if (!fs::exists(config))
    throw UsageError("{}: not a Hugging Face model directory: no config.json", directory_.string());
  config_ = parse_hf_config(read_json(config, 1 << 24), config.string());
  for (const char* name : {"generation_config.json", "tokenizer_config.json"}) {
    const fs::path side = directory_ / name;
    if (fs::exists(side)) refuse_code(read_json(side, 1 << 26), side.string());
  }
  for (HfTensor& tensor : hf_tensors(config_.arch)) {
    stored_.push_back(std::make_unique<Stored>());
    stored_.back()->tensor = std::move(tensor);
  }
  open_files();
  check_complete();
  check_tied_head();
}

void HfModel::open_files() {
  if (fs::exists(directory_ / kSingle)) return add_file(kSingle, nullptr);
  const fs::path index = directory_ / kIndex;
  if (!fs::exists(index)) {
    if (holds_pickle(directory_)) {
      throw UsageError(
          "{}: holds pickled weights only, which can run code when loaded; convert them to safetensors first",
          directory_.string());
    }
    throw UsageError("{}: holds neither {} nor {}", directory_.string(), kSingle, kIndex);
  }
  const auto files = parse_hf_index(read_json(index, 1 << 28), index.string());
  std::set<std::string> shards;
  for (const auto& [tensor, name] : files) shards.insert(name);
  for (const std::string& name : shards) add_file(name, &files);
  std::size_t found = 0;
  for (const auto& file : files_) found += file->tensors().size();
  if (found == files.size()) return;
  for (const auto& [tensor, name] : files) {
    const auto holds = [&tensor = tensor](const auto& file) { return file->find(tensor) != nullptr; };
    if (std::none_of(files_.begin(), files_.end(), holds)) {
      throw UsageError("{}: tensor '{}' is not in {}", index.string(), tensor, name);
    }
  }
}

void HfModel::add_file(const std::string& name, const std::map<std::string, std::string>* listed) {
  files_.push_back(std::make_unique<SafetensorsFile>(directory_ / name));
  const SafetensorsFile& file = *files_.back();
  const bool gpt2 = config_.arch.position == arch::Position::kLearned;
  std::map<std::string_view, Stored*> expected;
  for (const auto& stored : stored_) expected.emplace(stored->tensor.name, stored.get());
  for (const TensorInfo& info : file.tensors()) {
    const auto listed_for = [&] { return listed->contains(info.name) && listed->at(info.name) == name; };
    if (listed && !listed_for()) {
      throw UsageError("{}: tensor '{}' is not listed for this file in {}", file.path().string(), info.name, kIndex);
    }
    const std::string known = canonical(info.name, gpt2);
    if (is_buffer(known, gpt2)) continue;
    if (config_.arch.tied && known == "lm_head.weight") {
      head_ = {files_.size() - 1, info.name};
      continue;
    }
    const auto found = expected.find(known);
    if (found == expected.end()) {
      throw UsageError("{}: tensor '{}' does not belong to the model of config.json", file.path().string(), info.name);
    }
    Stored& stored = *found->second;
    if (stored.info) throw UsageError("{}: tensor '{}' appears twice", file.path().string(), info.name);
    if (info.shape != stored.tensor.shape) {
      throw UsageError("{}: tensor '{}' has shape [{}], config.json implies [{}]", file.path().string(), info.name,
                       fmt::join(info.shape, ", "), fmt::join(stored.tensor.shape, ", "));
    }
    if (!info.dtype || !is_floating(*info.dtype)) {
      throw UsageError("{}: tensor '{}' has dtype {}; weights must be F64, F32, BF16 or F16", file.path().string(),
                       info.name, info.dtype_name);
    }
    stored.file = &file;
    stored.info = &info;
  }
}

void HfModel::check_complete() {
  std::map<std::string, std::int64_t> elements;
  for (const arch::Parameter& p : arch::parameters(config_.arch)) elements[p.name] = p.elements();
  const auto missing = [](const auto& stored) { return !stored->info; };
  const auto first = std::find_if(stored_.begin(), stored_.end(), missing);
  if (first != stored_.end()) {
    throw UsageError("{}: tensor '{}' is missing ({} of {} are)", directory_.string(), (*first)->tensor.name,
                     std::count_if(stored_.begin(), stored_.end(), missing), stored_.size());
  }
  for (const auto& stored : stored_) {
    std::int64_t offset = 0;
    for (const std::string& part : stored->tensor.parts) {
      places_.emplace_back(part, Place{stored.get(), offset});
      offset += elements.at(part);
    }
  }
  std::sort(places_.begin(), places_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
}

// A tied model may still store its head, which transformers replaces by the embedding table. A head that differs from
// the table would be lost, so it is refused.
void HfModel::check_tied_head() const {
  if (!head_) return;
  const SafetensorsFile& file = *files_[head_->first];
  const TensorInfo& head = file.at(head_->second);
  const Stored& table = *place("model.embed_tokens.weight").stored;
  const auto differs = [&] {
    if (head.dtype_name != table.info->dtype_name || head.shape != table.info->shape) return true;
    std::vector<char> a, b;
    const std::uint64_t size = head.end - head.begin, step = static_cast<std::uint64_t>(kBlockBytes);
    for (std::uint64_t at = 0; at < size; at += step) {
      a.resize(std::min(step, size - at));
      b.resize(a.size());
      file.read_bytes(head, at, a.size(), a.data());
      table.file->read_bytes(*table.info, at, b.size(), b.data());
      if (a != b) return true;
    }
    return false;
  };
  if (differs()) {
    throw UsageError("{}: tensor '{}' differs from the embedding table, but config.json ties them",
                     file.path().string(), head_->second);
  }
}

std::optional<fs::path> HfModel::tokenizer() const {
  const fs::path path = directory_ / "tokenizer.json";
  return fs::exists(path) ? std::optional(path) : std::nullopt;
}

const HfModel::Place& HfModel::place(const std::string& parameter) const {
  const auto found = std::lower_bound(places_.begin(), places_.end(), parameter,
                                      [](const auto& p, const std::string& n) { return p.first < n; });
  MOLEN_CHECK(found != places_.end() && found->first == parameter, "parameter '{}' is not of this model", parameter);
  return found->second;
}

DType HfModel::dtype(const std::string& parameter) const {
  return *place(parameter).stored->info->dtype;
}

void HfModel::read(const std::string& parameter, std::int64_t offset, std::int64_t count, void* destination) const {
  const Place& at = place(parameter);
  const Stored& stored = *at.stored;
  if (!stored.tensor.transposed) return stored.file->read(*stored.info, at.offset + offset, count, destination);
  const std::int64_t size = size_of(*stored.info->dtype);
  const std::lock_guard lock(mutex_);
  if (turned_of_ != &stored) {
    std::vector<char> plain(stored.info->end - stored.info->begin);
    stored.file->read_bytes(*stored.info, 0, plain.size(), plain.data());
    turned_of_ = nullptr;
    turned_.resize(plain.size());
    transpose(plain.data(), stored.tensor.shape[0], stored.tensor.shape[1], size, turned_.data());
    turned_of_ = &stored;
  }
  std::memcpy(destination, turned_.data() + (at.offset + offset) * size, static_cast<std::size_t>(count * size));
}

TensorSource HfModel::source() const {
  return {[this](const std::string& name) { return dtype(name); },
          [this](const std::string& name, std::int64_t offset, std::int64_t count, void* out) {
            read(name, offset, count, out);
          }};
}

}  // namespace molen::checkpoint
