#include "data/roff.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/filesystem.h"
#include "data/html.h"
#include "data/process.h"

namespace molen::data {
namespace {

namespace fs = std::filesystem;

// Limits are needed because macros can call each other without end. The largest pages of Debian take 0.1 s, 20 MiB of
// memory and 1 MiB of output.
constexpr ProcessLimits kLimits{0.5, std::int64_t{192} << 20, std::int64_t{16} << 20};

// Returns rules for mandoc's HTML, which has `section`s with an `h1`, the page's head and foot as tables, and mail
// addresses as links.
const HtmlRules& rules() {
  static const HtmlRules made{
      "",
      {},
      {"head", "foot", "Mt"},
      {"AUTHOR", "AUTHORS", "COPYRIGHT", "COLOPHON", "REPORTING BUGS", "LICENSE", "LICENCE", "TRANSLATION",
       "BUG REPORTS",
       // Dutch
       "AUTEUR", "AUTEURS", "VERTALING", "RAPPORTEREN VAN BUGS", "BUG RAPPORTEN", "BUGS RAPPORTEREN", "LICENTIE",
       "AUTEURSRECHT", "AUTEURSRECHTEN",
       // German
       "AUTOR", "AUTOREN", "\303\234BERSETZUNG", "FEHLER MELDEN", "FEHLER BERICHTEN", "LIZENZ", "KOLOPHON",
       "URHEBERRECHT",
       // Finnish
       "TEKIJ\xc3\x84", "TEKIJ\xc3\x84T", "K\xc3\x84\xc3\x84NN\xc3\x96S", "TEKIJ\xc3\x84NOIKEUDET", "LISENSSI",
       "VIRHEIST\xc3\x84 ILMOITTAMINEN", "VIRHEIDEN ILMOITTAMINEN", "KOLOFONI"},
      false};
  return made;
}

// Returns whether the first line that is not a comment names another page.
bool is_alias(std::string_view page) {
  while (!page.empty()) {
    const std::string_view line = page.substr(0, page.find('\n'));
    if (!line.empty() && !line.starts_with(".\\\"") && !line.starts_with("'\\\"")) return line.starts_with(".so ");
    page.remove_prefix(std::min(line.size() + 1, page.size()));
  }
  return false;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t at; (at = text.find(from)) != std::string_view::npos;) {
    out.append(text, 0, at).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

// In verbatim text mandoc marks a line that begins with white space by a `br` on its own line, which a browser shows as
// two more lines.
std::string without_marks(std::string_view html) {
  std::string out;
  for (std::size_t at = 0; at < html.size();) {
    const std::size_t open = std::min(html.find("<pre", at), html.size());
    const std::size_t close = std::min(html.find("</pre>", open), html.size());
    out.append(html, at, open - at);
    out += replaced(html.substr(open, close - open), "\n<br/>\n", "\n");
    at = close;
  }
  return out;
}

// mandoc makes a list's mark and its text a term and its description; this joins "*" and "text" to "* text".
void join_marks(std::vector<Block>& blocks) {
  const auto is_mark = [](std::string_view s) {
    for (const char* mark : {"\xe2\x80\xa2", "*", "-", "+", "o", "\xc2\xb7", "\xe2\x80\x93"})
      if (s == mark) return true;
    return s.size() <= 3 && s.size() >= 2 && (s.back() == '.' || s.back() == ')') &&
           s.substr(0, s.size() - 1).find_first_not_of("0123456789") == std::string_view::npos;
  };
  std::vector<Block> joined;
  for (Block& block : blocks) {
    const bool item = block.kind == Block::Kind::kItem;
    if (item && !joined.empty() && joined.back().kind == Block::Kind::kItem && is_mark(joined.back().text))
      joined.back().text += " " + block.text;
    else
      joined.push_back(std::move(block));
  }
  blocks = std::move(joined);
}

}  // namespace

std::vector<Block> roff_blocks(std::string_view page) {
  if (page.empty() || is_alias(page)) return {};
  // An empty folder: a page may ask for files below the working directory.
  const TemporaryDirectory folder(fs::temp_directory_path() / "molen-page");
  const ProcessResult made =
      run_process({"mandoc", "-K", "utf-8", "-T", "html", "-O", "fragment"}, folder.path(), page, kLimits);
  if (made.status == 127) throw Error("mandoc is not installed, which reads manual pages: apt-get install mandoc");
  // A status up to 4 only reports faults in the page's markup.
  if (made.status > 4)
    throw UsageError("mandoc gives up on the page ({} {})", made.status > 128 ? "signal" : "status",
                     made.status > 128 ? made.status - 128 : made.status);
  std::vector<Block> blocks = html_blocks(without_marks(made.output), rules());
  // Pages write hyphens as "-" or \\(hy; mandoc turns the second into U+2010.
  for (Block& block : blocks) block.text = replaced(block.text, "\xe2\x80\x90", "-");
  join_marks(blocks);
  return blocks;
}

}  // namespace molen::data
