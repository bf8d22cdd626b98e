// Text that reaches Slurm's daemons, which run as root: the option --energy of a user (first byte even), and the words
// of plugstack.conf (odd; lines). A message is plain text; an option that is accepted is a configuration that molen
// takes; a command has no word that could be taken for another flag.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "config/config.h"
#include "slurm/arguments.h"
#include "slurm/option.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

bool is_plain(const std::string& text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

void read_option(std::string_view text) {
  const auto parsed = molen::slurm::parse_option(text);
  require(is_plain(parsed.wrong));
  if (!parsed.wrong.empty()) return;
  require(text.size() <= molen::slurm::kMostOptionBytes);
  std::map<std::string, std::string> variables;
  for (const auto& [name, value] : molen::slurm::variables_of(parsed.value)) {
    require(is_plain(value));
    variables[name] = value;
  }
  molen::config::load(std::nullopt, {}, {}, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void read_arguments(std::string_view text) {
  using namespace molen::slurm;
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  const auto parsed = parse_arguments(words, "n1");
  require(is_plain(parsed.wrong));
  if (!parsed.wrong.empty()) return;
  const auto command = command_of_step(parsed.value, {"1", "0", 5});
  require(command[0].starts_with('/') && command[1] == "energy" && command[2] == "send");
  require(std::ranges::all_of(command.begin() + 3, command.end(), [](const auto& w) { return w.starts_with("--"); }));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  data[0] % 2 == 0 ? read_option(text) : read_arguments(text);
  return 0;
}
