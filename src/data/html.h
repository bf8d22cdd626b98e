// HTML, XHTML and XML pages to blocks of text, by libxml2's parsers. They accept any bytes and repair what is broken as
// the rules of HTML 4 say; no entity, link or definition in a page is followed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/text.h"

namespace molen::data {

struct HtmlRules {
  // Only the element with this id is kept, with the page's title before it; "" keeps `body`.
  std::string root_id;
  std::vector<std::string> drop_tags{"script", "style",  "noscript", "template", "header",
                                     "aside",  "footer", "nav",      "svg"};
  std::vector<std::string> drop_classes{"navheader", "navfooter", "toc", "index", "MAC"};
  // Sections (`section` elements) left out by what their `h1` says, upper-cased in ASCII.
  std::vector<std::string> drop_sections;
  bool xml = false;  // Mallard pages and other XML: the root is kept whole
};

// Throws UsageError for elements nested deeper than any real page has them.
std::vector<Block> html_blocks(std::string_view html, const HtmlRules& rules);

}  // namespace molen::data
