#include "base/console.h"

#include <cstdio>
#include <string>

#include "base/utf8.h"

namespace molen {

void say(std::string_view text) {
  // A single write call, so that lines of several ranks do not mix.
  const std::string line = "molen: " + printable(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace molen
