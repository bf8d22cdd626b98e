#include "collect/sender.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "collect/test_records.h"
#include "collect/test_server.h"

namespace molen::collect {
namespace {

class Sending : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  SenderOptions options(const Address& to) {
    SenderOptions o;
    o.to = to;
    o.node = "n";
    o.retry_first_s = 0.02;
    o.retry_last_s = 0.1;
    o.say = [this](const std::string& text) { heard_.add(text); };
    return o;
  }
  // A collector at the same address each time.
  std::unique_ptr<RunningServer> collector(ServerOptions options = {}) {
    options.listen = {{"", 0, (folder_ / "socket").string()}};
    return std::make_unique<RunningServer>(std::make_unique<FakeDatabase>(store_), std::move(options));
  }
  Address address() const { return {"", 0, (folder_ / "socket").string()}; }
  static void add(Spool& spool, int count) {
    for (int i = 0; i < count; ++i) spool.add(test_batch("", "", 1));
  }
  // The numbers that were stored are 1 to `last`, each once.
  void expect_all(std::int64_t last) {
    std::vector<std::int64_t> expected(static_cast<std::size_t>(last));
    std::iota(expected.begin(), expected.end(), 1);
    EXPECT_EQ(store_->numbers("n"), expected);
  }

  const fs::path folder_ = fs::temp_directory_path() / fmt::format("molen_sender_{}", ::getpid());
  std::shared_ptr<FakeStore> store_ = std::make_shared<FakeStore>();
  Heard heard_;
};

// A name service that does not answer: nothing waits for it, and its answer is taken when it comes.
TEST_F(Sending, DoesNotWaitForANameService) {
  const auto server = collector();
  struct Service {
    std::atomic<bool> answers{false};
    std::atomic<int> asked{0}, ended{0};
  };
  const auto service = std::make_shared<Service>();
  Spool spool(folder_ / "spool", "n");
  SenderOptions o = options({"collector", 4722, ""});
  o.answer_s = 0.1;
  o.find = [service, here = address()](const Address&) {
    ++service->asked;
    while (!service->answers) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    auto found = find_endpoints(here);
    ++service->ended;
    return found;
  };
  Sender sender(o, spool);
  add(spool, 3);
  double start_s = now().value;
  EXPECT_FALSE(sender.run(start_s + 0.5, -1, Sender::Until::kEmpty));
  EXPECT_LT(now().value - start_s, 10) << "the limit of the caller holds";
  EXPECT_NE(heard_.all().find("collector:4722: no name service has answered within 0.1 s"), std::string::npos)
      << heard_.all();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[1]);
  start_s = now().value;
  EXPECT_TRUE(sender.run(start_s + 20, ends[0])) << "a stop is seen at once";
  EXPECT_LT(now().value - start_s, 10);
  ::close(ends[0]);
  EXPECT_EQ(service->asked, 1) << "no second lookup beside the one that lasts";
  EXPECT_EQ(service->ended, 0);
  service->answers = true;
  sender.run(now().value + 20, -1, Sender::Until::kEmpty);
  EXPECT_TRUE(spool.empty());
  expect_all(3);
  // Who ends meanwhile does not wait either.
  service->answers = false;
  {
    Sender other(o, spool);
    add(spool, 1);
    other.run(now().value + 0.2, -1);
  }
  service->answers = true;
  const double until_s = now().value + 20;
  while (service->ended < service->asked && now().value < until_s)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(service->ended, 2);
}

TEST_F(Sending, TakesANameServiceAtItsWord) {
  Spool spool(folder_ / "spool", "n");
  SenderOptions o = options({"collector", 4722, ""});
  o.find = [](const Address& address) -> Result<std::vector<Endpoint>> {
    throw Error("{}: no such host", address.text());
  };
  Sender sender(o, spool);
  add(spool, 1);
  const double until_s = now().value + 20;
  while (heard_.all().empty() && now().value < until_s) sender.run(now().value + 0.05, -1);
  EXPECT_NE(heard_.all().find("collector:4722: no such host; records are kept"), std::string::npos) << heard_.all();
}

TEST_F(Sending, AsksForLimitsAndPassesThemOn) {
  store_->order = {{{"nvml-power:A", 300}}, 60};
  Spool spool(folder_ / "spool", "n");
  SenderOptions o = options(address());
  std::vector<LimitOrder> got;
  o.on_limits = [&](const LimitOrder& order) { got.push_back(order); };
  Sender sender(o, spool);
  const auto until = [&](std::size_t count) {
    const double until_s = now().value + 20;
    while (got.size() < count && now().value < until_s) sender.run(now().value + 0.02, -1);
    return got.size();
  };
  sender.ask({{}, "first"});
  sender.ask({{}, "second"});  // nobody has asked the first one yet
  auto server = collector();
  EXPECT_EQ(until(1), 1u) << heard_.all();
  EXPECT_EQ(got.at(0).limits, store_->order.limits);
  EXPECT_NEAR(got.at(0).seconds, 60, 20) << "less the time of the answer";
  add(spool, 2);
  sender.ask({{}, "third"});
  EXPECT_EQ(until(2), 2u);
  sender.run(now().value + 20, -1, Sender::Until::kEmpty);
  expect_all(2);
  server.reset();
  sender.ask({{}, "later"});
  sender.run(now().value + 0.1, -1);
  server = collector();
  EXPECT_EQ(until(3), 3u) << "asked once there is a connection again";
  const std::lock_guard lock(store_->mutex);
  std::vector<std::string> asked;
  for (const Question& q : store_->questions) asked.push_back(q.node + " " + q.limits.problem);
  EXPECT_EQ(asked, (std::vector<std::string>{"n second", "n third", "n later"}));
}

// Sends for some seconds, or until limits have come.
class Asking : public Sending {
 protected:
  std::vector<LimitOrder> asked(const SenderOptions& base, double seconds) {
    Spool spool(folder_ / "spool", "n");
    SenderOptions o = base;
    std::vector<LimitOrder> got;
    o.on_limits = [&](const LimitOrder& order) { got.push_back(order); };
    Sender sender(o, spool);
    sender.ask({{}, "q"});
    const double until_s = now().value + seconds;
    while (got.empty() && now().value < until_s) sender.run(now().value + 0.02, -1);
    return got;
  }
  SenderOptions with_token() {
    SenderOptions o = options(address());
    o.token = "0123456789abcdef";
    return o;
  }
};

TEST_F(Asking, OnlyWhoHasTheSecretLimitsTheNode) {
  store_->order = {{{"nvml-power:A", 300}}, 60};
  {
    ServerOptions same;
    same.token = "0123456789abcdef";
    const auto server = collector(same);
    EXPECT_EQ(asked(with_token(), 20).at(0).limits, store_->order.limits) << heard_.all();
  }
  // Somebody else took the address, and takes every hello.
  const auto impostor = collector();
  EXPECT_TRUE(asked(with_token(), 1).empty());
  EXPECT_NE(heard_.all().find("its limits do not prove that it has the secret"), std::string::npos) << heard_.all();
}

TEST_F(Asking, AnOldAnswerHasLessTime) {
  store_->order = {{{"nvml-power:A", 300}}, 60};
  const auto server = collector();
  const auto away_for = [&](double seconds) {
    store_->set(&FakeStore::away, true);
    return std::thread([this, seconds] {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      store_->set(&FakeStore::away, false);
    });
  };
  std::thread back = away_for(1.5);
  const auto got = asked(options(address()), 20);
  back.join();
  ASSERT_EQ(got.size(), 1u) << heard_.all();
  EXPECT_LT(got[0].seconds, 59);
  // Limits whose time is over begin nothing.
  store_->order.seconds = 0.5;
  back = away_for(1.5);
  EXPECT_TRUE(asked(options(address()), 5).empty());
  back.join();
  EXPECT_NE(heard_.all().find("limits of this node came when their time was over"), std::string::npos) << heard_.all();
}

TEST_F(Sending, EmptiesTheSpool) {
  const auto server = collector();
  Spool spool(folder_ / "spool", "n");
  Sender sender(options(address()), spool);
  add(spool, 100);
  EXPECT_FALSE(sender.run(now().value + 20, -1, Sender::Until::kEmpty));
  EXPECT_TRUE(spool.empty());
  expect_all(100);
  EXPECT_EQ(sender.connections(), 1);
  EXPECT_EQ(heard_.all(), "");
}

TEST_F(Sending, StopsWhenItIsTold) {
  Spool spool(folder_ / "spool", "n");
  Sender sender(options(address()), spool);
  const double start_s = now().value;
  EXPECT_FALSE(sender.run(start_s + 0.1, -1));
  EXPECT_GE(now().value, start_s + 0.1);
  const Descriptor stop(::eventfd(1, 0));
  EXPECT_TRUE(sender.run(now().value + 20, stop.get()));
}

TEST_F(Sending, KeepsWhatTheDatabaseDoesNotTake) {
  store_->away = true;
  const auto server = collector();
  Spool spool(folder_ / "spool", "n");
  Sender sender(options(address()), spool);
  add(spool, 50);
  sender.run(now().value + 0.3, -1);
  EXPECT_EQ(spool.end() - spool.begin(), 50) << "nothing is acknowledged";
  store_->set(&FakeStore::away, false);
  sender.run(now().value + 20, -1, Sender::Until::kEmpty);
  expect_all(50);
  EXPECT_EQ(sender.connections(), 1) << "the collector was there all the time";
}

// The collector is killed at any moment: what it had stored without acknowledging is not stored again.
TEST_F(Sending, SurvivesRestartsOfTheCollector) {
  auto server = collector();
  Spool spool(folder_ / "spool", "n");
  Sender sender(options(address()), spool);
  int added = 0;
  for (int restart = 0; restart < 12; ++restart) {
    add(spool, 20);
    added += 20;
    store_->set(&FakeStore::held, restart % 3 == 0);
    sender.run(now().value + 0.01 * restart, -1);
    store_->set(&FakeStore::held, false);
    server.reset();
    sender.run(now().value + 0.01, -1);
    server = collector();
  }
  sender.run(now().value + 20, -1, Sender::Until::kEmpty);
  EXPECT_TRUE(spool.empty());
  expect_all(added);
  EXPECT_GT(sender.connections(), 3);
  EXPECT_GT(heard_.count("takes records again"), 0u);
}

TEST_F(Sending, SurvivesARestartOfTheNode) {
  store_->fail_after_commit = 1;
  std::int64_t before = 0;
  {
    const auto server = collector();
    store_->set(&FakeStore::held, true);
    Spool spool(folder_ / "spool", "n");
    Sender sender(options(address()), spool);
    add(spool, 30);
    sender.run(now().value + 0.2, -1);
    store_->set(&FakeStore::held, false);  // the collector stores what it has, and the node is gone
    before = spool.end() - spool.begin();
  }
  EXPECT_EQ(before, 30);
  EXPECT_GT(store_->size(), 0u);
  const auto server = collector();
  Spool spool(folder_ / "spool", "n");
  Sender sender(options(address()), spool);
  add(spool, 5);
  sender.run(now().value + 20, -1, Sender::Until::kEmpty);
  EXPECT_EQ(store_->size(), 35u);
  auto numbers = store_->numbers("n");
  std::ranges::sort(numbers);
  EXPECT_EQ(numbers.back(), 30);
  EXPECT_EQ(std::ranges::count(numbers, 5), 2) << "of each session";
  EXPECT_EQ(std::ranges::count(numbers, 6), 1);
}

TEST_F(Sending, SaysWhyItIsRefusedAndGoesOn) {
  ServerOptions with_token;
  with_token.token = "0123456789abcdef";
  auto server = collector(std::move(with_token));
  Spool spool(folder_ / "spool", "n");
  Sender sender(options(address()), spool);
  add(spool, 3);
  sender.run(now().value + 0.5, -1);
  EXPECT_EQ(heard_.count("needs a token"), 1u) << "said once: " << heard_.all();
  EXPECT_EQ(spool.end() - spool.begin(), 3);
  server.reset();
  server = collector();
  sender.run(now().value + 20, -1, Sender::Until::kEmpty);
  expect_all(3);
}

// Whatever answers at the address, the sender neither ends nor loses a record.
TEST_F(Sending, DistrustsTheCollector) {
  for (const std::string& said :
       {std::string("HTTP/1.1 400 Bad Request\r\n"), std::string(100'000, 'x'), std::string("{\"welcome\":2}\n"),
        std::string("{\"welcome\":1}\n{\"session\":\"x\",\"ack\":5}\n"),
        std::string("{\"session\":\"SESSION\",\"ack\":3}\n"),  // before anything was sent
        std::string("{\"welcome\":1}\n[[[[[[[[1]]]]]]]]\n")}) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    Spool spool(folder_ / "spool", "n");
    add(spool, 3);
    std::string answer = said;
    if (const auto at = answer.find("SESSION"); at != std::string::npos) answer.replace(at, 7, spool.session());
    const Listening listening = listen_at(address());
    const Descriptor socket(listening.socket);
    std::thread peer([&] {
      pollfd poll{socket.get(), POLLIN, 0};
      ::poll(&poll, 1, 20'000);
      const Descriptor connection(::accept4(socket.get(), nullptr, nullptr, 0));
      (void)!::send(connection.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    });
    Sender sender(options(address()), spool);
    sender.run(now().value + 0.2, -1);
    peer.join();
    EXPECT_EQ(spool.end() - spool.begin(), 3) << answer.substr(0, 60);
  }
}

// A collector that is slow to store has so many batches of a node in its memory, and no more.
TEST_F(Sending, HasSoManyBatchesUnderWayAtMost) {
  const Descriptor listening(listen_at(address()).socket);
  std::string got;
  std::thread peer([&] {
    pollfd poll{listening.get(), POLLIN, 0};
    if (::poll(&poll, 1, 20'000) <= 0) return;
    const Descriptor connection(::accept4(listening.get(), nullptr, nullptr, 0));
    const std::string welcome = welcome_line();
    (void)!::send(connection.get(), welcome.data(), welcome.size(), MSG_NOSIGNAL);
    char bytes[4096];
    for (ssize_t size; (size = ::recv(connection.get(), bytes, sizeof bytes, 0)) > 0;)
      got.append(bytes, static_cast<std::size_t>(size));
  });
  Spool spool(folder_ / "spool", "n");
  add(spool, 20);
  SenderOptions o = options(address());
  o.ahead = 3;
  {
    Sender sender(o, spool);
    sender.run(now().value + 0.5, -1);
  }
  peer.join();
  EXPECT_EQ(std::ranges::count(got, '\n'), 1 + 3) << "the hello and three batches";
}

TEST_F(Sending, TriesOnceMoreBeforeItEnds) {
  Spool spool(folder_ / "spool", "n");
  SenderOptions o = options(address());
  o.retry_first_s = o.retry_last_s = 1000;
  Sender sender(o, spool);
  add(spool, 3);
  sender.run(now().value + 0.1, -1);
  const auto server = collector();
  sender.run(now().value + 0.1, -1);
  EXPECT_FALSE(spool.empty()) << "the pause has not ended";
  sender.run(now().value + 20, -1, Sender::Until::kEmpty);
  expect_all(3);
}

TEST_F(Sending, APeerThatIsSilentIsLeft) {
  const Listening listening = listen_at(address());
  const Descriptor socket(listening.socket);
  Spool spool(folder_ / "spool", "n");
  SenderOptions o = options(address());
  o.answer_s = 0.1;
  Sender sender(o, spool);
  sender.run(now().value + 0.5, -1);
  EXPECT_GE(heard_.count("no answer within 0.1 s"), 1u);
}

// Without it, a node that lost its power would be a peer for ever.
TEST(KeepAlive, AsksThePeersOfANetwork) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_GE(socket.get(), 0);
  const auto option = [&](int level, int name) {
    int value = -1;
    socklen_t size = sizeof value;
    EXPECT_EQ(::getsockopt(socket.get(), level, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 0);
  keep_alive(socket.get());
  EXPECT_NE(option(SOL_SOCKET, SO_KEEPALIVE), 0);
  // A peer that is gone is noticed within minutes, both where nothing is sent and where something is.
  EXPECT_LE(option(IPPROTO_TCP, TCP_KEEPIDLE) + option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT),
            300);
  EXPECT_LE(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 300'000);
  EXPECT_NE(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
}

TEST_F(Sending, TriesEachAddressOfAName) {
  // "localhost" often has ::1 first, where nobody listens here.
  ServerOptions local;
  local.listen = {{"127.0.0.1", 0, ""}};
  const RunningServer server(std::make_unique<FakeDatabase>(store_), std::move(local));
  Spool spool(folder_ / "spool", "n");
  Sender sender(options({"localhost", server.address().port, ""}), spool);
  add(spool, 1);
  sender.run(now().value + 20, -1, Sender::Until::kEmpty);
  expect_all(1);
}

}  // namespace
}  // namespace molen::collect
