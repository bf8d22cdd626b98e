#include "collect/server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <future>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "collect/test_records.h"
#include "collect/test_server.h"
#include "collect/token.h"

namespace molen::collect {
namespace {

struct SharedStore {
  std::shared_ptr<FakeStore> store = std::make_shared<FakeStore>();
  std::unique_ptr<Database> database() const { return std::make_unique<FakeDatabase>(store); }
  FakeStore* operator->() const { return store.get(); }
};

std::vector<std::int64_t> up_to(std::int64_t last) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 1; i <= last; ++i) numbers.push_back(i);
  return numbers;
}

// Reads answers until batch `last` is acknowledged; returns the numbers.
std::vector<std::int64_t> acknowledged(TestNode& node, std::int64_t last) {
  std::vector<std::int64_t> acks;
  while (acks.empty() || acks.back() < last) {
    const std::string line = node.line();
    if (line == "closed" || line == "nothing") break;
    acks.push_back(parse_answer(line, "the collector").ack);
  }
  return acks;
}

TEST(Server, StoresWhatNodesSendAndAnswers) {
  const SharedStore store;
  RunningServer server(store.database());
  TestNode a(server.address()), b(server.address());
  a.hello("a");
  b.hello("b");
  for (std::int64_t seq = 1; seq <= 40; ++seq) {
    ASSERT_TRUE(a.send(batch_line(test_batch("a", "s", seq))));
    ASSERT_TRUE(b.send(batch_line(test_batch("b", "s", seq))));
  }
  EXPECT_EQ(acknowledged(a, 40), up_to(40));
  EXPECT_EQ(acknowledged(b, 40), up_to(40));
  EXPECT_EQ(store->numbers("a"), up_to(40));
  EXPECT_EQ(store->numbers("b"), up_to(40));
  const ServerTotals totals = server.stop();
  EXPECT_EQ(totals.stored, (Stored{80, 0, 160, 0}));
  EXPECT_EQ(totals.connections, 2);
  EXPECT_EQ(totals.cut, 0);
  EXPECT_EQ(b.line(), "closed");
}

TEST(Server, AcknowledgesNothingWhileTheDatabaseIsAway) {
  const SharedStore store;
  store->away = true;
  RunningServer server(store.database());
  TestNode node(server.address());
  node.hello("n");
  for (std::int64_t seq = 1; seq <= 5; ++seq) ASSERT_TRUE(node.send(batch_line(test_batch("n", "s", seq))));
  ASSERT_TRUE(eventually([&] { return store->tries() >= 10; }));
  EXPECT_EQ(node.line(50), "nothing");
  EXPECT_EQ(server.heard.count("the fake is away"), 1u) << "said once: " << server.heard.all();
  store->set(&FakeStore::away, false);
  EXPECT_EQ(acknowledged(node, 5), up_to(5));
  EXPECT_EQ(store->numbers("n"), up_to(5));
  EXPECT_EQ(server.heard.count("answers again"), 1u);
  EXPECT_GE(server.stop().failures, 9);
}

// The commit happened, but its answer was lost: the second try must not store the batches again.
TEST(Server, ALostAnswerOfTheDatabaseDoublesNothing) {
  const SharedStore store;
  store->fail_after_commit = 2;
  RunningServer server(store.database());
  TestNode node(server.address());
  node.hello("n");
  for (std::int64_t seq = 1; seq <= 5; ++seq) ASSERT_TRUE(node.send(batch_line(test_batch("n", "s", seq))));
  EXPECT_EQ(acknowledged(node, 5), up_to(5));
  EXPECT_EQ(store->numbers("n"), up_to(5));
}

TEST(Server, ABatchThatIsSentAgainCountsOnce) {
  const SharedStore store;
  RunningServer server(store.database());
  for (int time = 0; time < 3; ++time) {
    TestNode node(server.address());
    node.hello("n");
    for (std::int64_t seq = 1; seq <= 5; ++seq) ASSERT_TRUE(node.send(batch_line(test_batch("n", "s", seq))));
    EXPECT_EQ(acknowledged(node, 5), up_to(5)) << "acknowledged each time";
  }
  EXPECT_EQ(store->numbers("n"), up_to(5));
  EXPECT_EQ(server.stop().stored, (Stored{5, 10, 10, 0}));
}

TEST(Server, AnswersQuestionsForLimitsBesideBatches) {
  const SharedStore store;
  store->order = {{{"a", 300}}, 60};
  RunningServer server(store.database());
  TestNode node(server.address());
  ASSERT_TRUE(node.send(hello_line({"n", "", kLimitProtocol})));
  EXPECT_EQ(node.answer().protocol, kLimitProtocol);
  ASSERT_TRUE(
      node.send(ask_line({{}, "first"}, "a") + batch_line(test_batch("n", "s", 1)) + ask_line({{}, "second"}, "b")));
  int limits = 0, acks = 0;
  for (int i = 0; i < 3; ++i) {
    const Answer answer = node.answer();
    limits += answer.kind == Answer::Kind::kLimits && answer.order == store->order;
    acks += answer.kind == Answer::Kind::kStored;
  }
  EXPECT_EQ(limits, 2);
  EXPECT_EQ(acks, 1);
  // While the database is away nobody is told anything, so that the limits of the nodes end by themselves.
  store->set(&FakeStore::away, true);
  ASSERT_TRUE(node.send(ask_line({}, "c")));
  EXPECT_EQ(node.line(300), "nothing");
  store->set(&FakeStore::away, false);
  EXPECT_EQ(node.answer().kind, Answer::Kind::kLimits);
  EXPECT_EQ(server.stop().stored.batches, 1);
}

TEST(Server, StoresManyBatchesInOneTransaction) {
  const SharedStore store;
  store->held = true;
  RunningServer server(store.database());
  std::vector<std::unique_ptr<TestNode>> nodes;
  for (int i = 0; i < 20; ++i) {
    nodes.push_back(std::make_unique<TestNode>(server.address()));
    nodes.back()->hello(fmt::format("n{}", i));
    ASSERT_TRUE(nodes.back()->send(batch_line(test_batch("any", "s", 1))));
  }
  // The first transaction has what had come when it began; the others wait meanwhile and share the second one.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  store->set(&FakeStore::held, false);
  for (auto& node : nodes) EXPECT_EQ(node->answer().ack, 1);
  EXPECT_EQ(store->size(), 20u);
  EXPECT_LE(store->tries(), 4u);
}

// A node that sends without end is read no further than the limits.
TEST(Server, DoesNotReadWhatItCannotStore) {
  const SharedStore store;
  store->held = true;
  ServerOptions options;
  options.writer.most_bytes = 4096;
  // The system's buffers of such a socket are small.
  options.listen = {{"", 0, fmt::format("{}/molen_full_{}.sock", fs::temp_directory_path().string(), ::getpid())}};
  RunningServer server(store.database(), std::move(options));
  TestNode node(server.address());
  node.hello("n");
  std::string all;
  for (std::int64_t seq = 1; seq <= 40; ++seq)
    all += batch_line({"n", "s", seq, {}, std::vector<Event>(110, {1.0, "kind", std::string(500, 'x'), 0})});
  std::size_t sent = 0;
  for (int idle = 0; idle < 40 && sent < all.size();) {
    const std::size_t now = node.send_some(std::string_view(all).substr(sent));
    sent += now;
    idle = now > 0 ? 0 : idle + 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(now > 0 ? 0 : 5));
  }
  EXPECT_LT(sent, all.size()) << "the system's buffers are full, and so are the collector's";
  store->set(&FakeStore::held, false);
  std::thread reader([&] { acknowledged(node, 40); });
  EXPECT_TRUE(node.send(std::string_view(all).substr(sent)));
  reader.join();
  EXPECT_EQ(store->numbers("n"), up_to(40));
}

TEST(Server, CutsWhoBreaksTheRulesAndSaysWhy) {
  const SharedStore store;
  ServerOptions options;
  options.limits.hello_s = 0.3;
  RunningServer server(store.database(), std::move(options));
  TestNode good(server.address());
  good.hello("good");
  const auto refused = [&](const std::string& bytes) {
    TestNode node(server.address());
    EXPECT_TRUE(node.send(bytes));
    const std::string line = node.line();
    EXPECT_EQ(node.line(), "closed");
    return line;
  };
  EXPECT_NE(refused("GET / HTTP/1.1\r\nHost: x\r\n\r\n").find("refused"), std::string::npos);
  EXPECT_NE(refused("").find("no hello within 0.3 s"), std::string::npos);
  EXPECT_NE(refused(std::string(200'000, 'x')).find("4096 bytes"), std::string::npos);
  EXPECT_NE(refused(std::string(10, '\0') + "\n").find("refused"), std::string::npos);
  ASSERT_TRUE(good.send(batch_line(test_batch("good", "s", 1))));
  EXPECT_EQ(good.answer().ack, 1) << "the others are served";
  ASSERT_TRUE(good.send("{}\n"));
  EXPECT_NE(good.line().find("'session' is missing"), std::string::npos);
  EXPECT_EQ(server.heard.count("good (127.0.0.1"), 1u) << server.heard.all();
  EXPECT_EQ(server.stop().cut, 5);
}

TEST(Server, TurnsAwayWhoIsTooMany) {
  const SharedStore store;
  ServerOptions options;
  options.most_connections = 3;
  RunningServer server(store.database(), std::move(options));
  std::vector<std::unique_ptr<TestNode>> nodes;
  for (int i = 0; i < 3; ++i) {
    nodes.push_back(std::make_unique<TestNode>(server.address()));
    nodes.back()->hello("n");
  }
  TestNode more(server.address());
  EXPECT_NE(more.line().find("this collector has 3 connections already"), std::string::npos);
  EXPECT_EQ(more.line(), "closed");
  nodes.pop_back();
  EXPECT_TRUE(eventually([&] {
    TestNode again(server.address());
    again.send(hello_line({"n", ""}));
    return again.line() == R"({"welcome":1})";
  }));
  EXPECT_GE(server.stop().turned_away, 1);
}

TEST(Server, OtherMachinesNeedAToken) {
  const SharedStore store;
  ServerOptions options;
  options.listen = {{"0.0.0.0", 0, ""}};
  try {
    RunningServer server(store.database(), options);
    FAIL() << "no token";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("--token-file"), std::string::npos) << error.what();
  }
  options.token = "0123456789abcdef";
  RunningServer server(store.database(), options);
  const Address here{"127.0.0.1", server.address().port, ""};
  TestNode node(here), stranger(here);
  node.hello("n", options.token);
  EXPECT_TRUE(stranger.send(hello_line({"n", hello_proof("another token...", "n")})));
  EXPECT_NE(stranger.line().find("not the token"), std::string::npos);
}

TEST(Server, ListensOnASocketInTheFileSystem) {
  const SharedStore store;
  const std::string path = fmt::format("{}/molen_collect_{}.sock", fs::temp_directory_path().string(), ::getpid());
  ServerOptions options;
  options.listen = {{"", 0, path}};
  {
    RunningServer server(store.database(), options);
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u) << "only the owner may connect";
    TestNode node(server.address());
    node.hello("n");
    ASSERT_TRUE(node.send(batch_line(test_batch("n", "s", 1))));
    EXPECT_EQ(node.answer().ack, 1);
    EXPECT_THROW(RunningServer(store.database(), options), UsageError) << "another collector is there";
  }
  EXPECT_FALSE(fs::exists(path));
  {  // the socket of a collector that was killed
    const Listening left = listen_at({"", 0, path});
    ::close(left.socket);
    EXPECT_TRUE(fs::exists(path));
    RunningServer server(store.database(), options);
    TestNode node(server.address());
    node.hello("n");
  }
  std::ofstream(path) << "a file";
  EXPECT_THROW(RunningServer(store.database(), options), UsageError);
  EXPECT_TRUE(fs::exists(path)) << "what is no socket stays";
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(RunningServer(store.database(), options), UsageError);
  EXPECT_TRUE(fs::exists(path)) << "nor is a FIFO";
  fs::remove(path);
}

TEST(Server, FinishesWhatItHas) {
  const SharedStore store;
  store->held = true;
  RunningServer server(store.database());
  TestNode node(server.address());
  node.hello("n");
  for (std::int64_t seq = 1; seq <= 10; ++seq) ASSERT_TRUE(node.send(batch_line(test_batch("n", "s", seq))));
  ASSERT_TRUE(eventually([&] { return store->tries() == 1; }));
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    store->set(&FakeStore::held, false);
  });
  server.stop();
  release.join();
  const std::size_t stored = store->size();
  EXPECT_GE(stored, 1u);
  EXPECT_EQ(acknowledged(node, static_cast<std::int64_t>(stored)), up_to(static_cast<std::int64_t>(stored)));
}

TEST(Server, EndsThoughTheDatabaseIsAway) {
  const SharedStore store;
  store->away = true;
  RunningServer server(store.database());
  TestNode node(server.address());
  node.hello("n");
  ASSERT_TRUE(node.send(batch_line(test_batch("n", "s", 1))));
  ASSERT_TRUE(eventually([&] { return store->tries() >= 1; }));
  const auto start = std::chrono::steady_clock::now();
  server.stop();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(node.line(), "closed") << "and acknowledges nothing";
}

TEST(Notices, AreFewAndTheRestIsCounted) {
  std::vector<std::string> said;
  Notices notices([&](const std::string& text) { said.push_back(text); }, 3, 60);
  for (int i = 0; i < 10; ++i) notices.add("x", 100);
  EXPECT_EQ(said.size(), 3u);
  notices.check_time(159);
  EXPECT_EQ(said.size(), 3u);
  notices.check_time(161);
  ASSERT_EQ(said.size(), 4u);
  EXPECT_EQ(said.back(), "7 messages like the last ones were left out");
  notices.add("y", 162);
  EXPECT_EQ(said.back(), "y");
}

TEST(Token, IsReadFromAFileOfTheOwner) {
  const fs::path file = fs::temp_directory_path() / fmt::format("molen_token_{}", ::getpid());
  const auto refusal = [&](const std::string& content,
                           fs::perms mode = fs::perms::owner_read | fs::perms::owner_write) {
    fs::remove(file);
    std::ofstream(file) << content;
    fs::permissions(file, mode);
    try {
      return "accepted " + read_token(file);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  const std::string token = "0123456789abcdef";
  EXPECT_EQ(refusal(token + "\n"), "accepted " + token);
  EXPECT_EQ(refusal(token), "accepted " + token);
  EXPECT_NE(refusal(token, fs::perms::owner_read | fs::perms::group_read).find("chmod 600"), std::string::npos);
  EXPECT_NE(refusal(token, fs::perms::owner_read | fs::perms::others_write).find("chmod 600"), std::string::npos);
  for (const std::string& bad : {std::string("short"), token + " x", token + "\n" + token, std::string(1025, 'x'),
                                 std::string(5000, 'x'), std::string()})
    EXPECT_NE(refusal(bad).find("16 to 1024 printable"), std::string::npos) << bad.size();
  EXPECT_EQ(refusal(std::string(1024, 'x') + "\n"), "accepted " + std::string(1024, 'x'));
  fs::remove(file);
  EXPECT_THROW(read_token(file), MissingFileError);
  // A proof belongs to one name, question and order, and to one secret.
  const LimitOrder order{{{"a", 300}}, 60};
  std::set<std::string> proofs{hello_proof(token, "n"),
                               hello_proof(token, "m"),
                               hello_proof(token + "0", "n"),
                               limits_proof(token, "n", "1", order),
                               limits_proof(token, "m", "1", order),
                               limits_proof(token, "n", "2", order),
                               limits_proof(token + "0", "n", "1", order),
                               limits_proof(token, "n", "1", {{{"a", 301}}, 60}),
                               limits_proof(token, "n", "1", {{{"a", 300}}, 61}),
                               limits_proof(token, "n", "1", {{}, 60})};
  EXPECT_EQ(proofs.size(), 10u);
  EXPECT_EQ(hello_proof("", "n") + limits_proof("", "n", "1", order), "") << "without a secret";
  EXPECT_TRUE(same_token(token, token));
  EXPECT_FALSE(same_token(token, token + "0"));
  EXPECT_FALSE(same_token(token, ""));
}

// A collector that is stopped accepts nobody, and the queue of its socket is full: a second one must not wait for it.
TEST(Listening, DoesNotWaitForAStoppedCollector) {
  const std::string path = (fs::temp_directory_path() / fmt::format("molen_full_{}", ::getpid())).string();
  sockaddr_un place{};
  place.sun_family = AF_UNIX;
  path.copy(place.sun_path, sizeof place.sun_path - 1);
  const auto* to = reinterpret_cast<const sockaddr*>(&place);
  Descriptor stopped(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(stopped.get(), to, sizeof place), 0);
  ASSERT_EQ(::listen(stopped.get(), 0), 0);
  std::vector<std::unique_ptr<Descriptor>> waiting;
  do {
    waiting.push_back(std::make_unique<Descriptor>(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  } while (::connect(waiting.back()->get(), to, sizeof place) == 0);
  ASSERT_EQ(errno, EAGAIN);
  auto second = std::async(std::launch::async, [&]() -> std::string {
    try {
      ::close(listen_at({"", 0, path}).socket);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "it listens";
  });
  const bool soon = second.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  EXPECT_TRUE(soon) << "it waits";
  if (!soon) ::shutdown(stopped.get(), SHUT_RDWR);  // lets it go on
  EXPECT_EQ(second.get(), fmt::format("unix:{}: another process listens there", path));
  fs::remove(path);
}

TEST(Address, IsReadAndWritten) {
  const auto parsed = [](const std::string& text) { return parse_address(text, "--to"); };
  EXPECT_EQ(parsed("host:12"), (Address{"host", 12, ""}));
  EXPECT_EQ(parsed("host"), (Address{"host", kDefaultPort, ""}));
  EXPECT_EQ(parsed("[::1]:12"), (Address{"::1", 12, ""}));
  EXPECT_EQ(parsed("[::1]"), (Address{"::1", kDefaultPort, ""}));
  EXPECT_EQ(parsed("unix:/run/x"), (Address{"", 0, "/run/x"}));
  for (const char* text : {"host:12", "[::1]:12", "unix:/run/x"}) EXPECT_EQ(parsed(text).text(), text);
  for (const char* bad :
       {"", ":1", "host:", "host:x", "host:65536", "host:-1", "::1", "a:b:1", "[::1", "[::1]x", "unix:"})
    EXPECT_THROW(parsed(bad), UsageError) << bad;
  EXPECT_TRUE(is_local(parsed("127.0.0.1:1")));
  EXPECT_TRUE(is_local(parsed("[::1]:1")));
  EXPECT_TRUE(is_local(parsed("unix:x")));
  EXPECT_FALSE(is_local(parsed("0.0.0.0:1")));
  EXPECT_FALSE(is_local(parsed("192.0.2.1:1")));
  EXPECT_THROW(listen_at(parsed("unix:" + std::string(200, 'x'))), UsageError);
}

}  // namespace
}  // namespace molen::collect
