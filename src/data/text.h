// Text as blocks (headings, paragraphs, list items, code), and operations for text of any source: strict UTF-8, white
// space, the join of blocks to a document.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace molen::data {

struct Block {
  enum class Kind { kParagraph, kItem, kVerbatim };
  Kind kind = Kind::kParagraph;
  std::string text;
  bool operator==(const Block&) const = default;
};

// Returns whether `text` is valid UTF-8 (no overlong forms, surrogates or values beyond U+10FFFF) without NUL.
bool is_clean_utf8(std::string_view text);

// Returns the text with the letters A to Z in lower case.
std::string lower_case(std::string_view text);

// Builds blocks from runs of inline text. White space (no-break space included) folds to one space, except in verbatim
// blocks, which keep their lines.
class BlockBuilder {
 public:
  void text(std::string_view raw);  // folds white space unless verbatim
  void line_break();                // stays a newline
  void end_block(Block::Kind next = Block::Kind::kParagraph);
  void verbatim(bool on);
  bool is_verbatim() const { return verbatim_ > 0; }
  std::string_view last() const { return blocks_.empty() ? std::string_view() : blocks_.back().text; }
  void drop_last() { blocks_.pop_back(); }
  std::vector<Block> take();

 private:
  std::vector<Block> blocks_;
  std::string current_;
  Block::Kind kind_ = Block::Kind::kParagraph;
  bool space_ = false;
  int verbatim_ = 0;
};

// Returns the text of the blocks, separated by an empty line, or by a newline between items of a list. The text ends
// with a newline; it is empty when there are no blocks.
std::string join_blocks(const std::vector<Block>& blocks);
// Cuts plain text into blocks at empty lines. CR LF becomes LF; other controls except tab are removed.
std::vector<Block> split_plain(std::string_view text);

}  // namespace molen::data
