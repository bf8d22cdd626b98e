// A collector in a thread of the test, and a node that the test plays.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collect/server.h"
#include "collect/test_database.h"
#include "collect/token.h"

namespace molen::collect {

// Messages of both threads of a collector.
class Heard {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    texts_.push_back(text);
  }
  std::size_t count(const std::string& part) {
    const std::lock_guard lock(mutex_);
    std::size_t n = 0;
    for (const std::string& t : texts_) n += t.find(part) != std::string::npos;
    return n;
  }
  std::string all() {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const std::string& t : texts_) text += t + "\n";
    return text;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

class RunningServer {
 public:
  RunningServer(std::unique_ptr<Database> database, ServerOptions options = {}) : stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (options.listen.empty()) options.listen = {{"127.0.0.1", 0, ""}};
    options.say = [this](const std::string& text) { heard.add(text); };
    options.writer.retry_first_s = 0.01;
    options.writer.retry_last_s = 0.05;
    server_ = std::make_unique<Server>(std::move(database), std::move(options));
    thread_ = std::thread([this] { server_->run(stop_.get()); });
  }
  ~RunningServer() { stop(); }
  ServerTotals stop() {
    if (thread_.joinable()) {
      ::eventfd_write(stop_.get(), 1);
      thread_.join();
    }
    return server_->totals();
  }
  Address address() const { return server_->addresses().front(); }

  Heard heard;

 private:
  Descriptor stop_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

// A connection whose calls wait, for 20 s at most.
class TestNode {
 public:
  explicit TestNode(const Address& address)
      : socket_(begin_connection(address, find_endpoints(address).value().front()).value()) {
    wait(POLLOUT);
  }

  // Returns false when the collector has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN && wait(POLLOUT)) continue;
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // Sends what the collector takes now; returns the bytes.
  std::size_t send_some(std::string_view bytes) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return sent < 0 ? 0 : static_cast<std::size_t>(sent);
  }
  // Returns the next line without its newline; "closed" at the end, "nothing" if none comes.
  std::string line(int wait_ms = 20'000) {
    for (;;) {
      if (const std::size_t end = read_.find('\n'); end != std::string::npos) {
        const std::string line = read_.substr(0, end);
        read_.erase(0, end + 1);
        return line;
      }
      if (!wait(POLLIN, wait_ms)) return "nothing";
      char bytes[4096];
      const ssize_t got = ::recv(socket_.get(), bytes, sizeof bytes, 0);
      if (got < 0 && errno == EAGAIN) continue;
      if (got <= 0) return "closed";
      read_.append(bytes, static_cast<std::size_t>(got));
    }
  }
  Answer answer() { return parse_answer(line(), "the collector"); }
  void hello(const std::string& node, const std::string& token = "") {
    EXPECT_TRUE(send(hello_line({node, hello_proof(token, node)})));
    EXPECT_EQ(line(), R"({"welcome":1})");
  }

 private:
  bool wait(short what, int wait_ms = 20'000) {
    pollfd poll{socket_.get(), what, 0};
    return ::poll(&poll, 1, wait_ms) == 1;
  }
  Descriptor socket_;
  std::string read_;
};

}  // namespace molen::collect
