// Turns extracted blocks into a document that is worth training on, or finds the reason to drop them.
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
  std::int64_t bytes = 0;      // UTF-8 bytes of their text
  std::int64_t blocks_repeated = 0, blocks_foreign = 0;
  std::int64_t addresses = 0;                   // e-mail addresses left in the text, example.* not counted
  std::map<std::string, std::int64_t> dropped;  // documents by reason
};

struct CleanRules {
  std::int64_t min_block_bytes = 80;  // shorter blocks (headings) may repeat
  std::int64_t min_characters = 200;  // per document
  bool filter_language = true;
  bool deduplicate_blocks = true;
};

// Exact de-duplication over all blocks that one cleaner sees. It keeps the first copy of a whole document and of each
// block of `min_block_bytes` or more. The cleaner stores 16 bytes per block.
class Cleaner {
 public:
  // Returns the document's text, or nullopt when the document is dropped (counted by reason).
  std::optional<std::string> clean(std::vector<Block> blocks, std::string_view language, const CleanRules& rules,
                                   CleanCounts& counts);

  // Returns the hashes seen since the last call, 16 bytes per block. A later run passes them to `restore`.
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

// Counts e-mail addresses (by shape), except those at example.com and similar domains.
std::int64_t count_addresses(std::string_view text);

}  // namespace molen::data
