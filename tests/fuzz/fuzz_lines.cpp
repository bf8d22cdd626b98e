// Files of lines, plain, gzip or zstd, and the documents in them: refused with a UsageError, or they give lines without
// line ends.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/jsonl.h"
#include "data/lines.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  // A file in memory, because the reader opens paths.
  const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  constexpr std::int64_t kLimit = 1 << 16;
  try {
    data::LineReader reader("/proc/self/fd/" + std::to_string(fd), kLimit);
    data::JsonlParser parser;
    std::int64_t number = 0;
    for (std::string_view line; number < 4096 && reader.next(line);) {
      if (reader.line_number() != ++number || line.find('\n') != std::string_view::npos) std::abort();
      try {
        parser.parse(line, "fuzz");
      } catch (const UsageError&) {
      }
    }
  } catch (const UsageError&) {
  }
  ::close(fd);
  return 0;
}
