// Many nodes in one thread, each with a connection of its own. A node sends its batches in order, keeps what is not
// acknowledged, and connects again when it loses the collector, as Sender does.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "collect/address.h"
#include "collect/test_records.h"
#include "collect/wire.h"

namespace molen::collect {

constexpr std::int64_t kInFlight = 1;  // batches of a node that are not acknowledged

class SimulatedNodes {
 public:
  // Each node has batches 1 to `batches`, and sends those up to `permitted`; see `permit`.
  SimulatedNodes(Address to, int nodes, std::int64_t batches, std::int64_t permitted)
      : to_(std::move(to)), batches_(batches), permitted_(permitted), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    for (int i = 0; i < nodes; ++i) nodes_.push_back(std::make_unique<Node>(fmt::format("n{:04}", i)));
  }

  // Lets each node send its batches up to this one. Any thread may call it.
  void permit(std::int64_t batches) { permitted_ = batches; }

  // Runs until everything is acknowledged; returns false if that takes longer than `within_s`.
  bool run(double within_s) {
    const double by_s = now().value + within_s;
    std::int64_t known = permitted_;
    while (done_ < nodes_.size()) {
      if (now().value > by_s) return false;
      if (const std::int64_t permitted = permitted_; permitted != known) {
        known = permitted;
        for (std::size_t i = 0; i < nodes_.size(); ++i)
          if (nodes_[i]->socket) watch(i, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
      }
      for (std::size_t i = 0; i < nodes_.size(); ++i)
        if (!nodes_[i]->socket && nodes_[i]->acked < batches_) connect(i);
      std::array<epoll_event, 256> events;
      const int found = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 50);
      for (int e = 0; e < found; ++e) handle(events[static_cast<std::size_t>(e)]);
    }
    return true;
  }
  std::int64_t connections() const { return connections_; }

 private:
  struct Node {
    explicit Node(std::string n) : name(std::move(n)) {}
    std::string name, outgoing;
    std::unique_ptr<Descriptor> socket;
    LineBuffer incoming{kMostLineBytes};
    std::int64_t sent = 0, acked = 0;
    bool welcomed = false;
  };

  void connect(std::size_t i) {
    Node& node = *nodes_[i];
    const auto begun = begin_connection(to_, find_endpoints(to_).value().front());
    if (!begun) return;
    node.socket = std::make_unique<Descriptor>(begun.value());
    node.incoming = LineBuffer(kMostLineBytes);
    node.outgoing = hello_line({node.name, ""});
    node.sent = node.acked;
    node.welcomed = false;
    ++connections_;
    watch(i, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
  }
  void watch(std::size_t i, int operation, std::uint32_t events) {
    epoll_event wanted{};
    wanted.events = events;
    wanted.data.u64 = i;
    ::epoll_ctl(epoll_.get(), operation, nodes_[i]->socket->get(), &wanted);
  }
  void handle(const epoll_event& event) {
    Node& node = *nodes_[event.data.u64];
    if (!node.socket) return;
    if ((event.events & EPOLLIN) != 0 && !receive(node)) return node.socket.reset();
    if ((event.events & (EPOLLERR | EPOLLHUP)) != 0) return node.socket.reset();
    const std::int64_t last = std::min({batches_, permitted_.load(), node.acked + kInFlight});
    while (node.welcomed && node.sent < last && node.outgoing.size() < 8192) {
      ++node.sent;
      node.outgoing += batch_line(test_batch(node.name, "s", node.sent));
    }
    if (!node.outgoing.empty()) {
      const ssize_t sent = ::send(node.socket->get(), node.outgoing.data(), node.outgoing.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != ENOTCONN) return node.socket.reset();
      if (sent > 0) node.outgoing.erase(0, static_cast<std::size_t>(sent));
    }
    watch(event.data.u64, EPOLL_CTL_MOD, EPOLLIN | (node.outgoing.empty() ? 0u : static_cast<unsigned>(EPOLLOUT)));
  }
  bool receive(Node& node) {
    std::array<char, 4096> bytes;
    const ssize_t got = ::recv(node.socket->get(), bytes.data(), bytes.size(), 0);
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    node.incoming.append({bytes.data(), static_cast<std::size_t>(got)});
    while (const auto line = node.incoming.next()) {
      const Answer answer = parse_answer(*line, "the collector");
      if (answer.kind == Answer::Kind::kRefused) throw Error("a node was refused: {}", answer.reason);
      node.welcomed = true;
      if (answer.kind != Answer::Kind::kStored) continue;
      if (answer.ack <= node.acked || answer.ack > node.sent) throw Error("batch {} is acknowledged", answer.ack);
      node.acked = answer.ack;
      done_ += node.acked == batches_;
    }
    return true;
  }

  const Address to_;
  const std::int64_t batches_;
  std::atomic<std::int64_t> permitted_;
  Descriptor epoll_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::size_t done_ = 0;
  std::int64_t connections_ = 0;
};

}  // namespace molen::collect
