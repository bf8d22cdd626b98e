// The lines between a node and the collector (docs/formats/collect.md): one JSON object per line, each line with at
// most kMostLineBytes. Protocol 2 is protocol 1 with questions for power limits. A node says hello and then sends
// batches; the collector answers. Both sides parse lines from outside, so each function refuses with UsageError what it
// does not know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "collect/limits.h"
#include "collect/record.h"

namespace molen::collect {

inline constexpr int kProtocol = 1, kLimitProtocol = 2;
inline constexpr std::size_t kMostLineBytes = 64 * 1024;  // with its newline
inline constexpr std::size_t kMostHelloBytes = 4 * 1024;  // of the first line: its sender is not known yet
inline constexpr std::size_t kMostTokenBytes = 1024;
inline constexpr std::size_t kProofBytes = 64;

struct Hello {
  std::string node;
  std::string proof;  // of the secret (collect/token.h); "" for none
  int protocol = kProtocol;
};

struct Answer {
  enum class Kind { kWelcome, kStored, kLimits, kRefused };
  Kind kind = Kind::kWelcome;
  int protocol = kProtocol;  // of a welcome: that of the hello
  std::string session;       // of a stored batch
  std::int64_t ack = 0;      // the number of a stored batch: this one and all earlier ones of the session are stored
  LimitOrder order;          // kLimits: what the node is to keep
  std::string proof;         // kLimits: that the collector has the secret; "" for none
  std::string reason;        // of a refusal, after which the collector closes the connection
};

// Each returns a line with its newline. `batch_line` leaves out the node, which the hello names; it throws Error if the
// batch breaks the limits of record.h, or if the line is longer than kMostLineBytes.
std::string hello_line(const Hello& hello);
std::string batch_line(const Batch& batch);
std::string welcome_line(int protocol = kProtocol);
std::string stored_line(const std::string& session, std::int64_t seq);
std::string refused_line(std::string_view reason);
// A node asks for its limits with the settings that it can limit, and gets an answer. Protocol 2 only.
std::string ask_line(const Limitable& limits, const std::string& nonce);
std::string limits_line(const LimitOrder& order, const std::string& proof = "");

// Each parses a line without its newline. Throws UsageError, which begins with `origin`, for a line that is no JSON
// object of the form, has a key that is not known, or breaks a limit.
Hello parse_hello(std::string_view line, const std::string& origin);
Batch parse_batch(std::string_view line, const std::string& node, const std::string& origin);
// A line of a node after its hello of the protocol.
struct Ask {
  Limitable limits;
  std::string nonce;  // a name that the node uses once, so that an answer belongs to its question
  bool operator==(const Ask&) const = default;
};
using NodeLine = std::variant<Batch, Ask>;
NodeLine parse_node_line(std::string_view line, const std::string& node, int protocol, const std::string& origin);
Answer parse_answer(std::string_view line, const std::string& origin);

// Cuts bytes into lines and holds at most one line's worth of them.
class LineBuffer {
 public:
  // `most`: bytes of the longest line, with its newline.
  explicit LineBuffer(std::size_t most) : most_(most) {}

  void set_most(std::size_t most) { most_ = most; }
  // Returns how many bytes `append` may add now.
  std::size_t room() const { return held() < most_ ? most_ - held() : 0; }
  void append(std::string_view bytes);
  // Returns the next whole line without its newline; nothing when there is none yet. The text is valid until the next
  // call of `append`.
  std::optional<std::string_view> next();
  bool has_line() const { return bytes_.find('\n', begin_) != std::string::npos; }
  // A line began that is longer than allowed, so it can never be complete.
  bool too_long() const { return held() >= most_ && !has_line(); }
  std::size_t held() const { return bytes_.size() - begin_; }
  bool empty() const { return held() == 0; }

 private:
  std::size_t most_;
  std::string bytes_;
  std::size_t begin_ = 0;  // where the first line that was not returned begins
};

}  // namespace molen::collect
