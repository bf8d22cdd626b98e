// From extracted blocks to a document worth training on, or the reason why it is none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "data/text.h"

namespace molen::data {

struct CleanCounts {
  std::int64_t documents = 0;  // kept
  std::int64_t bytes = 0;      // of their text, UTF-8
  std::int64_t blocks_repeated = 0, blocks_foreign = 0;
  std::int64_t addresses = 0;                   // e-mail addresses left in the text, example.* not counted
  std::map<std::string, std::int64_t> dropped;  // documents by reason
};

struct CleanRules {
  std::int64_t min_block_bytes = 80;  // shorter blocks repeat with good reason (headings)
  std::int64_t min_characters = 200;  // of a document
  bool filter_language = true;
  bool deduplicate_blocks = true;
};

// Exact de-duplication over everything that one cleaner sees: a block of `min_block_bytes` or more, or a whole
// document, is kept where it comes first. It holds 16 bytes a block.
class Cleaner {
 public:
  // The document's text; nullopt where it is dropped (counted by reason).
  std::optional<std::string> clean(std::vector<Block> blocks, std::string_view language, const CleanRules& rules,
                                   CleanCounts& counts);

  // What it has seen since this was last called, as bytes (16 for each block) that `restore` takes on another day.
  std::string take_seen() { return std::exchange(fresh_, {}); }
  void restore(std::string_view seen);

 private:
  bool is_new(std::string_view text);

  struct Hash128 {
    std::uint64_t low, high;
    bool operator==(const Hash128&) const = default;
  };
  struct TakeLow {
    std::size_t operator()(const Hash128& h) const { return h.low; }
  };
  std::unordered_set<Hash128, TakeLow> seen_;
  std::string fresh_;
};

// E-mail addresses (by shape), those at example.com and its kin left out.
std::int64_t count_addresses(std::string_view text);

}  // namespace molen::data
