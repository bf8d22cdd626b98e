// The collector's side of one node's connection: bytes in, batches out, answers back. It has no socket, so that
// tests and the fuzzer can be the network.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collect/wire.h"

namespace molen::collect {

struct ConnectionLimits {
  double hello_s = 10;           // from the connection to its hello
  double line_s = 30;            // from the first byte of a line to its last
  double idle_s = 3600;          // without a byte; the node connects again when it has something to send
  double answer_s = 30;          // for the node to take an answer
  double goodbye_s = 2;          // for the node to read why it was refused
  std::size_t outstanding = 16;  // batches that are not stored yet; no more are read until some are
};

class Connection {
 public:
  // `token`: the secret that the hello must prove; empty for none. `peer`: the other end, for messages. Times are
  // seconds of a steady clock.
  Connection(std::string peer, const std::string& token, const ConnectionLimits& limits, double now_s);

  // Returns how many bytes `receive` may get now; 0 while the node must wait.
  std::size_t room() const;
  void receive(std::string_view bytes, double now_s);
  // Returns the next batch that has arrived, if any, and if the number of outstanding ones permits. A line that is not
  // in order cuts the connection. Questions for limits that arrive before it are kept for `take_questions`; each is
  // outstanding until it is answered.
  std::optional<Batch> next_batch(double now_s);
  std::vector<Limitable> take_questions() { return std::exchange(questions_, {}); }
  // Answers the first question that is not answered yet.
  void answered(const LimitOrder& order, double now_s);
  // A batch from `next_batch` is stored.
  void stored(const std::string& session, std::int64_t seq, double now_s);

  // Refuses the node: what it sent and was not yet a batch is dropped, and it gets the reason.
  void cut(const std::string& reason, double now_s);
  // Cuts a connection that takes too long. `reading`: whether its bytes were read lately; a node that had to wait is
  // not late.
  void check_time(double now_s, bool reading);

  // The answers that are to be sent; `sent` says how many bytes of them were.
  const std::string& outgoing() const { return outgoing_; }
  void sent(std::size_t bytes, double now_s);

  bool is_cut() const { return cut_; }
  // Nothing is left to do: the connection is to be closed.
  bool is_over() const { return over_; }
  const std::string& reason() const { return reason_; }  // of the cut
  // Returns the node and the other end, for messages.
  std::string who() const;
  bool welcomed() const { return !node_.empty(); }
  const std::string& node() const { return node_; }  // empty before the welcome

 private:
  void greet(std::string_view line, double now_s);
  void answer(const std::string& line, double now_s);

  std::string peer_, node_;
  const std::string& token_;
  const ConnectionLimits& limits_;
  LineBuffer buffer_{kMostHelloBytes};
  int protocol_ = kProtocol;
  std::vector<Limitable> questions_;
  std::deque<std::string> nonces_;  // of the questions that are not answered, in their order
  std::string outgoing_, reason_;
  std::string session_;  // of the last batch, with its number
  std::int64_t seq_ = 0;
  std::size_t outstanding_ = 0;
  double line_since_s_, heard_s_, answer_since_s_ = 0, cut_s_ = 0;
  bool cut_ = false, over_ = false;
};

}  // namespace molen::collect
