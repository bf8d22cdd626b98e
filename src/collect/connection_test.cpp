#include "collect/connection.h"

#include <gtest/gtest.h>

#include "collect/test_records.h"
#include "collect/token.h"

namespace molen::collect {
namespace {

const std::string kToken = "0123456789abcdef", kNoToken;
const ConnectionLimits kLimits;

void receive_all(Connection& c, std::string_view bytes, double now_s = 0) {
  while (!bytes.empty()) {
    const std::size_t taken = std::min(bytes.size(), c.room());
    ASSERT_GT(taken, 0u) << "the connection waits";
    c.receive(bytes.substr(0, taken), now_s);
    bytes.remove_prefix(taken);
    if (bytes.empty()) break;
    if (c.room() == 0) FAIL() << "a test sends more than one buffer";
  }
}

Connection greeted(const std::string& token = kNoToken) {
  Connection c("peer", token, kLimits, 0);
  receive_all(c, hello_line({"n1", hello_proof(token, "n1")}));
  EXPECT_FALSE(c.next_batch(0));
  EXPECT_EQ(c.outgoing(), welcome_line());
  c.sent(c.outgoing().size(), 0);
  return c;
}

TEST(Connection, ABatchIsAnsweredWhenItIsStored) {
  Connection c = greeted();
  const Batch batch = test_batch("n1", "s", 1);
  receive_all(c, batch_line(batch));
  EXPECT_EQ(c.next_batch(0), batch);
  EXPECT_FALSE(c.next_batch(0));
  EXPECT_EQ(c.outgoing(), "") << "not stored yet";
  c.stored("s", 1, 0);
  EXPECT_EQ(c.outgoing(), stored_line("s", 1));
  EXPECT_EQ(c.who(), "n1 (peer)");
}

TEST(Connection, TheTokenDecides) {
  EXPECT_FALSE(greeted(kToken).is_cut());
  for (const std::string& wrong : {std::string(), kToken + "x", std::string("0123456789abcdeF")}) {
    Connection c("peer", kToken, kLimits, 0);
    receive_all(c, hello_line({"n1", hello_proof(wrong, "n1")}) + batch_line(test_batch("n1", "s", 1)));
    EXPECT_FALSE(c.next_batch(0));
    EXPECT_TRUE(c.is_cut());
    EXPECT_EQ(c.outgoing(), refused_line(c.reason())) << "no welcome, and no batch";
    EXPECT_NE(c.reason().find("token"), std::string::npos);
    EXPECT_EQ(c.reason().find(kToken), std::string::npos) << "the reason does not tell the secret";
  }
}

TEST(Connection, AStrangerHasNoMoreThanAHello) {
  Connection c("peer", kNoToken, kLimits, 0);
  EXPECT_EQ(c.room(), kMostHelloBytes);
  c.receive(std::string(kMostHelloBytes, 'x'), 0);
  EXPECT_TRUE(c.is_cut());
  EXPECT_NE(c.reason().find("4096 bytes"), std::string::npos) << c.reason();
}

TEST(Connection, ALineHasALimit) {
  Connection c = greeted();
  const std::string longest(kMostLineBytes, ' ');
  c.receive(longest.substr(1), 0);
  EXPECT_FALSE(c.is_cut());
  c.receive(" ", 0);
  EXPECT_TRUE(c.is_cut());
  EXPECT_NE(c.reason().find("65536 bytes"), std::string::npos) << c.reason();
  // The rest is thrown away, so that the node can read the reason.
  EXPECT_GT(c.room(), 0u);
  c.receive(batch_line(test_batch("n1", "s", 1)), 0);
  EXPECT_FALSE(c.next_batch(0));
}

TEST(Connection, SoManyBatchesMayBeOutstanding) {
  Connection c = greeted();
  std::string lines;
  for (std::int64_t seq = 1; seq <= 20; ++seq) lines += batch_line(test_batch("n1", "s", seq));
  receive_all(c, lines);
  std::int64_t read = 0;
  while (c.next_batch(0)) ++read;
  EXPECT_EQ(read, 16);
  EXPECT_EQ(c.room(), 0u) << "no more is read";
  c.stored("s", 1, 0);
  EXPECT_GT(c.room(), 0u);
  EXPECT_EQ(c.next_batch(0)->seq, 17);
  EXPECT_FALSE(c.next_batch(0));
}

TEST(Connection, AQuestionIsOutstandingUntilItIsAnswered) {
  Connection c("peer", kNoToken, kLimits, 0);
  receive_all(c, hello_line({"n1", "", kLimitProtocol}));
  EXPECT_FALSE(c.next_batch(0));
  EXPECT_EQ(c.outgoing(), welcome_line(kLimitProtocol));
  c.sent(c.outgoing().size(), 0);
  const Limitable limitable{{}, "no daemon"};
  receive_all(c, ask_line(limitable, "a") + batch_line(test_batch("n1", "s", 1)));
  EXPECT_EQ(c.next_batch(0)->seq, 1);
  EXPECT_EQ(c.take_questions(), std::vector<Limitable>{limitable});
  EXPECT_TRUE(c.take_questions().empty());
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += ask_line({}, "b");
  receive_all(c, lines);
  EXPECT_FALSE(c.next_batch(0));
  EXPECT_EQ(c.take_questions().size(), 14u) << "16 with the two before";
  EXPECT_EQ(c.room(), 0u);
  c.answered({{{"a", 300}}, 60}, 0);
  EXPECT_EQ(c.outgoing(), limits_line({{{"a", 300}}, 60}));
  EXPECT_GT(c.room(), 0u);
  // With a secret, each answer proves it for its own question.
  Connection secret("peer", kToken, kLimits, 0);
  receive_all(secret, hello_line({"n1", hello_proof(kToken, "n1"), kLimitProtocol}));
  receive_all(secret, ask_line({}, "first") + ask_line({}, "second"));
  EXPECT_FALSE(secret.next_batch(0));
  secret.sent(secret.outgoing().size(), 0);
  const LimitOrder order{{{"a", 300}}, 60};
  secret.answered(order, 0);
  secret.answered(order, 0);
  EXPECT_EQ(secret.outgoing(), limits_line(order, limits_proof(kToken, "n1", "first", order)) +
                                   limits_line(order, limits_proof(kToken, "n1", "second", order)));
  // A node of protocol 1 does not ask.
  Connection old = greeted();
  receive_all(old, ask_line({}, "b"));
  EXPECT_FALSE(old.next_batch(0));
  EXPECT_TRUE(old.is_cut());
}

TEST(Connection, NumbersIncreaseWithinASession) {
  Connection c = greeted();
  for (const auto& [session, seq] : {std::pair("s", 3), std::pair("s", 5), std::pair("t", 1), std::pair("s", 4)}) {
    receive_all(c, batch_line(test_batch("n1", session, seq)));
    EXPECT_TRUE(c.next_batch(0)) << session << seq;
  }
  receive_all(c, batch_line(test_batch("n1", "s", 4)));
  EXPECT_FALSE(c.next_batch(0));
  EXPECT_NE(c.reason().find("batch 4 came after batch 4"), std::string::npos) << c.reason();
}

TEST(Connection, WhoIsSlowIsCut) {
  Connection silent("peer", kNoToken, kLimits, 100);
  silent.check_time(109, true);
  EXPECT_FALSE(silent.is_cut());
  silent.receive("{", 109);
  silent.check_time(119.5, true);
  EXPECT_TRUE(silent.is_cut()) << "a byte now and then is no hello";
  Connection trickling = greeted();
  trickling.receive("{", 100);
  trickling.receive("\"", 129);
  trickling.check_time(129, true);
  EXPECT_FALSE(trickling.is_cut());
  trickling.check_time(131, true);
  EXPECT_NE(trickling.reason().find("a line took more than 30 s"), std::string::npos) << trickling.reason();
  Connection idle = greeted();
  idle.check_time(3600, true);
  EXPECT_FALSE(idle.is_cut());
  idle.check_time(3601, true);
  EXPECT_NE(idle.reason().find("nothing was sent for 3600 s"), std::string::npos) << idle.reason();
}

TEST(Connection, WhoHadToWaitIsNotSlow) {
  Connection c = greeted();
  c.receive("{", 0);
  for (double t = 0; t < 4000; t += 10) c.check_time(t, false);
  c.check_time(4015, true);
  EXPECT_FALSE(c.is_cut());
  c.check_time(4021, true);
  EXPECT_TRUE(c.is_cut());
}

TEST(Connection, WhoTakesNoAnswersIsCut) {
  Connection c = greeted();
  std::int64_t seq = 0;
  while (c.room() > 0 && seq < 100'000) {
    receive_all(c, batch_line(test_batch("n1", "s", ++seq)), 1);
    ASSERT_TRUE(c.next_batch(1));
    c.stored("s", seq, 1);
  }
  EXPECT_LT(c.outgoing().size(), kMostLineBytes + 200) << "answers do not pile up";
  c.check_time(30, true);
  EXPECT_FALSE(c.is_cut());
  c.check_time(32, true);
  EXPECT_NE(c.reason().find("took no answer"), std::string::npos);
  c.check_time(33, true);
  EXPECT_FALSE(c.is_over()) << "it may still read why";
  c.check_time(35, true);
  EXPECT_TRUE(c.is_over());
}

}  // namespace
}  // namespace molen::collect
