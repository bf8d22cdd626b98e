#include "store/energy_ring.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <csignal>
#include <limits>

#include "base/error.h"

namespace molen::store {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

class EnergyRings : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(::testing::TempDir()) /
        fmt::format("molen_rings_{}_{}", ::getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path file(std::int64_t attempt = 3, int rank = 0) const { return energy_ring_file(folder_, attempt, rank); }
  static EnergyRingHead head(int hosts = 1) { return {3, 2, hosts, {"cpu", "gpu0"}, {{{"cpu", 10.0}}, 8.0, 90.0}}; }
  HostReadings read(std::int64_t attempt = 3, int rank = 0) const {
    return parse_energy_ring(read_file(file(attempt, rank), 1 << 20), "ring");
  }
  std::string reason(const std::string& bytes) const {
    try {
      parse_energy_ring(bytes, "ring");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }
  fs::path folder_;
};

TEST_F(EnergyRings, KeepTheNewestReading) {
  EnergyRing ring(file(), head());
  EXPECT_FALSE(read().any);
  EXPECT_EQ(read().head.attempt, 3);
  EXPECT_EQ(read().head.history, 2);
  EXPECT_EQ(read().head.scopes, head().scopes);
  EXPECT_EQ(read().head.hosts, 1);
  EXPECT_EQ(read().head.spent_before.by_scope, head().spent_before.by_scope);
  EXPECT_EQ(read().head.spent_before.total, 8.0);
  EXPECT_EQ(read().head.spent_before.seconds, 90.0);
  // Beyond the readings that a file keeps, the oldest are replaced.
  for (std::uint32_t i = 1; i <= 2 * EnergyRing::kReadings + 3; ++i) {
    ring.record(i, std::array{0.5 * i, kNone}, 0.25 * i, i == 7 ? 40 : -1);
    ASSERT_TRUE(read().any);
    ASSERT_EQ(read().last_j[0], 0.5 * i);
    ASSERT_EQ(read().total_j, 0.25 * i);
    ASSERT_EQ(read().seconds, i);
    ASSERT_EQ(read().ended_at, i == 7 ? 40 : -1);
    ASSERT_TRUE(std::isnan(read().last_j[1]));
  }
  ring.record(1, std::array{1e9}, 1e9);  // of another number of scopes: not recorded
  EXPECT_EQ(read().last_j[0], 0.5 * (2 * EnergyRing::kReadings + 3));
}

TEST_F(EnergyRings, SurviveTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    EnergyRing ring(file(), head());
    for (int i = 1; i <= 5; ++i) ring.record(i, std::array{1.0 * i, 100.0 * i}, 7.0 * i);
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read().last_j, (std::vector<double>{5.0, 500.0}));
  EXPECT_EQ(read().total_j, 35.0);
}

// A reading that is half on disk, as after a power cut, is passed over for the one before; a damaged head is refused.
TEST_F(EnergyRings, DamageIsFound) {
  EnergyRing ring(file(), head());
  ring.record(1, std::array{1.0, 10.0}, 11.0);
  ring.record(2, std::array{2.0, 20.0}, 22.0);
  const std::string whole = read_file(file(), 1 << 20);
  constexpr std::size_t kHead = 4096, kStride = 64;
  for (std::size_t at = 0; at < 56; ++at) {  // all fields and two scopes of the second reading
    std::string torn = whole;
    torn[kHead + kStride + at] = static_cast<char>(torn[kHead + kStride + at] ^ 0x40);
    EXPECT_EQ(parse_energy_ring(torn, "ring").last_j[0], 1.0) << at;
  }
  // Hosts, attempt, history, joules and seconds before, the checksum, a name, and what was spent of its scope before.
  for (const std::size_t at : {20, 24, 32, 40, 48, 56, 64, 64 + 48}) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_NE(reason(damaged).find("its head is damaged"), std::string::npos) << at;
  }
  std::string other = whole;
  other[0] = 'm';
  EXPECT_NE(reason(other).find("MOLENJLS"), std::string::npos);
  other = whole;
  other[8] = 9;
  EXPECT_NE(reason(other).find("version 9"), std::string::npos);
  EXPECT_NE(reason(whole.substr(0, whole.size() - 1)).find("with 2 scopes"), std::string::npos);
  EXPECT_NE(reason("MOLENJLS").find("8 bytes"), std::string::npos);
}

// A head whose checksum is right may still say what cannot be.
TEST_F(EnergyRings, WhatWasSpentBeforeIsAnAmount) {
  for (const double wrong : {-1.0, std::numeric_limits<double>::infinity(), kNone}) {
    EnergyRingHead joules = head(), seconds = head(), scope = head();
    joules.spent_before.total = wrong, seconds.spent_before.seconds = wrong;
    scope.spent_before.by_scope["cpu"] = wrong;
    int attempt = 4;
    for (const EnergyRingHead& damaged : {joules, seconds, scope}) {
      const EnergyRing ring(file(attempt), damaged);
      EXPECT_NE(reason(read_file(file(attempt++), 1 << 20)).find("consumed"), std::string::npos) << wrong;
      fs::remove(file(attempt - 1));
    }
  }
}

TEST_F(EnergyRings, TheNewestAttemptHasTheSums) {
  std::vector<std::string> problems;
  EXPECT_FALSE(read_consumed(folder_, problems));
  {
    EnergyRing old(file(2), {2, 2, 1, {"cpu"}, {{{"cpu", 4.0}}, 4.0}});
    old.record(1, std::array{1000.0}, 1000.0);
    EnergyRing one(file(3, 0), head(3)), two(file(3, 4), head(3));
    one.record(1, std::array{1.5, 7.0}, 8.5, 12);
    two.record(3, std::array{2.0, kNone}, 2.0, 12);
    EnergyRing unread(file(3, 8), head(3));
  }
  const auto consumed = read_consumed(folder_, problems);
  ASSERT_TRUE(consumed);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(consumed->attempt, 3);
  EXPECT_EQ(consumed->history, 2);
  EXPECT_EQ(consumed->of_attempt.by_scope, (std::map<std::string, double>{{"cpu", 3.5}, {"gpu0", 7.0}}));
  EXPECT_EQ(consumed->of_attempt.total, 10.5);
  EXPECT_EQ(consumed->spent.by_scope, (std::map<std::string, double>{{"cpu", 13.5}, {"gpu0", 7.0}}));
  EXPECT_EQ(consumed->spent.total, 18.5);
  EXPECT_EQ(consumed->of_attempt.seconds, 3.0);
  EXPECT_EQ(consumed->spent.seconds, 93.0);
  EXPECT_EQ(consumed->ended_at, -1) << "one host has not said so";
  fs::remove(file(3, 8));
  EXPECT_EQ(read_consumed(folder_, problems)->ended_at, 12);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("attempt 3 has readings of 2 of its 3 hosts"), std::string::npos) << problems[0];
  problems.clear();
  remove_earlier_rings(folder_, 3);
  EXPECT_FALSE(fs::exists(file(2)));
  EXPECT_TRUE(fs::exists(file(3, 0)) && fs::exists(file(3, 4)));
  // A damaged file is named, and the sum is that of the others.
  write_file_atomic(file(3, 4), "x");
  EXPECT_EQ(read_consumed(folder_, problems)->of_attempt.by_scope.at("cpu"), 1.5);
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_NE(problems[0].find("attempt-000003-host-00004.bin"), std::string::npos);
}

TEST_F(EnergyRings, WhatDoesNotFitIsRefused) {
  EnergyRingHead many = head();
  many.scopes.assign(EnergyRing::kMostScopes, "x");
  EXPECT_NO_THROW(EnergyRing(file(), many));
  many.scopes.emplace_back("y");
  EXPECT_THROW(EnergyRing(file(4), many), Error);
  EXPECT_FALSE(fs::exists(file(4)));
  many.scopes = {std::string(EnergyRing::kLongestScope, 'n')};
  EXPECT_NO_THROW(EnergyRing(file(), many));
  EXPECT_EQ(read().head.scopes, many.scopes);
  many.scopes.front() += "n";
  EXPECT_THROW(EnergyRing(file(4), many), Error);
}

// A directory that cannot be read is none; what is in its way is found when a file is made.
TEST_F(EnergyRings, ADirectoryThatLeadsToItselfHasNoReadings) {
  fs::create_directory_symlink(folder_, folder_);
  std::vector<std::string> problems;
  EXPECT_FALSE(read_consumed(folder_, problems));
  EXPECT_THROW(EnergyRing(file(), head()), Error);
  fs::remove(folder_);
}

}  // namespace
}  // namespace molen::store
