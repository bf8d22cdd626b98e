// Bytes that reach the collector, or a node from the collector. The first byte says which, and how the rest is cut
// into pieces. Lines are refused with a UsageError that names their origin, or read; what was read keeps the limits of
// its records, and comes back the same when it is written and read again. No more than one line is ever held.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "collect/wire.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

std::string without_newline(const std::string& line) {
  require(line.ends_with('\n') && line.find('\n') == line.size() - 1);
  return line.substr(0, line.size() - 1);
}

void read_line(std::string_view line, int which) {
  using namespace molen::collect;
  if (which == 0) {
    const Hello hello = parse_hello(line, "fuzz");
    const Hello again = parse_hello(without_newline(hello_line(hello)), "again");
    require(again.node == hello.node && again.token == hello.token && is_name(hello.node));
  } else if (which == 1) {
    const Batch batch = parse_batch(line, "n1", "fuzz");
    require(wrong_with(batch).empty());
    // Numbers and escapes may be longer when molen writes them; then the batch is refused before it is sent.
    std::string written;
    try {
      written = batch_line(batch);
    } catch (const molen::Error&) {
      return;
    }
    require(parse_batch(without_newline(written), "n1", "again") == batch);
  } else {
    const Answer answer = parse_answer(line, "fuzz");
    require(is_text(answer.reason) && answer.ack >= 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int which = data[0] % 3;
  const std::size_t piece = 1 + data[0] / 3;
  collect::LineBuffer buffer(which == 0 ? collect::kMostHelloBytes : collect::kMostLineBytes);
  for (std::size_t at = 0; at < bytes.size() && !buffer.too_long();) {
    const std::size_t taken = std::min({piece, buffer.room(), bytes.size() - at});
    require(taken > 0);
    buffer.append(bytes.substr(at, taken));
    at += taken;
    require(buffer.held() <= collect::kMostLineBytes);
    while (const auto line = buffer.next()) {
      try {
        read_line(*line, which);
      } catch (const UsageError& error) {
        require(std::string(error.what()).starts_with("fuzz"));
      }
    }
  }
  return 0;
}
