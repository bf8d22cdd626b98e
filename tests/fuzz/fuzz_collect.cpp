// Bytes that reach the collector, or a node from the collector. The first byte says which, and how the rest is cut
// into pieces. Lines are refused with a UsageError that names their origin, or read; what was read keeps the limits of
// its records, and comes back the same when it is written and read again. No more than one line is ever held. The bytes
// also reach a connection of the collector, which answers in lines that a node can read, and gives batches of one node
// only after a hello.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "collect/connection.h"
#include "collect/job_labels.h"
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
    require(again.node == hello.node && again.proof == hello.proof && is_name(hello.node));
  } else if (which == 1) {
    const NodeLine said = parse_node_line(line, "n1", kLimitProtocol, "fuzz");
    if (const auto* ask = std::get_if<Ask>(&said)) {
      require(ask->limits.settings.size() <= kMostLimits && is_text(ask->limits.problem) && is_name(ask->nonce));
      const NodeLine again =
          parse_node_line(without_newline(ask_line(ask->limits, ask->nonce)), "n1", kLimitProtocol, "again");
      require(std::get<Ask>(again) == *ask);
      return;
    }
    const Batch& batch = std::get<Batch>(said);
    require(wrong_with(batch).empty());
    for (const Event& event : batch.events)
      if (const auto labels = job_labels_of(event))
        require(job_labels_event(event.time_s, *labels) == event || event.count != 0);
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
    require(answer.order.limits.size() <= kMostLimits && answer.order.seconds <= kLongestLimitS);
  }
}

// The answers of a connection are whole lines, and nothing follows a refusal.
void check_answers(const std::string& outgoing, bool cut) {
  bool refused = false;
  for (std::size_t at = 0; at < outgoing.size();) {
    const std::size_t end = outgoing.find('\n', at);
    require(end != std::string::npos && !refused);
    const auto answer = molen::collect::parse_answer(outgoing.substr(at, end - at), "the collector");
    refused = answer.kind == molen::collect::Answer::Kind::kRefused;
    at = end + 1;
  }
  require(refused == cut);
}

void run_connection(std::string_view bytes, std::size_t piece) {
  using namespace molen::collect;
  static const ConnectionLimits limits;
  static const std::string token = "secret";
  Connection connection("fuzz", token, limits, 0);
  std::size_t outstanding = 0;
  double now_s = 0;
  for (std::size_t at = 0; at < bytes.size() && !connection.is_over(); now_s += 1.0) {
    const std::size_t taken = std::min({piece, connection.room(), bytes.size() - at});
    connection.receive(bytes.substr(at, taken), now_s);
    at += taken;
    while (const auto batch = connection.next_batch(now_s)) {
      require(connection.welcomed() && wrong_with(*batch).empty() && ++outstanding <= limits.outstanding);
      if (batch->seq % 3 != 0) continue;  // the others stay outstanding until no more are read
      connection.stored(batch->session, batch->seq, now_s);
      --outstanding;
    }
    for (std::size_t left = connection.take_questions().size(); left > 0; --left) connection.answered({}, now_s);
    connection.check_time(now_s, connection.room() > 0);
    if (taken == 0 && outstanding == limits.outstanding) break;
  }
  check_answers(connection.outgoing(), connection.is_cut());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int which = data[0] % 4;
  const std::size_t piece = 1 + data[0] / 4;
  if (which == 3) {
    run_connection(bytes, piece);
    return 0;
  }
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
