#include "data/roff.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace molen::data {
namespace {

using Names = std::unordered_set<std::string_view>;

// Headings of the sections left out, upper-cased in ASCII.
const Names& dropped_sections() {
  static const Names names{"AUTHOR",
                           "AUTHORS",
                           "COPYRIGHT",
                           "COLOPHON",
                           "REPORTING BUGS",
                           "LICENSE",
                           "LICENCE",
                           "TRANSLATION",
                           "BUG REPORTS",
                           "AUTEUR",
                           "AUTEURS",
                           "VERTALING",
                           "RAPPORTEREN VAN BUGS",
                           "BUG RAPPORTEN",
                           "BUGS RAPPORTEREN",
                           "LICENTIE",
                           "AUTEURSRECHT",
                           "AUTEURSRECHTEN",
                           "AUTOR",
                           "AUTOREN",
                           "\xc3\x9c"
                           "BERSETZUNG",
                           "FEHLER MELDEN",
                           "FEHLER BERICHTEN",
                           "LIZENZ",
                           "KOLOPHON",
                           "URHEBERRECHT",
                           "TEKIJ\xc3\x84",
                           "TEKIJ\xc3\x84T",
                           "K\xc3\x84\xc3\x84NN\xc3\x96S",
                           "TEKIJ\xc3\x84NOIKEUDET",
                           "LISENSSI",
                           "VIRHEIST\xc3\x84 ILMOITTAMINEN",
                           "VIRHEIDEN ILMOITTAMINEN",
                           "KOLOFONI"};
  return names;
}

const std::unordered_map<std::string_view, std::string_view>& glyphs() {
  static const std::unordered_map<std::string_view, std::string_view> map{{"aq", "'"},
                                                                          {"dq", "\""},
                                                                          {"lq", "\xe2\x80\x9c"},
                                                                          {"rq", "\xe2\x80\x9d"},
                                                                          {"oq", "\xe2\x80\x98"},
                                                                          {"cq", "\xe2\x80\x99"},
                                                                          {"co", "\xc2\xa9"},
                                                                          {"rg", "\xc2\xae"},
                                                                          {"tm", "\xe2\x84\xa2"},
                                                                          {"hy", "-"},
                                                                          {"mi", "-"},
                                                                          {"en", "\xe2\x80\x93"},
                                                                          {"em", "\xe2\x80\x94"},
                                                                          {"bu", "\xe2\x80\xa2"},
                                                                          {"ti", "~"},
                                                                          {"ha", "^"},
                                                                          {"at", "@"},
                                                                          {"sh", "#"},
                                                                          {"Do", "$"},
                                                                          {"rs", "\\"},
                                                                          {"sl", "/"},
                                                                          {"ba", "|"},
                                                                          {"or", "|"},
                                                                          {"br", "|"},
                                                                          {"ga", "`"},
                                                                          {"aa", "\xc2\xb4"},
                                                                          {"la", "<"},
                                                                          {"ra", ">"},
                                                                          {"lt", "<"},
                                                                          {"gt", ">"},
                                                                          {"<=", "\xe2\x89\xa4"},
                                                                          {">=", "\xe2\x89\xa5"},
                                                                          {"!=", "\xe2\x89\xa0"},
                                                                          {"->", "\xe2\x86\x92"},
                                                                          {"<-", "\xe2\x86\x90"},
                                                                          {"+-", "\xc2\xb1"},
                                                                          {"mu", "\xc3\x97"},
                                                                          {"de", "\xc2\xb0"},
                                                                          {"ss", "\xc3\x9f"},
                                                                          {"Fo", "\xc2\xab"},
                                                                          {"Fc", "\xc2\xbb"},
                                                                          {"pl", "+"},
                                                                          {"eq", "="},
                                                                          {"lB", "["},
                                                                          {"rB", "]"},
                                                                          {"lC", "{"},
                                                                          {"rC", "}"},
                                                                          {"ul", "_"},
                                                                          {"'e", "\xc3\xa9"},
                                                                          {"`e", "\xc3\xa8"},
                                                                          {":e", "\xc3\xab"},
                                                                          {"'a", "\xc3\xa1"},
                                                                          {":a", "\xc3\xa4"},
                                                                          {":o", "\xc3\xb6"},
                                                                          {":u", "\xc3\xbc"},
                                                                          {":i", "\xc3\xaf"},
                                                                          {":A", "\xc3\x84"},
                                                                          {":O", "\xc3\x96"},
                                                                          {":U", "\xc3\x9c"},
                                                                          {"oa", "\xc3\xa5"},
                                                                          {"<<", "\xc2\xab"},
                                                                          {"Eu", "\xe2\x82\xac"}};
  return map;
}

bool is_space(char c) {
  return c == ' ' || c == '\t';
}

// mdoc macros that may stand among another macro's arguments.
const Names& callable() {
  static const Names names{"Ar", "Ad", "Aq", "Ac", "Ao", "Bq", "Cm", "Dq", "Do", "Dc", "Dv", "Em",
                           "Er", "Ev", "Fa", "Fl", "Fn", "Ic", "Li", "Nm", "No", "Ns", "Op", "Oo",
                           "Oc", "Pa", "Pf", "Pq", "Po", "Pc", "Ql", "Qq", "Sq", "So", "Sc", "Sx",
                           "Sy", "Tn", "Va", "Vt", "Xr", "In", "Lk", "Xo", "Xc", "Bx", "Nx", "Fx"};
  return names;
}

class Page {
 public:
  explicit Page(std::string_view text) : text_(text) {
    strings_ = {{"lq", "\xe2\x80\x9c"},
                {"rq", "\xe2\x80\x9d"},
                {"Gt", ">"},
                {"Lt", "<"},
                {"Am", "&"},
                {"R", "\xc2\xae"},
                {"Tm", "\xe2\x84\xa2"},
                {"Ba", "|"},
                {"q", "\""},
                {"Le", "<="},
                {"Ge", ">="}};
  }

  std::vector<Block> run() {
    std::string_view line;
    while (next(line)) {
      if (!line.empty() && (line[0] == '.' || line[0] == '\'')) {
        if (!request(line.substr(1))) return {};
      } else if (line.empty()) {
        verbatim_ ? put("\n") : end();
      } else {
        words(expand(line), true);
      }
    }
    return builder_.take();
  }

 private:
  bool next(std::string_view& line) {
    if (at_ >= text_.size()) return false;
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    line = text_.substr(at_, end - at_);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    at_ = end + 1;
    return true;
  }

  // A request name and its arguments: "quoted words" count as one.
  static std::vector<std::string> arguments(std::string_view rest) {
    std::vector<std::string> out;
    std::size_t i = 0;
    while (i < rest.size()) {
      while (i < rest.size() && is_space(rest[i])) ++i;
      if (i >= rest.size() || rest.substr(i, 2) == "\\\"") break;
      std::string word;
      if (rest[i] == '"') {
        for (++i; i < rest.size(); ++i) {
          if (rest[i] != '"') {
            word.push_back(rest[i]);
          } else if (i + 1 < rest.size() && rest[i + 1] == '"') {
            word.push_back('"');
            ++i;
          } else {
            ++i;
            break;
          }
        }
      } else {
        for (; i < rest.size() && !is_space(rest[i]); ++i) {
          word.push_back(rest[i]);
          if (rest[i] == '\\' && i + 1 < rest.size()) word.push_back(rest[++i]);
        }
      }
      out.push_back(std::move(word));
    }
    return out;
  }

  // The name behind \f, \*, \n, \(: one character, "(xx" or "[name]". Moves `i` behind it.
  static std::string_view name_at(std::string_view s, std::size_t& i) {
    if (i >= s.size()) return {};
    if (s[i] == '(') {
      const std::string_view name = s.substr(std::min(i + 1, s.size()), 2);
      i = std::min(i + 3, s.size());
      return name;
    }
    if (s[i] == '[') {
      const std::size_t end = std::min(s.find(']', i), s.size());
      const std::string_view name = s.substr(i + 1, end - i - 1);
      i = std::min(end + 1, s.size());
      return name;
    }
    return s.substr(i++, 1);
  }

  static void glyph(std::string_view name, std::string& out) {
    if (const auto found = glyphs().find(name); found != glyphs().end()) {
      out += found->second;
    } else if (name.size() >= 5 && name.size() <= 7 && name[0] == 'u') {
      std::uint32_t code = 0;
      for (char c : name.substr(1)) {
        const auto u = static_cast<unsigned char>(c);
        if (!std::isxdigit(u)) return;
        code = code * 16 + static_cast<std::uint32_t>(std::isdigit(u) ? u - '0' : std::tolower(u) - 'a' + 10);
      }
      append_code_point(out, code);
    }
  }

  // Escapes resolved; a comment ends the line. `depth` bounds strings that name each other.
  std::string expand(std::string_view s, int depth = 0) const {
    std::string out;
    std::size_t i = 0;
    while (i < s.size()) {
      if (s[i] != '\\') {
        out.push_back(s[i++]);
        continue;
      }
      if (++i >= s.size()) break;
      const char c = s[i++];
      switch (c) {
        case '"':
          return out;
        case '-':
          out.push_back('-');
          break;
        case 'e':
        case '\\':
          out.push_back('\\');
          break;
        case '\'':
        case '`':
        case '.':
          out.push_back(c);
          break;
        case ' ':
        case '~':
        case '0':
        case 't':
          out.push_back(' ');
          break;
        case '(':
          --i;
          glyph(name_at(s, i), out);
          break;
        case '[':
          --i;
          glyph(name_at(s, i), out);
          break;
        case '*':
          string(name_at(s, i), out, depth);
          break;
        case 'f':
        case 'F':
        case 'm':
        case 'M':
        case 'n':
        case 'g':
        case 'k':
        case 'Y':
          name_at(s, i);
          break;
        case 's':
          size_change(s, i);
          break;
        case 'h':
        case 'v':
        case 'w':
        case 'N':
        case 'o':
        case 'b':
        case 'l':
        case 'L':
        case 'D':
        case 'x':
        case 'X':
        case 'A':
        case 'B':
        case 'R':
        case 'S':
        case 'H':
        case 'Z':
          delimited(s, i);
          break;
        default:
          break;  // \& \, \/ \^ \| \: \% \c \{ \} and unknown ones stand for nothing
      }
      // An escape that ended inside a character of several bytes takes all of it.
      while (i < s.size() && (s[i] & 0xc0) == 0x80) ++i;
    }
    return out;
  }

  void string(std::string_view name, std::string& out, int depth) const {
    if (const auto found = strings_.find(std::string(name)); found != strings_.end() && depth < 3)
      out += expand(found->second, depth + 1);
  }

  // \s0, \s-2, \s(12, \s[-1].
  static void size_change(std::string_view s, std::size_t& i) {
    if (i < s.size() && (s[i] == '+' || s[i] == '-')) ++i;
    if (i < s.size() && (s[i] == '(' || s[i] == '['))
      name_at(s, i);
    else if (i < s.size())
      ++i;
  }

  // \h'1i': the argument stands between two equal characters.
  static void delimited(std::string_view s, std::size_t& i) {
    if (i >= s.size()) return;
    const std::size_t end = s.find(s[i], i + 1);
    i = end == std::string_view::npos ? s.size() : end + 1;
  }

  void put(std::string_view text) {
    if (!dropping_) builder_.text(text);
  }
  void words(std::string_view text, bool line) {
    put(text);
    if (line) put(verbatim_ ? "\n" : " ");
    if (!line || tag_ == 0) return;
    if (--tag_ == 0) end(Block::Kind::kItem);
  }
  void end(Block::Kind next = Block::Kind::kParagraph) { builder_.end_block(next); }
  void verbatim(bool on) {
    if (on == verbatim_) return;
    verbatim_ = on;
    builder_.verbatim(on);
  }

  void heading(const std::vector<std::string>& args, bool section) {
    verbatim(false);
    tag_ = 0;
    end();
    std::string title;
    for (const std::string& arg : args) title += (title.empty() ? "" : " ") + expand(arg);
    std::string_view line;
    if (args.empty() && next(line)) title = expand(line);
    if (section) {
      std::string upper;
      for (char c : title) upper.push_back(static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
      dropping_ = dropped_sections().contains(upper);
    }
    put(title);
    end();
  }

  // Skips to the line that ends a definition: `..`, also written `.  .`.
  void skip_definition() {
    std::string_view line;
    while (next(line)) {
      if (line.empty() || line[0] != '.') continue;
      std::size_t i = 1;
      while (i < line.size() && is_space(line[i])) ++i;
      if (i < line.size() && line[i] == '.') return;
    }
  }

  void skip_to(std::string_view end_request) {
    std::string_view line;
    while (next(line))
      if (line.starts_with(end_request)) return;
  }

  // A conditional: its body is layout for one output device, so it goes, with the lines of a \{ ... \} block.
  void skip_conditional(std::string_view rest) {
    const auto count = [](std::string_view s) {
      int level = 0;
      for (std::size_t i = 0; i + 1 < s.size(); ++i)
        if (s[i] == '\\') {
          level += s[i + 1] == '{' ? 1 : s[i + 1] == '}' ? -1 : 0;
          ++i;
        }
      return level;
    };
    int level = count(rest);
    std::string_view line;
    while (level > 0 && next(line)) level += count(line);
  }

  bool request(std::string_view line) {
    std::size_t i = 0;
    while (i < line.size() && is_space(line[i])) ++i;
    std::size_t end_of_name = i;
    while (end_of_name < line.size() && !is_space(line[end_of_name]) && line[end_of_name] != '\\') ++end_of_name;
    const std::string_view name = line.substr(i, end_of_name - i), rest = line.substr(end_of_name);
    if (name.empty()) return true;
    if (name == "so") return false;
    if (name == "if" || name == "ie" || name == "el" || name == "while") return skip_conditional(rest), true;
    if (name == "de" || name == "am" || name == "ig" || name == "de1") return skip_definition(), true;
    if (name == "TS") return end(), skip_to(".TE"), true;
    if (name == "EQ") return skip_to(".EN"), true;
    const std::vector<std::string> args = arguments(rest);
    if (name == "ds" || name == "as") {
      if (args.size() > 1 && strings_.size() < 1000) strings_[args[0]] = args[1];
      return true;
    }
    if (name == "SH" || name == "Sh") return heading(args, true), true;
    if (name == "SS" || name == "Ss") return heading(args, false), true;
    layout(name, args) || fonts(name, args) || mdoc(name, args);
    return true;
  }

  bool layout(std::string_view name, const std::vector<std::string>& args) {
    static const Names breaks{"PP", "P", "LP", "Pp", "sp", "HP", "RS", "RE", "Bl", "El", "in", "ce", "bp", "ti"};
    if (breaks.contains(name)) {
      tag_ = 0;
      if (verbatim_)
        put("\n");
      else
        end();
    } else if (name == "br") {
      if (!dropping_) builder_.line_break();
    } else if (name == "TP" || name == "TQ") {
      end(Block::Kind::kItem);
      tag_ = 1;
    } else if (name == "IP" || name == "It") {
      tag_ = 0;
      end(Block::Kind::kItem);
      if (!args.empty()) {
        if (name == "It")
          put(mdoc_text("No", args, 0));
        else
          put(expand(args[0]));
        // A bullet stands before its text, a term on a line of its own.
        if (args[0].find("bu") == std::string::npos && args[0] != "*" && args[0] != "-" && args[0] != "\\-")
          end(Block::Kind::kItem);
        else
          put(" ");
      }
    } else if (name == "nf" || name == "EX" || name == "Bd") {
      verbatim(true);
    } else if (name == "fi" || name == "EE" || name == "Ed") {
      verbatim(false);
    } else if (name == "UR" || name == "MT") {
      link_ = name == "UR" && !args.empty() ? expand(args[0]) : "";  // a mail address is personal data
    } else if (name == "UE" || name == "ME") {
      if (!link_.empty()) put("<" + link_ + ">");
      if (!args.empty()) put(expand(args[0]));
      link_.clear();
      put(" ");
    } else {
      return false;
    }
    return true;
  }

  bool fonts(std::string_view name, const std::vector<std::string>& args) {
    static const Names same{"B", "I", "SM", "SB"}, alternating{"BR", "RB", "BI", "IB", "IR", "RI"};
    if (!same.contains(name) && !alternating.contains(name)) return false;
    std::string text;
    for (const std::string& arg : args) text += (same.contains(name) && !text.empty() ? " " : "") + expand(arg);
    if (!args.empty()) words(text, true);
    return true;
  }

  // The words of an mdoc macro and of those called among its arguments.
  std::string mdoc_text(std::string_view name, const std::vector<std::string>& args, int depth) {
    std::string out, open, close;
    if (name == "Nm" && (args.empty() || callable().contains(args[0]))) out = name_;
    if (name == "Nm" && !args.empty() && name_.empty()) name_ = expand(args[0]);
    if (name == "Dq" || name == "Qq" || name == "Sq" || name == "Ql")
      open = close = name[0] == 'S' || name == "Ql" ? "'" : "\"";
    if (name == "Op" || name == "Bq") open = "[", close = "]";
    if (name == "Aq" || name == "In") open = "<", close = ">";
    if (name == "Pq") open = "(", close = ")";
    bool glue = name == "Fl" || name == "Pf";
    if (name == "Fl") out = "-";
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (callable().contains(args[i]) && depth < 8) {
        const std::string inner =
            mdoc_text(args[i], {args.begin() + static_cast<std::ptrdiff_t>(i) + 1, args.end()}, depth + 1);
        if (!out.empty() && !inner.empty() && args[i] != "Ns" && !glue) out += " ";
        out += inner;
        break;
      }
      const std::string word = expand(args[i]);
      const bool mark = word.size() == 1 && std::string_view(".,;:)]?!").find(word[0]) != std::string_view::npos;
      if (name == "Xr" && i == 1)
        out += "(" + word + ")";
      else
        out += (out.empty() || glue || mark ? "" : " ") + word;
      glue = false;
    }
    return open + out + close;
  }

  bool mdoc(std::string_view name, const std::vector<std::string>& args) {
    if (name == "Nd") {
      words("- " + mdoc_text("No", args, 0), true);
      return true;
    }
    if (!callable().contains(name)) return false;
    words(mdoc_text(name, args, 0), true);
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  BlockBuilder builder_;
  std::unordered_map<std::string, std::string> strings_;
  std::string link_, name_;
  bool dropping_ = false, verbatim_ = false;
  int tag_ = 0;  // lines until the tag of a .TP ends
};

}  // namespace

std::vector<Block> roff_blocks(std::string_view page) {
  return Page(page).run();
}

}  // namespace molen::data
