#include "data/text.h"

#include <algorithm>

#include "base/utf8.h"

namespace molen::data {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

// Removes trailing white space of each line and empty lines at both ends.
std::string trimmed_lines(std::string_view text) {
  std::string out;
  std::size_t at = 0;
  while (at <= text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    while (!line.empty() && is_space(line.back())) line.remove_suffix(1);
    if (!out.empty() || !line.empty()) {
      out.append(line);
      out.push_back('\n');
    }
    at = end + 1;
  }
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace

bool is_clean_utf8(std::string_view text) {
  return text.find('\0') == std::string_view::npos && valid_utf8(text);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

void BlockBuilder::text(std::string_view raw) {
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const char c = raw[i];
    const bool no_break = c == '\xc2' && i + 1 < raw.size() && raw[i + 1] == '\xa0';
    if (no_break) ++i;
    if (verbatim_ > 0 && !no_break) {
      if (c == '\n' || c == '\t' || static_cast<unsigned char>(c) >= 0x20) current_.push_back(c);
    } else if (no_break || is_space(c)) {
      space_ = true;
    } else if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) {
      if (space_ && !current_.empty() && current_.back() != '\n') current_.push_back(' ');
      space_ = false;
      current_.push_back(c);
    }
    if (verbatim_ > 0 && no_break) current_.push_back(' ');
    if (verbatim_ > 0) space_ = false;
  }
}

void BlockBuilder::line_break() {
  if (!current_.empty()) current_.push_back('\n');
  space_ = false;
}

void BlockBuilder::end_block(Block::Kind next) {
  std::string text = trimmed_lines(current_);
  if (!text.empty()) blocks_.push_back({verbatim_ > 0 ? Block::Kind::kVerbatim : kind_, std::move(text)});
  current_.clear();
  space_ = false;
  kind_ = next;
}

void BlockBuilder::verbatim(bool on) {
  if (!on && verbatim_ == 0) return;
  end_block();
  verbatim_ += on ? 1 : -1;
}

std::vector<Block> BlockBuilder::take() {
  end_block();
  return std::move(blocks_);
}

std::string join_blocks(const std::vector<Block>& blocks) {
  std::string out;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i > 0) out += blocks[i].kind == Block::Kind::kItem && blocks[i - 1].kind == Block::Kind::kItem ? "\n" : "\n\n";
    out += blocks[i].text;
  }
  if (!out.empty()) out.push_back('\n');
  return out;
}

std::vector<Block> split_plain(std::string_view text) {
  std::vector<Block> blocks;
  std::string current;
  const auto end_block = [&] {
    std::string block = trimmed_lines(current);
    if (!block.empty()) blocks.push_back({Block::Kind::kParagraph, std::move(block)});
    current.clear();
  };
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    bool empty = true;
    for (char c : text.substr(at, end - at)) {
      if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f) continue;
      empty = empty && is_space(c);
      current.push_back(c);
    }
    if (empty)
      end_block();
    else
      current.push_back('\n');
    at = end + 1;
  }
  end_block();
  return blocks;
}

}  // namespace molen::data
