// Bytes that reach the energy daemon, a job from the daemon, or a file of grants. The first byte says which, and how
// the rest is cut into pieces. Lines are refused with a UsageError that names their origin, or read; what was read
// comes back the same when it is written and read again. No more than one line is ever held.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "collect/record.h"
#include "collect/wire.h"
#include "daemon/permission.h"
#include "daemon/wire.h"

namespace {

using namespace molen;

void require(bool condition) {
  if (!condition) std::abort();
}

std::string without_newline(const std::string& line) {
  require(line.ends_with('\n') && line.find('\n') == line.size() - 1);
  return line.substr(0, line.size() - 1);
}

void read_line(std::string_view line, bool request) {
  using namespace molen::daemon;
  if (request) {
    const Request one = parse_request(line, "fuzz");
    require(one.settings.size() <= kMostSettings && one.value >= 0);
    for (const std::string& id : one.settings) require(collect::is_name(id));
    require(one.limits.size() <= kMostSettings && one.seconds >= 0 && one.seconds <= collect::kLongestLimitS);
    require(parse_request(without_newline(request_line(one)), "again") == one);
    return;
  }
  const Answer answer = parse_answer(line, "fuzz");
  require(collect::is_text(answer.reason));
  for (const SettingEntry& s : answer.listing.settings)
    require(s.least >= 1 && s.least <= s.most && std::is_sorted(s.values.begin(), s.values.end()));
  for (const ReadingEntry& r : answer.readings) require(r.reading ? r.reading->total.value >= 0 : !r.reason.empty());
  // Numbers and escapes may be longer when molen writes them; then the answer is not sent.
  std::string written;
  try {
    written = answer_line(answer);
  } catch (const Error&) {
    return;
  }
  require(answer_line(parse_answer(without_newline(written), "again")) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int which = data[0] % 3;
  const std::size_t piece = 1 + data[0] / 3;
  if (which == 2) {
    try {
      for (const daemon::Grant& grant : daemon::parse_grants(bytes, "fuzz"))
        require(!grant.devices.empty() && grant.uid != UINT32_MAX);
    } catch (const UsageError& error) {
      require(std::string(error.what()).starts_with("fuzz"));
    }
    return 0;
  }
  const std::size_t most = which == 0 ? daemon::kMostRequestBytes : daemon::kMostAnswerBytes;
  collect::LineBuffer buffer(most);
  for (std::size_t at = 0; at < bytes.size() && !buffer.too_long();) {
    const std::size_t taken = std::min({piece, buffer.room(), bytes.size() - at});
    require(taken > 0);
    buffer.append(bytes.substr(at, taken));
    at += taken;
    require(buffer.held() <= most);
    while (const auto line = buffer.next()) {
      try {
        read_line(*line, which == 0);
      } catch (const UsageError& error) {
        require(std::string(error.what()).starts_with("fuzz"));
      }
    }
  }
  return 0;
}
