// Hugging Face config.json and model.safetensors.index.json: refused with a UsageError, or they give an architecture
// that reads back the same after it is written, and plain file names.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "checkpoint/huggingface.h"

namespace {

using namespace molen;

void config(const Json& json) {
  const checkpoint::HfConfig config = checkpoint::parse_hf_config(json, "fuzz");
  const Json written = checkpoint::hf_config(config.arch, config.tokens, DType::kF32);
  const checkpoint::HfConfig again = checkpoint::parse_hf_config(parse_json(written.dump(), "again"), "again");
  if (checkpoint::hf_config(again.arch, again.tokens, DType::kF32) != written) std::abort();
  if (config.arch.layers < 64 && checkpoint::hf_tensors(config.arch).empty()) std::abort();
}

void index(const Json& json) {
  for (const auto& [tensor, file] : checkpoint::parse_hf_index(json, "fuzz"))
    if (file.front() == '.' || file.find('/') != std::string::npos || !file.ends_with(".safetensors")) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const auto read : {config, index}) {
    try {
      read(parse_json({reinterpret_cast<const char*>(data), size}, "fuzz"));
    } catch (const UsageError&) {
    }
  }
  return 0;
}
