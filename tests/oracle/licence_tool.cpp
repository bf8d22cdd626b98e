// Answers, line by line of standard input, how molen reads licences; for licences.py.
//   licence_tool spdx       SPDX expressions: an empty line when one is valid, else its error
//   licence_tool declared   licence names of DEP-5: their SPDX expressions
//   licence_tool dep5       copyright files: their stanzas as JSON, null when a file is not in this format
//   licence_tool match      copyright file, tab, path in its source: the licence declared for the path
#include <iostream>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/dep5.h"
#include "data/spdx.h"

namespace {

using namespace molen;
using namespace molen::data;

std::string answer(const std::string& verb, const std::string& line) {
  if (verb == "declared") return spdx_of(line);
  if (verb == "spdx") {
    try {
      check_spdx(line, "line");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }
  const auto dep5 = parse_dep5(read_file(line.substr(0, line.find('\t'))));
  if (verb == "match") {
    const auto stanza = dep5 ? dep5->match(line.substr(line.find('\t') + 1)) : std::nullopt;
    return stanza ? stanza->licence : "";
  }
  if (!dep5) return "null";
  Json stanzas = Json::array();
  for (const Dep5Files& stanza : dep5->files)
    stanzas.push_back({{"files", stanza.patterns}, {"licence", stanza.licence}});
  return stanzas.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (std::string line; std::getline(std::cin, line);) std::cout << answer(argv[1], line) << "\n";
  return 0;
}
