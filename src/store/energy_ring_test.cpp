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
#include "base/test_filesystem.h"

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
  static EnergyRingHead head(std::int64_t attempt = 3) { return {attempt, 2, {"cpu", "gpu0"}, {10.0, 0.0}}; }
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
  EXPECT_EQ(read().head.spent_before_j, head().spent_before_j);
  // Beyond the readings that a file keeps, the oldest are replaced.
  for (std::uint32_t i = 1; i <= 2 * EnergyRing::kReadings + 3; ++i) {
    ring.record(i, std::array{0.5 * i, kNone});
    ASSERT_TRUE(read().any);
    ASSERT_EQ(read().last_j[0], 0.5 * i);
    ASSERT_TRUE(std::isnan(read().last_j[1]));
  }
  ring.record(1, std::array{1e9});  // of another number of scopes: not recorded
  EXPECT_EQ(read().last_j[0], 0.5 * (2 * EnergyRing::kReadings + 3));
}

TEST_F(EnergyRings, SurviveTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    EnergyRing ring(file(), head());
    for (int i = 1; i <= 5; ++i) ring.record(i, std::array{1.0 * i, 100.0 * i});
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read().last_j, (std::vector<double>{5.0, 500.0}));
}

// A reading that is half on disk, as after a power cut, is passed over for the one before; a damaged head is refused.
TEST_F(EnergyRings, DamageIsFound) {
  EnergyRing ring(file(), head());
  ring.record(1, std::array{1.0, 10.0});
  ring.record(2, std::array{2.0, 20.0});
  const std::string whole = read_file(file(), 1 << 20);
  constexpr std::size_t kHead = 4096, kStride = 64;
  for (std::size_t at = 0; at < 40; ++at) {  // sequence, time, checksum and two scopes of the second reading
    std::string torn = whole;
    torn[kHead + kStride + at] = static_cast<char>(torn[kHead + kStride + at] ^ 0x40);
    EXPECT_EQ(parse_energy_ring(torn, "ring").last_j[0], 1.0) << at;
  }
  for (const std::size_t at : {24, 32, 40, 48, 48 + 48}) {  // attempt, history, checksum, a name, what was spent before
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

TEST_F(EnergyRings, TheNewestAttemptHasTheSums) {
  std::vector<std::string> problems;
  EXPECT_FALSE(read_consumed(folder_, problems));
  {
    EnergyRing old(file(2), {2, 2, {"cpu"}, {4.0}});
    old.record(1, std::array{1000.0});
    EnergyRing one(file(3, 0), head()), two(file(3, 4), head());
    one.record(1, std::array{1.5, 7.0});
    two.record(1, std::array{2.0, kNone});
    EnergyRing unread(file(3, 8), head());
  }
  const auto consumed = read_consumed(folder_, problems);
  ASSERT_TRUE(consumed);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(consumed->attempt, 3);
  EXPECT_EQ(consumed->history, 2);
  EXPECT_EQ(consumed->attempt_j, (std::map<std::string, double>{{"cpu", 3.5}, {"gpu0", 7.0}}));
  EXPECT_EQ(consumed->spent_j, (std::map<std::string, double>{{"cpu", 13.5}, {"gpu0", 7.0}}));
  remove_earlier_rings(folder_, 3);
  EXPECT_FALSE(fs::exists(file(2)));
  EXPECT_TRUE(fs::exists(file(3, 0)) && fs::exists(file(3, 4)));
  // A damaged file is named, and the sum is that of the others.
  write_file_atomic(file(3, 4), "x");
  EXPECT_EQ(read_consumed(folder_, problems)->attempt_j.at("cpu"), 1.5);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("attempt-000003-host-00004.bin"), std::string::npos);
}

TEST_F(EnergyRings, TooManyScopesAreRefused) {
  EnergyRingHead many = head();
  many.scopes.assign(EnergyRing::kMostScopes, "x");
  many.spent_before_j.assign(EnergyRing::kMostScopes, 0.0);
  EXPECT_NO_THROW(EnergyRing(file(), many));
  many.scopes.emplace_back("y");
  many.spent_before_j.push_back(0.0);
  EXPECT_THROW(EnergyRing(file(4), many), Error);
  EXPECT_FALSE(fs::exists(file(4)));
}

}  // namespace
}  // namespace molen::store
