// How the program `molen` goes on as molen-compute.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "apps/computing.h"
#include "base/error.h"
#include "base/file.h"

namespace molen::apps {
namespace {

constexpr const char* kComputing = "molen-compute";

}  // namespace

// The process stays the same one: its number, its group, its open files, its environment and signals that are ignored
// or sent at the end of its parent.
const Computing& computing() {
  if (!kBuild.libtorch) throw UsageError("this command needs libtorch, which this build lacks: run `make setup build`");
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / kComputing;
  std::string words = read_file("/proc/self/cmdline");
  std::vector<char*> arguments;
  for (char* word = words.data(); word < words.data() + words.size(); word += std::strlen(word) + 1)
    arguments.push_back(word);
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  ::execv(program.c_str(), arguments.data());
  const int why = errno;
  if (why == ENOENT && !fs::exists(program))
    throw MissingFileError(
        "{}: no such file; this command computes with libtorch, for which `molen` starts the program {} in its own "
        "folder: `make build` leaves both there, and `cmake --install` installs both",
        program.string(), kComputing);
  throw Error("{}: cannot be started: {}; this command computes with libtorch, which is in that program",
              program.string(), std::strerror(why));
}

}  // namespace molen::apps
