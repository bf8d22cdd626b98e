#include "collect/connection.h"

#include <utility>

#include "base/error.h"
#include "collect/token.h"

namespace molen::collect {

Connection::Connection(std::string peer, const std::string& token, const ConnectionLimits& limits, double now_s)
    : peer_(std::move(peer)), token_(token), limits_(limits), line_since_s_(now_s), heard_s_(now_s) {}

std::string Connection::who() const {
  return node_.empty() ? peer_ : fmt::format("{} ({})", node_, peer_);
}

std::size_t Connection::room() const {
  if (cut_) return kMostLineBytes;  // to be thrown away, so that the node gets to read the reason
  // A node that takes no answers must not make them pile up.
  if (outstanding_ >= limits_.outstanding || outgoing_.size() >= kMostLineBytes) return 0;
  return buffer_.room();
}

void Connection::receive(std::string_view bytes, double now_s) {
  if (cut_) return;
  heard_s_ = now_s;
  if (buffer_.empty()) line_since_s_ = now_s;
  buffer_.append(bytes);
  if (!buffer_.too_long()) return;
  const std::size_t most = node_.empty() ? kMostHelloBytes : kMostLineBytes;
  cut(fmt::format("a line has more than {} bytes", most), now_s);
}

std::optional<Batch> Connection::next_batch(double now_s) {
  while (!cut_ && outstanding_ < limits_.outstanding) {
    const auto line = buffer_.next();
    if (!line) return std::nullopt;
    line_since_s_ = now_s;
    try {
      if (node_.empty()) {
        greet(*line, now_s);
        continue;
      }
      NodeLine said = parse_node_line(*line, node_, protocol_, "the line");
      if (auto* question = std::get_if<Ask>(&said)) {
        questions_.push_back(std::move(question->limits));
        nonces_.push_back(std::move(question->nonce));
        ++outstanding_;
        continue;
      }
      Batch& batch = std::get<Batch>(said);
      if (batch.session == session_ && batch.seq <= seq_)
        throw UsageError("batch {} came after batch {} of its session: numbers must increase", batch.seq, seq_);
      session_ = batch.session;
      seq_ = batch.seq;
      ++outstanding_;
      return std::move(batch);
    } catch (const UsageError& error) {
      cut(error.what(), now_s);
    }
  }
  return std::nullopt;
}

void Connection::greet(std::string_view line, double now_s) {
  const Hello hello = parse_hello(line, "the hello");
  if (!token_.empty() && !same_token(hello.proof, hello_proof(token_, hello.node)))
    throw UsageError("{}", hello.proof.empty() ? "this collector needs a token: name its file with --token-file"
                                               : "this is not the token of this collector");
  node_ = hello.node;
  protocol_ = hello.protocol;
  buffer_.set_most(kMostLineBytes);
  answer(welcome_line(protocol_), now_s);
}

void Connection::answer(const std::string& line, double now_s) {
  if (outgoing_.empty()) answer_since_s_ = now_s;
  outgoing_ += line;
}

void Connection::stored(const std::string& session, std::int64_t seq, double now_s) {
  MOLEN_CHECK(outstanding_ > 0, "a batch that was not outstanding is stored");
  --outstanding_;
  if (!cut_) answer(stored_line(session, seq), now_s);
}

void Connection::answered(const LimitOrder& order, double now_s) {
  MOLEN_CHECK(outstanding_ > 0, "a question that was not outstanding is answered");
  --outstanding_;
  MOLEN_CHECK(!nonces_.empty(), "an answer without its question");
  if (!cut_) answer(limits_line(order, limits_proof(token_, node_, nonces_.front(), order)), now_s);
  nonces_.pop_front();
}

void Connection::cut(const std::string& reason, double now_s) {
  if (cut_) return;
  reason_ = reason;
  cut_ = true;
  cut_s_ = now_s;
  buffer_ = LineBuffer(kMostLineBytes);
  answer(refused_line(reason), now_s);
}

void Connection::check_time(double now_s, bool reading) {
  if (cut_) {
    over_ = now_s - cut_s_ > limits_.goodbye_s;
    return;
  }
  if (!outgoing_.empty() && now_s - answer_since_s_ > limits_.answer_s) {
    cut(fmt::format("the node took no answer for {:g} s", limits_.answer_s), now_s);
    return;
  }
  if (!reading) {
    line_since_s_ = heard_s_ = now_s;
    return;
  }
  if (node_.empty() && now_s - line_since_s_ > limits_.hello_s)
    cut(fmt::format("no hello within {:g} s", limits_.hello_s), now_s);
  else if (!buffer_.empty() && now_s - line_since_s_ > limits_.line_s)
    cut(fmt::format("a line took more than {:g} s", limits_.line_s), now_s);
  else if (now_s - heard_s_ > limits_.idle_s)
    cut(fmt::format("nothing was sent for {:g} s", limits_.idle_s), now_s);
}

void Connection::sent(std::size_t bytes, double now_s) {
  outgoing_.erase(0, bytes);
  answer_since_s_ = now_s;
}

}  // namespace molen::collect
