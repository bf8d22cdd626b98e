#include "data/html.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace molen::data {
namespace {

// Deeper nesting is read as if flat: real pages stay below 100.
constexpr std::size_t kMaxDepth = 2000;

constexpr std::array<std::pair<std::string_view, std::uint32_t>, 56> kEntities{{
    {"amp", '&'},      {"lt", '<'},       {"gt", '>'},       {"quot", '"'},      {"apos", '\''},    {"nbsp", 0xa0},
    {"copy", 0xa9},    {"reg", 0xae},     {"trade", 0x2122}, {"hellip", 0x2026}, {"mdash", 0x2014}, {"ndash", 0x2013},
    {"lsquo", 0x2018}, {"rsquo", 0x2019}, {"sbquo", 0x201a}, {"ldquo", 0x201c},  {"rdquo", 0x201d}, {"bdquo", 0x201e},
    {"laquo", 0xab},   {"raquo", 0xbb},   {"times", 0xd7},   {"divide", 0xf7},   {"deg", 0xb0},     {"plusmn", 0xb1},
    {"sect", 0xa7},    {"para", 0xb6},    {"middot", 0xb7},  {"bull", 0x2022},   {"euro", 0x20ac},  {"pound", 0xa3},
    {"eacute", 0xe9},  {"egrave", 0xe8},  {"euml", 0xeb},    {"ecirc", 0xea},    {"aacute", 0xe1},  {"agrave", 0xe0},
    {"auml", 0xe4},    {"aring", 0xe5},   {"iuml", 0xef},    {"iacute", 0xed},   {"oacute", 0xf3},  {"ouml", 0xf6},
    {"uuml", 0xfc},    {"uacute", 0xfa},  {"ccedil", 0xe7},  {"ntilde", 0xf1},   {"szlig", 0xdf},   {"Auml", 0xc4},
    {"Ouml", 0xd6},    {"Uuml", 0xdc},    {"Eacute", 0xc9},  {"larr", 0x2190},   {"rarr", 0x2192},  {"le", 0x2264},
    {"ge", 0x2265},    {"shy", 0xad},
}};

const std::unordered_set<std::string_view>& void_elements() {
  static const std::unordered_set<std::string_view> names{"area",  "base", "br",   "col",   "embed",  "hr",    "img",
                                                          "input", "link", "meta", "param", "source", "track", "wbr"};
  return names;
}

const std::unordered_set<std::string_view>& block_elements() {
  static const std::unordered_set<std::string_view> names{
      "address", "article", "blockquote", "body",       "caption", "center", "dd",    "details", "div",
      "dl",      "dt",      "fieldset",   "figcaption", "figure",  "form",   "h1",    "h2",      "h3",
      "h4",      "h5",      "h6",         "hr",         "li",      "main",   "ol",    "option",  "p",
      "pre",     "section", "summary",    "table",      "tbody",   "tfoot",  "thead", "title",   "tr",
      "ul",      "page",    "item",       "note",       "steps",   "list",   "terms"};
  return names;
}

bool is_item(std::string_view name) {
  return name == "li" || name == "dt" || name == "dd" || name == "tr" || name == "item";
}
bool is_verbatim(std::string_view name) {
  return name == "pre" || name == "textarea" || name == "screen";
}

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f';
}

struct Tag {
  std::string name;  // lower case
  std::string id;
  std::string classes;
  bool closing = false, empty = false;
};

// Reads a tag that starts at html[at] == '<'; returns the position after it, or `at` where it is no tag.
std::size_t read_tag(std::string_view html, std::size_t at, Tag& tag) {
  std::size_t i = at + 1;
  if (i < html.size() && html[i] == '/') {
    tag.closing = true;
    ++i;
  }
  if (i >= html.size() || !std::isalpha(static_cast<unsigned char>(html[i]))) return at;
  for (; i < html.size() && !is_space(html[i]) && html[i] != '>' && html[i] != '/'; ++i)
    tag.name.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(html[i]))));
  while (i < html.size() && html[i] != '>') {
    if (is_space(html[i]) || html[i] == '/') {
      tag.empty = html[i] == '/';
      ++i;
      continue;
    }
    tag.empty = false;
    const std::size_t name = i;
    while (i < html.size() && !is_space(html[i]) && html[i] != '=' && html[i] != '>' && html[i] != '/') ++i;
    const std::string_view key = html.substr(name, i - name);
    if (i == name) ++i;  // a stray '='
    if (i >= html.size() || html[i] != '=') continue;
    ++i;
    std::string_view value;
    if (i < html.size() && (html[i] == '"' || html[i] == '\'')) {
      const std::size_t end = std::min(html.find(html[i], i + 1), html.size());
      value = html.substr(i + 1, end - i - 1);
      i = std::min(end + 1, html.size());
    } else {
      const std::size_t first = i;
      while (i < html.size() && !is_space(html[i]) && html[i] != '>') ++i;
      value = html.substr(first, i - first);
    }
    if (key == "id") tag.id = value;
    if (key == "class") tag.classes = value;
  }
  return std::min(i + 1, html.size());
}

class Reader {
 public:
  Reader(std::string_view html, const HtmlRules& rules) : html_(html), rules_(rules) {
    has_body_ = !rules.xml && rules.root_id.empty() && html.find("<body") != std::string_view::npos;
    if (rules.xml) kept_ = 1;
    if (!rules.xml && rules.root_id.empty() && !has_body_) kept_ = 1;
  }

  std::vector<Block> run() {
    while (at_ < html_.size()) {
      if (html_[at_] == '<' && markup()) continue;
      const std::size_t end = std::min(html_.find('<', at_ + 1), html_.size());
      if (keeping()) text(html_.substr(at_, end - at_));
      at_ = end;
    }
    std::vector<Block> blocks = builder_.take();
    // A page's title and its first heading are mostly the same words.
    if (blocks.size() > 1 && blocks[0].text == blocks[1].text) blocks.erase(blocks.begin());
    return blocks;
  }

 private:
  struct Open {
    std::string name;
    bool dropped, root;
  };

  bool keeping() const { return dropped_ == 0 && kept_ > 0; }

  // Comments, declarations, processing instructions, CDATA and tags; false where '<' is only a character.
  bool markup() {
    const std::string_view rest = html_.substr(at_);
    const auto skip = [&](std::string_view end, std::size_t from) {
      const std::size_t found = rest.find(end, from);
      at_ = found == std::string_view::npos ? html_.size() : at_ + found + end.size();
      return true;
    };
    if (rest.starts_with("<!--")) return skip("-->", 4);
    if (rest.starts_with("<![CDATA[")) {
      const std::size_t end = std::min(rest.find("]]>"), rest.size());
      if (keeping()) builder_.text(rest.substr(9, std::max<std::size_t>(end, 9) - 9));
      return skip("]]>", 0);
    }
    if (rest.starts_with("<!")) return skip(">", 2);
    if (rest.starts_with("<?")) return skip(">", 2);
    Tag tag;
    const std::size_t after = read_tag(html_, at_, tag);
    if (after == at_) return false;
    at_ = after;
    if (tag.closing)
      close(tag);
    else
      open(tag);
    return true;
  }

  bool is_dropped(const Tag& tag) const {
    if (std::find(rules_.drop_tags.begin(), rules_.drop_tags.end(), tag.name) != rules_.drop_tags.end()) return true;
    std::size_t i = 0;
    while (i < tag.classes.size()) {
      const std::size_t end = std::min(tag.classes.find(' ', i), tag.classes.size());
      const std::string_view name = std::string_view(tag.classes).substr(i, end - i);
      if (std::find(rules_.drop_classes.begin(), rules_.drop_classes.end(), name) != rules_.drop_classes.end())
        return true;
      i = end + 1;
    }
    return false;
  }

  bool is_root(const Tag& tag) const {
    if (rules_.xml) return false;
    if (rules_.root_id.empty()) return has_body_ && tag.name == "body";
    return tag.id == rules_.root_id || tag.name == "title";
  }

  void open(const Tag& tag) {
    if (keeping()) {
      if (tag.name == "br") builder_.line_break();
      if (tag.name == "td" || tag.name == "th") builder_.text(" ");
      if (block_elements().contains(tag.name))
        builder_.end_block(is_item(tag.name) ? Block::Kind::kItem : Block::Kind::kParagraph);
    }
    const bool empty = tag.empty || (!rules_.xml && void_elements().contains(tag.name));
    // What holds a script's text ends at its own closing tag, whatever stands in it.
    if (!empty && !rules_.xml && (tag.name == "script" || tag.name == "style")) return skip_raw(tag.name);
    if (empty || stack_.size() >= kMaxDepth) return;
    stack_.push_back({tag.name, is_dropped(tag), is_root(tag)});
    ++open_[tag.name];
    dropped_ += stack_.back().dropped;
    kept_ += stack_.back().root;
    if (keeping() && is_verbatim(tag.name)) builder_.verbatim(true);
  }

  void close(const Tag& tag) {
    const auto found = open_.find(tag.name);
    if (found == open_.end() || found->second == 0) return;  // closes nothing that is open
    while (true) {
      const Open top = std::move(stack_.back());
      stack_.pop_back();
      if (keeping()) {
        if (is_verbatim(top.name)) builder_.verbatim(false);
        if (top.root || block_elements().contains(top.name)) builder_.end_block();
      }
      --open_[top.name];
      dropped_ -= top.dropped;
      kept_ -= top.root;
      if (top.name == tag.name) return;
    }
  }

  void skip_raw(std::string_view name) {
    while (at_ < html_.size()) {
      at_ = html_.find("</", at_);
      if (at_ == std::string_view::npos) break;
      const std::string_view got = html_.substr(at_ + 2, name.size());
      if (std::equal(got.begin(), got.end(), name.begin(), name.end(),
                     [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; }))
        break;
      at_ += 2;
    }
    at_ = at_ == std::string_view::npos ? html_.size() : std::min(html_.find('>', at_), html_.size() - 1) + 1;
  }

  void text(std::string_view raw) {
    std::string decoded;
    for (std::size_t i = 0; i < raw.size();) {
      if (raw[i] == '&') {
        const std::size_t used = decode_entity(raw.substr(i), decoded);
        if (used > 0) {
          i += used;
          continue;
        }
      }
      decoded.push_back(raw[i++]);
    }
    builder_.text(decoded);
  }

  std::string_view html_;
  const HtmlRules& rules_;
  std::size_t at_ = 0;
  BlockBuilder builder_;
  std::vector<Open> stack_;
  std::unordered_map<std::string, int> open_;  // open elements by name, so that a stray closing tag costs nothing
  int dropped_ = 0, kept_ = 0;
  bool has_body_ = false;
};

}  // namespace

std::size_t decode_entity(std::string_view text, std::string& out) {
  const std::size_t end = text.substr(0, 12).find(';');
  if (text.empty() || text[0] != '&' || end == std::string_view::npos || end < 2) return 0;
  const std::string_view name = text.substr(1, end - 1);
  if (name[0] == '#') {
    const bool hex = name.size() > 1 && (name[1] == 'x' || name[1] == 'X');
    const std::string_view digits = name.substr(hex ? 2 : 1);
    if (digits.empty()) return 0;
    std::uint32_t value = 0;
    for (char c : digits) {
      const auto u = static_cast<unsigned char>(c);
      if (hex ? !std::isxdigit(u) : !std::isdigit(u)) return 0;
      const int digit = std::isdigit(u) ? u - '0' : std::tolower(u) - 'a' + 10;
      value = std::min<std::uint32_t>(value, 0x1000000) * (hex ? 16 : 10) + static_cast<std::uint32_t>(digit);
    }
    return append_code_point(out, value) ? end + 1 : 0;
  }
  for (const auto& [known, code] : kEntities)
    if (known == name) {
      if (code != 0xad) append_code_point(out, code);  // a soft hyphen is no text
      return end + 1;
    }
  return 0;
}

std::vector<Block> html_blocks(std::string_view html, const HtmlRules& rules) {
  return Reader(html, rules).run();
}

}  // namespace molen::data
