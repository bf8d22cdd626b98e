// A save by two ranks, each a process, of which one is killed before each of its calls in turn. The other one is told
// by the connection between them, as a communicator tells it. The newest checkpoint is whole, a save that any rank
// reported is there, and the next owner saves again.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "base/error.h"
#include "base/test_filesystem.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "checkpoint/test_folder.h"
#include "store/lease.h"

namespace molen::checkpoint {
namespace {

constexpr int kSaved = 0, kNotSaved = 3;  // exit statuses of a rank

// Kills this process before the call of that number among those that change something.
class Killed : public UnsyncedFileSystem {
 public:
  explicit Killed(std::int64_t call) : left_(call) {}
  int open(const fs::path& path, int flags, int mode) override {
    return (flags & O_CREAT) != 0 ? meet() : void(), FileSystem::open(path, flags, mode);
  }
  std::int64_t write(int fd, const void* from, std::size_t size) override {
    return meet(), FileSystem::write(fd, from, size);
  }
  std::int64_t write_at(int fd, const void* from, std::size_t size, std::int64_t at) override {
    return meet(), FileSystem::write_at(fd, from, size, at);
  }
  int sync(int) override { return meet(), 0; }
  int truncate(int fd, std::int64_t size) override { return meet(), FileSystem::truncate(fd, size); }
  int rename(const fs::path& from, const fs::path& to) override { return meet(), FileSystem::rename(from, to); }
  int exchange(const fs::path& a, const fs::path& b) override { return meet(), FileSystem::exchange(a, b); }
  int link(const fs::path& from, const fs::path& to) override { return meet(), FileSystem::link(from, to); }
  int remove(const fs::path& path) override { return meet(), FileSystem::remove(path); }
  int make_directory(const fs::path& path, int mode) override { return meet(), FileSystem::make_directory(path, mode); }

 private:
  void meet() {
    if (left_-- == 0) ::raise(SIGKILL);
  }
  std::int64_t left_;
};

// Both ranks tell each other whether their part worked. Throws when the other one is dead.
bool agree_with(int peer, bool ok) {
  char theirs = 0;
  const char mine = ok ? 1 : 0;
  if (::send(peer, &mine, 1, MSG_NOSIGNAL) != 1 || ::recv(peer, &theirs, 1, 0) != 1) throw Error("a rank is dead");
  return ok && theirs == 1;
}

// Saves step 2, which replaces step 1 as the only one that is kept. Never returns.
[[noreturn]] void run_rank(const fs::path& directory, int rank, int peer, std::int64_t kill_at) {
  Killed killed(kill_at);
  const FileSystemOverride instead(killed);
  try {
    const std::vector<float> values(35, 2.0f);
    std::optional<store::Lease> lease;
    if (rank == 0) lease.emplace(directory, store::LeaseOptions());
    // Rank 0 tells its fencing token, as the trainer does when it has prepared the job.
    std::int64_t token = lease ? lease->token() : 0;
    if (rank == 0 ? ::send(peer, &token, sizeof token, MSG_NOSIGNAL) != sizeof token
                  : ::recv(peer, &token, sizeof token, MSG_WAITALL) != sizeof token)
      throw Error("a rank is dead");
    SaveOptions options;
    options.directory = directory;
    options.step = 2;
    options.rank = rank;
    options.ranks = 2;
    options.agree = [&](bool ok) { return agree_with(peer, ok); };
    options.state = {{"step", 2}};
    options.attachments = {{"tokenizer.json", "{}"}};
    options.keep = 1;
    options.token = token;
    options.still_owner = [&] {
      if (lease) lease->require();
    };
    const std::int64_t first = rank == 0 ? 0 : 3, rows = rank == 0 ? 3 : 2;
    save({{"a", DType::kF32, {5, 7}, {{first, 0}, {rows, 7}}, values.data(), {}}}, options);
    ::_exit(kSaved);  // without the release of the lease: its owner is dead, too
  } catch (const Error&) {
    ::_exit(kNotSaved);
  }
}

void save_alone(const fs::path& directory, std::int64_t step, std::int64_t token) {
  const std::vector<float> values(35, 1.0f);
  SaveOptions options;
  options.directory = directory;
  options.step = step;
  options.state = {{"step", step}};
  options.token = token;
  save({{"a", DType::kF32, {5, 7}, {{0, 0}, {5, 7}}, values.data(), {}}}, options);
}

// Returns the wait statuses of both ranks.
std::array<int, 2> save_as_two(const fs::path& directory, int killed, std::int64_t call) {
  std::array<int, 2> ends{}, statuses{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  std::array<pid_t, 2> ranks{};
  for (const int rank : {0, 1}) {
    ranks[static_cast<std::size_t>(rank)] = ::fork();
    if (ranks[static_cast<std::size_t>(rank)] != 0) continue;
    ::close(ends[static_cast<std::size_t>(1 - rank)]);
    run_rank(directory, rank, ends[static_cast<std::size_t>(rank)], rank == killed ? call : -1);
  }
  for (const int end : ends) ::close(end);
  for (std::size_t rank = 0; rank < 2; ++rank) ::waitpid(ranks[rank], &statuses[rank], 0);
  return statuses;
}

void kill_everywhere(int rank) {
  for (std::int64_t call = 0;; ++call) {
    SCOPED_TRACE(fmt::format("rank {} is killed before its call {}", rank, call));
    const TestFolder folder;
    save_alone(folder.path(), 1, 1);
    const auto statuses = save_as_two(folder.path(), rank, call);
    const bool died = WIFSIGNALED(statuses[static_cast<std::size_t>(rank)]);
    const int other = statuses[static_cast<std::size_t>(1 - rank)];
    ASSERT_TRUE(WIFEXITED(other));
    const bool reported = WEXITSTATUS(other) == kSaved || !died;
    {
      const store::Lease next(folder.path(), store::LeaseOptions());
      recover(folder.path());
      const std::int64_t newest = newest_whole(folder.path());
      EXPECT_TRUE(newest == 2 || (newest == 1 && !reported)) << newest;
      EXPECT_TRUE(unfinished_in(folder.path()).empty());
      save_alone(folder.path(), 3, next.token());
      EXPECT_EQ(newest_whole(folder.path()), 3);
    }
    if (died) continue;
    EXPECT_EQ(WEXITSTATUS(other), kSaved);
    EXPECT_EQ(steps_in(folder.path()).size(), 2u) << "step 1 is pruned";
    fmt::print("a save of two ranks: rank {} makes {} calls\n", rank, call);
    EXPECT_GT(call, rank == 0 ? 20 : 4);
    return;
  }
}

TEST(KilledRank, TheFirstAtEachCallOfASave) {
  kill_everywhere(0);
}

TEST(KilledRank, TheOtherAtEachCallOfASave) {
  kill_everywhere(1);
}

}  // namespace
}  // namespace molen::checkpoint
