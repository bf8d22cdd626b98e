// Turns HTML, XHTML and XML pages into blocks of text with libxml2's parsers. They accept any bytes and repair broken
// markup by the rules of HTML 4. The parsers load nothing that a page refers to: no entity, link or definition.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/text.h"

namespace molen::data {

struct HtmlRules {
  // Keeps only the element with this id, and the page's title before it; "" keeps `body`.
  std::string root_id;
  std::vector<std::string> drop_tags{"script", "style",  "noscript", "template", "header",
                                     "aside",  "footer", "nav",      "svg"};
  std::vector<std::string> drop_classes{"navheader", "navfooter", "toc", "index", "MAC"};
  // Headings (`h1`, upper-cased in ASCII) of the sections (`section` elements) to leave out.
  std::vector<std::string> drop_sections;
  bool xml = false;  // Mallard pages and other XML: the root is kept whole
};

// Throws UsageError when elements are nested deeper than in any real page.
std::vector<Block> html_blocks(std::string_view html, const HtmlRules& rules);

}  // namespace molen::data
