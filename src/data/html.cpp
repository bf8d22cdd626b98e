#include "data/html.h"

#include <libxml/HTMLparser.h>
#include <libxml/parser.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <unordered_set>

#include "base/error.h"

namespace molen::data {
namespace {

// Real pages stay below 100. For each stray end tag libxml2 searches all open elements, so depth costs time.
constexpr std::size_t kMaxElementDepth = 512;

bool is_block(std::string_view name) {
  static const std::unordered_set<std::string_view> names{
      "address", "article", "blockquote", "body",       "caption", "center", "dd",    "details", "div",
      "dl",      "dt",      "fieldset",   "figcaption", "figure",  "form",   "h1",    "h2",      "h3",
      "h4",      "h5",      "h6",         "hr",         "li",      "main",   "ol",    "option",  "p",
      "pre",     "section", "summary",    "table",      "tbody",   "tfoot",  "thead", "title",   "tr",
      "ul",      "page",    "item",       "note",       "steps",   "list",   "terms"};
  return names.contains(name);
}
bool is_item(std::string_view name) {
  return name == "li" || name == "dt" || name == "dd" || name == "tr" || name == "item";
}
bool is_verbatim(std::string_view name) {
  return name == "pre" || name == "textarea" || name == "screen";
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// Builds blocks from a parser's events.
class HtmlReader {
 public:
  explicit HtmlReader(const HtmlRules& rules) : rules_(rules), kept_(rules.xml) {}

  // Returns false when the page is nested too deep to continue.
  bool open(std::string_view name, const xmlChar** attributes) {
    if (keeping()) {
      if (name == "br") builder_.line_break();
      if (name == "td" || name == "th") builder_.text(" ");
      if (is_block(name)) builder_.end_block(is_item(name) ? Block::Kind::kItem : Block::Kind::kParagraph);
    }
    if (stack_.size() >= kMaxElementDepth) return false;
    std::string_view id, classes;
    for (const xmlChar** a = attributes; a != nullptr && a[0] != nullptr; a += 2) {
      const auto text = [](const xmlChar* s) { return std::string_view(s ? reinterpret_cast<const char*>(s) : ""); };
      if (text(a[0]) == "id") id = text(a[1]);
      if (text(a[0]) == "class") classes = text(a[1]);
    }
    const bool root =
        !rules_.xml && (rules_.root_id.empty() ? name == "body" : id == rules_.root_id || name == "title");
    stack_.push_back({is_dropped(name, classes), root});
    dropped_ += stack_.back().dropped;
    kept_ += root;
    if (keeping() && is_verbatim(name)) builder_.verbatim(true);
    return true;
  }

  void close(std::string_view name) {
    if (stack_.empty()) return;
    const Open top = stack_.back();
    stack_.pop_back();
    if (keeping()) {
      if (is_verbatim(name)) builder_.verbatim(false);
      if (top.root || is_block(name)) builder_.end_block();
      if (name == "h1" && !stack_.empty() && contains(rules_.drop_sections, upper(std::string(builder_.last())))) {
        builder_.drop_last();
        if (!stack_.back().dropped) ++dropped_;
        stack_.back().dropped = true;
      }
    }
    dropped_ -= top.dropped;
    kept_ -= top.root;
  }

  void text(std::string_view raw) {
    if (!keeping()) return;
    if (builder_.is_verbatim()) return builder_.text(raw);
    // Dropped characters: a soft hyphen only marks a place to break a word, and U+0080 to U+009F are controls.
    while (!raw.empty()) {
      std::size_t end = 0;
      const auto is_dropped_at = [&](std::size_t i) {
        const auto second = static_cast<unsigned char>(i + 1 < raw.size() ? raw[i + 1] : 0);
        return raw[i] == '\xc2' && (second == 0xad || (second >= 0x80 && second < 0xa0));
      };
      while (end < raw.size() && !is_dropped_at(end)) ++end;
      builder_.text(raw.substr(0, end));
      raw.remove_prefix(std::min(end + 2, raw.size()));
    }
  }

  std::vector<Block> take() {
    std::vector<Block> blocks = builder_.take();
    // A page's title and its first heading are often the same words.
    if (blocks.size() > 1 && blocks[0].text == blocks[1].text) blocks.erase(blocks.begin());
    return blocks;
  }

  bool too_deep = false;

 private:
  struct Open {
    bool dropped, root;
  };

  bool keeping() const { return dropped_ == 0 && kept_ > 0; }

  bool is_dropped(std::string_view name, std::string_view classes) const {
    if (contains(rules_.drop_tags, name)) return true;
    while (!classes.empty()) {
      const std::size_t end = std::min(classes.find(' '), classes.size());
      if (contains(rules_.drop_classes, classes.substr(0, end))) return true;
      classes.remove_prefix(std::min(end + 1, classes.size()));
    }
    return false;
  }

  const HtmlRules& rules_;
  BlockBuilder builder_;
  std::vector<Open> stack_;
  int dropped_ = 0, kept_ = 0;
};

// libxml2 passes its own structure to the handlers; `_private` in it holds our pointer to the reader.
HtmlReader& reader_of(void* context) {
  return *static_cast<HtmlReader*>(static_cast<xmlParserCtxtPtr>(context)->_private);
}

void on_start(void* context, const xmlChar* name, const xmlChar** attributes) {
  HtmlReader& reader = reader_of(context);
  if (reader.open(reinterpret_cast<const char*>(name), attributes)) return;
  reader.too_deep = true;
  xmlStopParser(static_cast<xmlParserCtxtPtr>(context));
}
void on_end(void* context, const xmlChar* name) {
  reader_of(context).close(reinterpret_cast<const char*>(name));
}
void on_text(void* context, const xmlChar* text, int length) {
  reader_of(context).text({reinterpret_cast<const char*>(text), static_cast<std::size_t>(length)});
}

// There is no handler for entities and definitions. The parsers know the entities of HTML and XML themselves, and
// ignore all others.
xmlSAXHandler handler() {
  xmlSAXHandler sax{};
  sax.startElement = on_start;
  sax.endElement = on_end;
  sax.characters = sax.ignorableWhitespace = sax.cdataBlock = on_text;
  return sax;
}

}  // namespace

std::vector<Block> html_blocks(std::string_view page, const HtmlRules& rules) {
  static const bool once = (xmlInitParser(), true);
  static_cast<void>(once);
  if (page.empty()) return {};
  if (page.size() > (std::size_t{1} << 30)) throw UsageError("a page of {} bytes", page.size());
  HtmlReader reader(rules);
  struct Free {
    void operator()(xmlParserCtxtPtr c) const { rules_xml ? xmlFreeParserCtxt(c) : htmlFreeParserCtxt(c); }
    bool rules_xml;
  };
  const std::unique_ptr<xmlParserCtxt, Free> parser(rules.xml ? xmlNewParserCtxt() : htmlNewParserCtxt(),
                                                    Free{rules.xml});
  MOLEN_CHECK(parser != nullptr, "libxml2 is out of memory");
  *parser->sax = handler();
  parser->_private = &reader;
  const int size = static_cast<int>(page.size());
  // Both parsers ignore the encoding that a page declares: UTF-8 is requested, and bytes that are not UTF-8 were
  // dropped before.
  xmlDocPtr made = rules.xml ? xmlCtxtReadMemory(parser.get(), page.data(), size, nullptr, "UTF-8",
                                                 XML_PARSE_RECOVER | XML_PARSE_NONET | XML_PARSE_NOERROR |
                                                     XML_PARSE_NOWARNING | XML_PARSE_IGNORE_ENC | XML_PARSE_SAX1)
                             : htmlCtxtReadMemory(parser.get(), page.data(), size, nullptr, "UTF-8",
                                                  HTML_PARSE_RECOVER | HTML_PARSE_NONET | HTML_PARSE_NOERROR |
                                                      HTML_PARSE_NOWARNING | HTML_PARSE_IGNORE_ENC);
  xmlFreeDoc(made);
  if (reader.too_deep) throw UsageError("elements nested deeper than {}", kMaxElementDepth);
  return reader.take();
}

}  // namespace molen::data
