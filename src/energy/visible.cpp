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

std::optional<std::string> visible_devices(const std::function<const char*(const char*)>& variable) {
  const char* machine = variable("ROCR_VISIBLE_DEVICES");
  const char* process = variable("HIP_VISIBLE_DEVICES");
  if (process == nullptr) process = variable("CUDA_VISIBLE_DEVICES");
  if (machine == nullptr) return process == nullptr ? std::nullopt : std::optional<std::string>(process);
  if (process == nullptr) return machine;
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

}  // namespace molen::energy
