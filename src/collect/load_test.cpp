// A thousand nodes report while the database, and the collector, restart: nothing is lost, and nothing counts twice.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <atomic>

#include "collect/sqlite/sqlite.h"
#include "collect/test_any_database.h"
#include "collect/test_nodes.h"
#include "collect/test_server.h"

namespace molen::collect {
namespace {

constexpr int kNodes = 1000;
constexpr std::int64_t kBatches = 6;

class Load : public AnyDatabase {
 protected:
  // Makes the database unavailable for a while, and meanwhile lets the nodes send batches up to `permitted`: so the
  // collector has something to store then, however fast it was before.
  void interrupt(SimulatedNodes& nodes, std::int64_t permitted) {
    if (is_postgres()) {
      PrivatePostgres& postgres = PrivatePostgres::shared();
      postgres.stop(interruptions_++ % 2 == 0 ? "fast" : "immediate");
      nodes.permit(permitted);
      postgres.start();
      return;
    }
    sqlite3* other = nullptr;
    ASSERT_EQ(sqlite3_open(file_.c_str(), &other), SQLITE_OK);
    sqlite3_busy_timeout(other, 20'000);
    ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
    nodes.permit(permitted);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr);
    sqlite3_close(other);
  }
  std::unique_ptr<RunningServer> collector(int port) const {
    ServerOptions options;
    options.listen = {{"127.0.0.1", port, ""}};
    options.writer.group = is_postgres() ? 200 : 10;  // many transactions for the restarts to meet
    auto database = is_postgres() ? open_database(words()) : open_sqlite(file_, 0.1);
    return std::make_unique<RunningServer>(std::move(database), std::move(options));
  }
  // Waits until the database has so many batches; returns false if the nodes' thread ends before.
  bool reached(std::int64_t batches, const std::atomic<bool>& ended) const {
    while (!ended) {
      if (std::stoll(value("SELECT COALESCE(SUM(last_seq), 0) FROM energy_sessions")) >= batches) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }

  int interruptions_ = 0;
};

TEST_P(Load, NothingIsLostOrDoubledWhenTheDatabaseRestarts) {
  auto server = collector(0);
  const int port = server->address().port;
  SimulatedNodes nodes(server->address(), kNodes, kBatches, 3);
  std::atomic<bool> ended{false}, all{false};
  std::jthread playing([&] {
    all = nodes.run(240);
    ended = true;
  });
  std::int64_t failures = 0;
  EXPECT_TRUE(reached(kNodes, ended));
  interrupt(nodes, 4);
  EXPECT_TRUE(reached(kNodes * 2, ended));
  interrupt(nodes, 5);
  EXPECT_TRUE(reached(kNodes * 3, ended));
  failures += server->stop().failures;
  server.reset();
  server = collector(port);
  nodes.permit(kBatches);
  playing.join();
  EXPECT_TRUE(all) << server->heard.all();
  EXPECT_GE(nodes.connections(), 2 * kNodes) << "each node had a batch left when the collector restarted";
  failures += server->stop().failures;
  EXPECT_GT(failures, 0) << "an interruption met a transaction";
  const std::int64_t batches = kNodes * kBatches;
  EXPECT_EQ(value("SELECT COUNT(*) FROM energy_periods"), std::to_string(2 * batches));
  EXPECT_EQ(value("SELECT COUNT(*) FROM (SELECT DISTINCT node, seq, scope FROM energy_periods) AS d"),
            std::to_string(2 * batches));
  EXPECT_EQ(std::stod(value("SELECT SUM(joules) FROM energy_periods WHERE counted = 1")),
            100.0 * static_cast<double>(batches));
  EXPECT_EQ(value("SELECT COUNT(*) FROM energy_by_node WHERE ABS(kwh * 3.6e6 - 600) < 1e-6"), std::to_string(kNodes));
  fmt::print("{} batches of {} nodes by {} connections, {} tries of the database failed\n", batches, kNodes,
             nodes.connections(), failures);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Load, testing::Values("sqlite", "postgres"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace molen::collect
