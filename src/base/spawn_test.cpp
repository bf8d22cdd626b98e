#include "base/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace molen {
namespace {

// Starts the command, waits until it has ended with status 0, and returns the text of its standard output.
std::string output_of(Spawn& spawn, const std::vector<std::string>& command, Spawn::Leads leads,
                      const std::optional<std::vector<std::string>>& environment = std::nullopt) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  spawn.give(ends[1], STDOUT_FILENO);
  spawn.close_from(STDERR_FILENO + 1);
  const pid_t pid = spawn.start(command, leads, environment);
  ::close(ends[1]);
  EXPECT_GT(pid, 0);
  std::string said;
  char bytes[256];
  for (ssize_t n = 0; (n = ::read(ends[0], bytes, sizeof bytes)) > 0;) said.append(bytes, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  return said;
}

TEST(Spawns, GiveTheEnvironmentThatIsAskedFor) {
  ASSERT_EQ(::setenv("MOLEN_SPAWN_TEST", "own", 1), 0);
  const std::vector<std::string> command{"sh", "-c", "echo \"$MOLEN_SPAWN_TEST $OTHER\""};
  Spawn own, other;
  EXPECT_EQ(output_of(own, command, Spawn::Leads::kGroup), "own \n");
  EXPECT_EQ(output_of(other, command, Spawn::Leads::kGroup, std::vector<std::string>{"OTHER=given"}), " given\n");
}

TEST(Spawns, LeadAGroupOrASession) {
  const std::vector<std::string> command{"sh", "-c",
                                         "read -r pid comm state parent group session rest </proc/$$/stat; "
                                         "echo $((pid == group)) $((pid == session))"};
  Spawn group, session;
  EXPECT_EQ(output_of(group, command, Spawn::Leads::kGroup), "1 0\n");
  EXPECT_EQ(output_of(session, command, Spawn::Leads::kSession), "1 1\n");
}

TEST(Spawns, HaveOnlyTheDescriptorsThatAreGiven) {
  const int open = ::open("/dev/null", O_RDONLY);  // stays open in what is executed
  ASSERT_GT(open, STDERR_FILENO);
  Spawn spawn;
  spawn.open("/dev/zero", O_RDONLY, STDIN_FILENO);
  const std::string said = output_of(
      spawn, {"sh", "-c", "readlink /proc/$$/fd/0; [ -e /proc/$$/fd/" + std::to_string(open) + " ] && echo open || :"},
      Spawn::Leads::kGroup);
  ::close(open);
#if __GLIBC_PREREQ(2, 34)
  EXPECT_EQ(said, "/dev/zero\n");
#else
  EXPECT_EQ(said, "/dev/zero\nopen\n");
#endif
}

// A signal that this process blocks and ignores ends the child.
TEST(Spawns, HaveTheSignalsOfANewProcess) {
  sigset_t term, before;
  ::sigemptyset(&term);
  ::sigaddset(&term, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &term, &before);
  const auto handler = ::signal(SIGTERM, SIG_IGN);
  Spawn spawn;
  const pid_t pid = spawn.start({"sleep", "60"}, Spawn::Leads::kGroup);
  ASSERT_GT(pid, 0);
  ::kill(pid, SIGTERM);
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  ::signal(SIGTERM, handler);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(Spawns, SayWhyNothingStarted) {
  Spawn spawn;
  EXPECT_EQ(spawn.start({"/nowhere/molen"}, Spawn::Leads::kGroup), -ENOENT);
}

}  // namespace
}  // namespace molen
