#include "data/clean.h"

#include <xxhash.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "data/language.h"

namespace molen::data {

std::int64_t count_addresses(std::string_view text) {
  const auto is_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' || c == '+';
  };
  std::int64_t count = 0;
  for (std::size_t at = text.find('@'); at != std::string_view::npos; at = text.find('@', at + 1)) {
    std::size_t end = at + 1;
    while (end < text.size() && is_name(text[end])) ++end;
    std::string_view host = text.substr(at + 1, end - at - 1);
    while (!host.empty() && host.back() == '.') host.remove_suffix(1);
    if (at == 0 || !is_name(text[at - 1]) || host.find('.') == std::string_view::npos) continue;
    count += host.find("example") == std::string_view::npos;
  }
  return count;
}

bool Cleaner::is_new(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  const Hash128 own{hash.low64, hash.high64};
  if (!seen_.insert(own).second) return false;
  fresh_.append(reinterpret_cast<const char*>(&own), sizeof own);
  return true;
}

void Cleaner::restore(std::string_view seen) {
  for (; seen.size() >= sizeof(Hash128); seen.remove_prefix(sizeof(Hash128))) {
    Hash128 hash{};
    std::memcpy(&hash, seen.data(), sizeof hash);
    seen_.insert(hash);
  }
}

std::optional<std::string> Cleaner::clean(std::vector<Block> blocks, std::string_view language, const CleanRules& rules,
                                          CleanCounts& counts) {
  std::vector<Block> kept;
  std::int64_t foreign_bytes = 0, all_bytes = 0;
  for (Block& block : blocks) {
    if (!is_clean_utf8(block.text)) {
      ++counts.dropped["not UTF-8"];
      return std::nullopt;
    }
    const auto size = static_cast<std::int64_t>(block.text.size());
    all_bytes += size;
    if (rules.filter_language && block.kind != Block::Kind::kVerbatim && !is_in_language(block.text, language)) {
      ++counts.blocks_foreign;
      foreign_bytes += size;
      continue;
    }
    if (rules.deduplicate_blocks && size >= rules.min_block_bytes && !is_new(block.text)) {
      ++counts.blocks_repeated;
      continue;
    }
    kept.push_back(std::move(block));
  }
  // When most of a page was in another language, the rest is only headings and names.
  if (foreign_bytes * 2 > all_bytes) {
    ++counts.dropped["other language"];
    return std::nullopt;
  }
  std::string text = join_blocks(kept);
  const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
  if (characters < rules.min_characters) {
    ++counts.dropped["short"];
    return std::nullopt;
  }
  if (!is_new("document\n" + text)) {
    ++counts.dropped["repeated"];
    return std::nullopt;
  }
  ++counts.documents;
  counts.bytes += static_cast<std::int64_t>(text.size());
  counts.addresses += count_addresses(text);
  return text;
}

}  // namespace molen::data
