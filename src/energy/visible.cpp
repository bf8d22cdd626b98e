#include "energy/visible.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

namespace molen::energy {

std::vector<std::string> visible_words(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= list.size() && !list.empty();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    const std::string word = list.substr(at, comma - at);
    if (word.rfind('-', 0) == 0) break;
    words.push_back(word);
    at = comma + 1;
  }
  return words;
}

namespace {

// Returns the words of `machine` that `process` numbers.
std::string composed(const std::string& machine, const std::string& process) {
  const auto all = visible_words(machine);
  std::vector<std::string> chosen;
  for (const std::string& word : visible_words(process)) {
    std::size_t index = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), index);
    const bool number = error == std::errc() && end == word.data() + word.size();
    if (number && index >= all.size()) break;  // HIP stops there, too
    chosen.push_back(number ? all[index] : word);
  }
  return fmt::format("{}", fmt::join(chosen, ","));
}

}  // namespace

VisibleGpus visible_gpus(const std::function<const char*(const char*)>& variable) {
  const char* cuda = variable("CUDA_VISIBLE_DEVICES");
  const char* machine = variable("ROCR_VISIBLE_DEVICES");
  const char* process = variable("HIP_VISIBLE_DEVICES");
  if (process == nullptr || *process == '\0') process = cuda;
  if (process != nullptr && *process == '\0') process = nullptr;
  VisibleGpus visible;
  if (cuda != nullptr) visible.nvidia = cuda;
  if (machine != nullptr && process != nullptr)
    visible.amd = composed(machine, process);
  else if (machine != nullptr || process != nullptr)
    visible.amd = machine != nullptr ? machine : process;
  return visible;
}

}  // namespace molen::energy
