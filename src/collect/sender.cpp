#include "collect/sender.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"
#include "collect/token.h"

namespace molen::collect {

Sender::Sender(SenderOptions options, Spool& spool)
    : options_(std::move(options)), spool_(spool), random_(std::random_device{}()) {}

bool Sender::run(double until_s, int stop, Until until) {
  // Who wants it empty is about to end, and cannot wait for the end of a pause.
  if (until == Until::kEmpty && state_ == State::kPausing) change_by_s_ = 0;
  for (;;) {
    if (until == Until::kEmpty && spool_.empty()) return false;
    const double now_s = now().value;
    if (state_ == State::kPausing && now_s >= change_by_s_) look();
    if (state_ == State::kLooking && lookup_->done()) connect(std::exchange(lookup_, nullptr)->take());
    if (state_ == State::kLooking && now_s >= change_by_s_)
      lost(fmt::format("{}: no name service has answered within {:g} s", options_.to.text(), options_.answer_s));
    if ((state_ == State::kConnecting || state_ == State::kGreeting) && now_s >= change_by_s_)
      lost(fmt::format("no answer within {:g} s", options_.answer_s));
    if (state_ == State::kOpen) queue_lines();
    std::array<pollfd, 3> polled{pollfd{stop, POLLIN, 0}, pollfd{socket_ ? socket_->get() : -1, POLLIN, 0},
                                 pollfd{state_ == State::kLooking ? lookup_->descriptor() : -1, POLLIN, 0}};
    if (state_ == State::kConnecting || !outgoing_.empty()) polled[1].events |= POLLOUT;
    const int found = ::poll(polled.data(), polled.size(), wait_ms(until_s));
    if (found < 0 && errno != EINTR) throw Error("poll: {}", std::strerror(errno));
    if (found > 0 && polled[1].revents != 0) {
      if (state_ == State::kConnecting) connected();
      if (socket_ && state_ != State::kConnecting && (polled[1].revents & POLLOUT) != 0) send();
      if (socket_ && (polled[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) receive();
    }
    if (found > 0 && polled[0].revents != 0) return true;
    if (now().value >= until_s) return false;
  }
}

int Sender::wait_ms(double until_s) const {
  const double until = state_ == State::kOpen ? until_s : std::min(until_s, change_by_s_);
  // Rounded up, so that the time has come when the wait is over.
  return static_cast<int>(std::clamp(std::ceil((until - now().value) * 1000.0), 0.0, 60'000.0));
}

void Sender::look() {
  if (!options_.to.path.empty()) return connect(options_.find(options_.to));
  // One lookup at a time: the one that took too long is still under way, and may yet have an answer.
  if (!lookup_) lookup_ = std::make_unique<Lookup>(options_.to, options_.find);
  state_ = State::kLooking;
  change_by_s_ = now().value + options_.answer_s;
}

void Sender::connect(const Result<std::vector<Endpoint>>& found) {
  if (!found) return lost(found.reason());
  const auto& places = found.value();
  // A host with several addresses gets another one with each attempt.
  const Result<int> begun = begin_connection(options_.to, places[attempts_++ % places.size()]);
  if (!begun) return lost(begun.reason());
  socket_ = std::make_unique<Descriptor>(begun.value());
  incoming_ = LineBuffer(kMostLineBytes);
  outgoing_.clear();
  ended_ = false;
  state_ = State::kConnecting;
  change_by_s_ = now().value + options_.answer_s;
}

void Sender::connected() {
  if (const std::string why = connection_error(socket_->get()); !why.empty())
    return lost(fmt::format("{}: {}", options_.to.text(), why));
  if (options_.to.path.empty()) keep_alive(socket_->get());
  if (options_.on_limits && options_.token.empty())
    if (const std::string why = foreign_listener(socket_->get()); !why.empty())
      return lost(fmt::format("{}: {}, so it may not limit this node", options_.to.text(), why), true);
  outgoing_ = hello_line({options_.node, hello_proof(options_.token, options_.node), protocol()});
  state_ = State::kGreeting;
  change_by_s_ = now().value + options_.answer_s;
}

void Sender::queue_lines() {
  next_ = std::max(next_, spool_.begin());
  while (!ended_ && next_ < spool_.end() && next_ < spool_.begin() + options_.ahead &&
         outgoing_.size() < kMostLineBytes)
    outgoing_ += spool_.line(next_++);
  if (!ended_ && question_ && !asked_ && outgoing_.size() < kMostLineBytes) {
    asked_ = Asked{*std::exchange(question_, std::nullopt), new_session(), now().value};
    outgoing_ += ask_line(asked_->limits, asked_->nonce);
  }
}

int Sender::protocol() const {
  return options_.on_limits ? kLimitProtocol : kProtocol;
}

void Sender::ask(Limitable limits) {
  MOLEN_CHECK(options_.on_limits != nullptr, "a question whose answer nobody takes");
  question_ = std::move(limits);
}

void Sender::send() {
  const ssize_t sent = ::send(socket_->get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
  if (sent > 0) outgoing_.erase(0, static_cast<std::size_t>(sent));
  if (sent >= 0 || errno == EAGAIN || errno == EINTR) return;
  // A collector that refuses closes the connection; its reason may still be there to read. Nothing more is sent on this
  // connection: the lines that were cut off here must not be missing before later ones.
  outgoing_.clear();
  ended_ = true;
  ::shutdown(socket_->get(), SHUT_WR);
}

void Sender::receive() {
  std::array<char, 4096> bytes;
  const ssize_t got = ::recv(socket_->get(), bytes.data(), std::min(bytes.size(), incoming_.room()), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got < 0) return lost(fmt::format("{}: {}", options_.to.text(), std::strerror(errno)));
  if (got == 0) return lost(fmt::format("{}: the collector closed the connection", options_.to.text()));
  incoming_.append({bytes.data(), static_cast<std::size_t>(got)});
  try {
    while (socket_) {
      const auto line = incoming_.next();
      if (!line) break;
      take(parse_answer(*line, options_.to.text()));
    }
    if (socket_ && incoming_.too_long()) lost(fmt::format("{}: its answer has no end", options_.to.text()), true);
  } catch (const UsageError& error) {
    lost(error.what(), true);
  }
}

void Sender::take(const Answer& answer) {
  if (answer.kind == Answer::Kind::kRefused)
    return lost(fmt::format("{} refuses: {}", options_.to.text(), answer.reason), true);
  if (answer.kind == Answer::Kind::kStored) {
    // An answer to what was never sent must not empty the spool.
    if (state_ != State::kOpen || spool_.acknowledges(next_, answer.session, answer.ack))
      return lost(fmt::format("{}: it acknowledges what was not sent", options_.to.text()), true);
    return spool_.acknowledge(answer.session, answer.ack);
  }
  if (answer.kind == Answer::Kind::kLimits) {
    return take_limits(answer);
  }
  if (state_ != State::kGreeting) return;
  if (answer.protocol != protocol())
    return lost(fmt::format("{}: it welcomes protocol {} and not {}", options_.to.text(), answer.protocol, protocol()),
                true);
  state_ = State::kOpen;
  ++connections_;
  next_ = spool_.begin();
  pause_s_ = 0;
  if (trouble_.empty()) return;
  options_.say(
      fmt::format("{} takes records again, after {}", options_.to.text(), human(now() - Seconds(trouble_since_s_))));
  trouble_.clear();
}

void Sender::take_limits(const Answer& answer) {
  const auto asked = std::exchange(asked_, std::nullopt);
  if (!asked) return lost(fmt::format("{}: it sends limits that were not asked for", options_.to.text()), true);
  // Whoever took the collector's address must not limit this node, nor keep its records from the collector.
  if (!options_.token.empty() &&
      !same_token(answer.proof, limits_proof(options_.token, options_.node, asked->nonce, answer.order)))
    return lost(fmt::format("{}: its limits do not prove that it has the secret, so they are not obeyed: start the "
                            "collector with the same --token-file",
                            options_.to.text()),
                true);
  // The collector counted from when it answered, which was after the question; the answer may have been under way
  // since.
  LimitOrder order = answer.order;
  order.seconds -= now().value - asked->since_s;
  if (order.seconds <= 0 && !order.limits.empty()) {
    options_.say(fmt::format("{}: limits of this node came when their time was over", options_.to.text()));
    return;
  }
  order.seconds = std::max(0.0, order.seconds);
  options_.on_limits(order);
}

void Sender::lost(const std::string& reason, bool refused) {
  socket_.reset();
  outgoing_.clear();
  // Nobody knows whether the collector has read it, so it is asked again, unless a newer one has taken its place.
  if (asked_ && !question_) question_ = std::move(asked_->limits);
  asked_.reset();
  state_ = State::kPausing;
  pause_s_ =
      refused ? options_.retry_last_s : std::clamp(2.0 * pause_s_, options_.retry_first_s, options_.retry_last_s);
  // Many nodes lose a collector at once; chance keeps them from coming back at once.
  change_by_s_ = now().value + pause_s_ * std::uniform_real_distribution<double>(0.5, 1.5)(random_);
  if (trouble_.empty()) trouble_since_s_ = now().value;
  if (trouble_ != reason)
    options_.say(fmt::format("{}; records are kept in {} meanwhile", reason, spool_.file().string()));
  trouble_ = reason;
}

}  // namespace molen::collect
