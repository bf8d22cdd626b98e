#include "plan/trial_launcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "base/suggest.h"
#include "plan/grid.h"

namespace molen::plan {
namespace {

constexpr std::array<std::string_view, 5> kPlaces{"ranks", "nodes", "first_node", "config", "run"};
constexpr const char* kNodesOfJob = "SLURM_JOB_NUM_NODES";

// A place of a word: "{NAME}" from `begin` on.
struct Place {
  std::size_t begin = 0;
  std::string_view name;
  std::size_t end() const { return begin + name.size() + 2; }
};

// Returns the first braces at or behind `from` that have a word of small letters in them.
std::optional<Place> place_in(std::string_view word, std::size_t from) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz_";
  for (std::size_t at = word.find('{', from); at != std::string_view::npos; at = word.find('{', at + 1)) {
    const std::size_t end = word.find_first_not_of(kLetters, at + 1);
    if (end != std::string_view::npos && end > at + 1 && word[end] == '}')
      return Place{at, word.substr(at + 1, end - at - 1)};
  }
  return std::nullopt;
}

std::string value_of(std::string_view place, const LaunchPlaces& p) {
  if (place == "config") return p.config.string();
  if (place == "run") return p.run.string();
  if (place == "first_node") return std::to_string(p.first_node);
  const int number = place == "ranks" ? p.ranks : p.nodes;
  MOLEN_CHECK(number > 0, "a launcher with {} in it, and no number for it", place);
  return std::to_string(number);
}

}  // namespace

Launcher::Launcher(std::string line) : line_(std::move(line)), words_(words_of("--launch", line_)) {
  for (const std::string& word : words_)
    for (auto place = place_in(word, 0); place; place = place_in(word, place->end()))
      if (std::ranges::find(kPlaces, place->name) == kPlaces.end()) {
        const std::vector<std::string> names(kPlaces.begin(), kPlaces.end());
        throw UsageError("--launch: there is no place {{{}}}; there are {{{}}}{}", place->name,
                         fmt::join(names, "}, {"), did_you_mean(place->name, names));
      }
}

bool Launcher::has(std::string_view name) const {
  return std::ranges::any_of(words_, [&](const std::string& word) {
    for (auto place = place_in(word, 0); place; place = place_in(word, place->end()))
      if (place->name == name) return true;
    return false;
  });
}

std::vector<std::string> Launcher::words(const LaunchPlaces& places) const {
  std::vector<std::string> filled;
  for (const std::string& word : words_) {
    std::string text;
    std::size_t done = 0;
    for (auto place = place_in(word, 0); place; place = place_in(word, done)) {
      text += word.substr(done, place->begin - done) + value_of(place->name, places);
      done = place->end();
    }
    filled.push_back(text + word.substr(done));
  }
  return filled;
}

std::optional<int> allocated_nodes(const ReadEnvironment& read) {
  const char* text = read(kNodesOfJob);
  if (!text) return std::nullopt;
  int nodes = 0;
  const char* const end = text + std::strlen(text);
  const auto [behind, error] = std::from_chars(text, end, nodes);
  if (error != std::errc() || behind != end || nodes < 1)
    throw UsageError("{}: expected the number of nodes of the job, got \"{}\"", kNodesOfJob, text);
  return nodes;
}

std::optional<int> allocated_nodes() {
  return allocated_nodes([](const char* name) { return std::getenv(name); });
}

std::optional<int> NodePool::free_run(int nodes) const {
  int free = 0;
  for (int i = 0; i < this->nodes(); ++i) {
    free = used_[static_cast<std::size_t>(i)] ? 0 : free + 1;
    if (free == nodes) return i - nodes + 1;
  }
  return std::nullopt;
}

NodePool::Taken NodePool::take(int nodes) {
  MOLEN_CHECK(nodes >= 1 && nodes <= this->nodes(), "{} nodes of {}", nodes, this->nodes());
  std::unique_lock lock(mutex_);
  std::optional<int> first;
  freed_.wait(lock, [&] { return (first = free_run(nodes)).has_value(); });
  std::fill_n(used_.begin() + *first, nodes, true);
  return {*this, *first, nodes};
}

NodePool::Taken::~Taken() {
  {
    const std::lock_guard lock(pool_->mutex_);
    std::fill_n(pool_->used_.begin() + first_, nodes_, false);
  }
  pool_->freed_.notify_all();
}

}  // namespace molen::plan
