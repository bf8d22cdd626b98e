#include "slurm/launch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/file.h"

namespace molen::slurm {
namespace {

bool comes_true(const std::function<bool()>& condition) {
  const double until_s = now().value + 20;
  while (!condition() && now().value < until_s) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return condition();
}

// A program in the place of molen. It writes what it finds, and "end" once its standard input ends.
class DetachedProgram : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "molen_launch_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    log_ = folder_ / "log";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string program(const std::string& body) {
    write_file_atomic(folder_ / "program", "#!/bin/sh\n" + body);
    fs::permissions(folder_ / "program", fs::perms::owner_all);
    return folder_ / "program";
  }
  Launched start(const std::string& body, std::vector<std::string> words = {}) {
    words.insert(words.begin(), program(body));
    return start_detached(words, folder_ / "spool", log_);
  }
  std::string logged() const { return fs::exists(log_) ? read_file(log_) : ""; }
  bool logs(const std::string& text) const {
    return comes_true([&] { return logged().find(text) != std::string::npos; });
  }
  // Returns the value after "name=" in the log.
  std::string logged(const std::string& name) const {
    const std::string text = "\n" + logged(), key = "\n" + name + "=";
    const std::size_t at = text.find(key);
    if (at == std::string::npos) return "none";
    return text.substr(at + key.size(), text.find('\n', at + 1) - at - key.size());
  }

  fs::path folder_, log_;
};

bool is_gone(const std::string& pid) {
  return comes_true([&] {
    if (!fs::exists("/proc/" + pid)) return true;
    return read_file("/proc/" + pid + "/stat").find(") Z ") != std::string::npos;  // init has yet to collect it
  });
}

TEST_F(DetachedProgram, EndsWhenItsHolderLetsGo) {
  const Launched launched = start("echo pid=$$; echo \"words=$*\"; cat; echo end\n", {"energy", "send", "a b"});
  ASSERT_GE(launched.hold, 0);
  EXPECT_TRUE(launched.notes.empty()) << launched.notes[0];
  ASSERT_TRUE(logs("words="));
  EXPECT_EQ(logged("words"), "energy send a b");
  EXPECT_EQ(logged().find("\nend\n"), std::string::npos);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "it is no child of this process, which need not wait for it";
  ::close(launched.hold);
  EXPECT_TRUE(logs("\nend\n"));
  EXPECT_TRUE(is_gone(logged("pid")));
}

// Slurm's daemon of a step blocks signals, and does not want to be killed for want of memory.
TEST_F(DetachedProgram, HasNothingOfItsStarter) {
  ::setenv("MOLEN_LAUNCH_TEST", "leaks", 1);
  sigset_t some, before;
  ::sigemptyset(&some);
  ::sigaddset(&some, SIGTERM);
  ::sigaddset(&some, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &some, &before);
  const auto handled = ::signal(SIGHUP, SIG_IGN);
  const Launched launched = start(
      "echo pid=$$; echo parent=$PPID; echo \"folder=$PWD\"; echo \"variables=$(env | cut -d= -f1 | sort | tr '\\n' ' "
      "')\"\n"
      "grep -E 'SigBlk|SigIgn' /proc/self/status; umask\n"  // the status of grep, because the shell blocks signals
                                                            // while it starts grep
      "echo done=1; exec cat\n");
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::signal(SIGHUP, handled);
  ::unsetenv("MOLEN_LAUNCH_TEST");
  ASSERT_GE(launched.hold, 0);
  ASSERT_TRUE(logs("done="));
  EXPECT_NE(logged("parent"), std::to_string(::getpid()));
  EXPECT_EQ(logged("folder"), "/");
  // Some shells add variables of their own.
  EXPECT_EQ((" " + logged("variables")).find(" MOLEN_LAUNCH_TEST "), std::string::npos) << logged("variables");
  for (const char* name : {" LC_ALL ", " PATH "})
    EXPECT_NE((" " + logged("variables")).find(name), std::string::npos) << logged("variables");
  EXPECT_NE(logged().find("SigBlk:\t0000000000000000"), std::string::npos) << logged();
  const std::string ignored = logged().substr(logged().find("SigIgn:\t") + 8, 16);
  // The signals above 31 are those of the C library, which no program can set.
  EXPECT_EQ(std::stoull(ignored, nullptr, 16) & 0x7fffffffU, 0U) << logged();
  EXPECT_NE(logged().find("\n0077\n"), std::string::npos) << logged();
  const std::string pid = logged("pid");
  EXPECT_EQ(::getsid(std::stoi(pid)) == ::getsid(0), false) << "a session of its own";
  EXPECT_EQ(::kill(std::stoi(pid), SIGTERM), 0);
  EXPECT_TRUE(is_gone(pid)) << "SIGTERM is not blocked";
  ::close(launched.hold);
}

TEST_F(DetachedProgram, EndsWhenItsHolderIsKilled) {
  const std::string path = program("echo pid=$$; cat; echo end\n");
  const pid_t holder = ::fork();
  if (holder == 0) {
    start_detached({path}, folder_ / "spool", log_);
    for (;;) ::pause();
  }
  ASSERT_TRUE(logs("pid="));
  EXPECT_EQ(logged().find("end"), std::string::npos);
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  EXPECT_TRUE(logs("\nend\n"));
}

TEST_F(DetachedProgram, HasNoDescriptorOfItsStarter) {
  const int open = ::open("/dev/null", O_RDONLY);         // without O_CLOEXEC
  std::vector<std::string> command{"/usr/bin/readlink"};  // which opens nothing itself
  for (int descriptor = 0; descriptor < 64; ++descriptor)
    command.push_back("/proc/self/fd/" + std::to_string(descriptor));
  const Launched launched = start_detached(command, folder_ / "spool", log_);
  ::close(open);
  ASSERT_TRUE(comes_true([&] { return std::ranges::count(logged(), '\n') >= 3; }));
  EXPECT_TRUE(logged().starts_with("pipe:")) << logged();
  EXPECT_EQ(logged().substr(logged().find('\n') + 1), log_.string() + "\n" + log_.string() + "\n");
  ::close(launched.hold);
}

// A task that is started later must not keep the pipe open.
TEST_F(DetachedProgram, IsNotHeldByOtherPrograms) {
  const Launched launched = start("echo pid=$$; cat; echo end\n");
  ASSERT_TRUE(logs("pid="));
  const pid_t task = ::fork();
  if (task == 0) {
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    ::_exit(127);
  }
  ::close(launched.hold);
  EXPECT_TRUE(logs("\nend\n"));
  ::kill(task, SIGKILL);
  ::waitpid(task, nullptr, 0);
}

TEST_F(DetachedProgram, MakesItsFolderAndAddsToItsLog) {
  write_file_atomic(log_, "before\n");
  const Launched launched = start("echo first; echo second >&2\n");
  ASSERT_TRUE(logs("second"));
  EXPECT_EQ(logged(), "before\nfirst\nsecond\n");
  EXPECT_EQ(fs::status(folder_ / "spool").permissions(), fs::perms::owner_all);
  ::close(launched.hold);
  fs::remove(log_);
  const Launched again = start("echo third\n");
  ASSERT_TRUE(logs("third"));
  EXPECT_TRUE(again.notes.empty()) << "the folder is there";
  EXPECT_EQ(fs::status(log_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  ::close(again.hold);
}

TEST_F(DetachedProgram, SaysWhatIsWrong) {
  Launched launched = start_detached({folder_ / "none"}, folder_ / "spool", log_);
  EXPECT_LT(launched.hold, 0);
  EXPECT_EQ(launched.notes, (std::vector<std::string>{(folder_ / "none").string() + ": No such file or directory"}));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "no process is left";
  launched = start_detached({folder_}, folder_ / "spool", log_);
  EXPECT_EQ(launched.notes, (std::vector<std::string>{folder_.string() + ": Permission denied"}));
  launched = start_detached({program("cat\n")}, folder_ / "none/spool", folder_ / "none/log");
  EXPECT_GE(launched.hold, 0) << "the sender itself says what it cannot do without a folder";
  EXPECT_EQ(launched.notes,
            (std::vector<std::string>{(folder_ / "none/spool").string() + ": No such file or directory",
                                      (folder_ / "none/log").string() + ": No such file or directory"}));
  ::close(launched.hold);
  fs::create_symlink("/dev/null", folder_ / "link");
  launched = start_detached({program("cat\n")}, folder_ / "spool", folder_ / "link");
  EXPECT_EQ(launched.notes, (std::vector<std::string>{(folder_ / "link").string() + ": " + std::strerror(ELOOP)}));
  ::close(launched.hold);
}

// Whoever owns the folder, or may write it, could make root write through links of his.
TEST_F(DetachedProgram, DoesNotTrustAFolderOfOthers) {
  const fs::path spool = folder_ / "spool";
  const auto refused = [&](const char* how) {
    const Launched launched = start("echo started; cat\n");
    EXPECT_LT(launched.hold, 0) << how;
    ASSERT_EQ(launched.notes.size(), 1U) << how;
    EXPECT_EQ(launched.notes[0], spool.string() +
                                     ": must be a folder of root's that nobody else may write, and no "
                                     "link: no energy is recorded");
    EXPECT_EQ(logged(), "") << how;
    fs::remove(spool);
  };
  fs::create_directory(folder_ / "other");
  fs::create_directory_symlink(folder_ / "other", spool);
  refused("a link to a folder");
  fs::create_symlink(folder_ / "none", spool);
  refused("a link to nothing");
  write_file_atomic(spool, "a file");
  refused("a file");
  for (const fs::perms others : {fs::perms::group_write, fs::perms::others_write}) {
    fs::create_directory(spool);
    fs::permissions(spool, fs::perms::owner_all | others);
    refused("others may write");
  }
  if (::geteuid() == 0) {
    fs::create_directory(spool);
    fs::permissions(spool, fs::perms::owner_all);
    ASSERT_EQ(::chown(spool.c_str(), 65534, 65534), 0);
    refused("of another user");
  }
  fs::create_directory(spool);
  fs::permissions(spool, fs::perms::owner_all | fs::perms::group_read | fs::perms::group_exec);
  const Launched launched = start("echo started; cat\n");
  EXPECT_TRUE(launched.notes.empty()) << launched.notes[0];
  EXPECT_TRUE(logs("started")) << "others may read";
  ::close(launched.hold);
}

// A file system that does not answer: opening a pipe for writing waits for a reader as such a log does.
TEST_F(DetachedProgram, DoesNotWaitForAFileSystem) {
  ASSERT_EQ(::mkfifo(log_.c_str(), 0600), 0);
  const double start_s = now().value;
  const Launched launched = start("cat\n");
  EXPECT_LT(now().value - start_s, 10);
  EXPECT_GE(launched.hold, 0);
  ASSERT_EQ(launched.notes.size(), 1U);
  EXPECT_NE(launched.notes[0].find("has not begun after 1 s"), std::string::npos) << launched.notes[0];
  ::close(launched.hold);
  ::close(::open(log_.c_str(), O_RDONLY | O_NONBLOCK));  // lets it go on and end
}

// Signals interrupt the wait, which then goes on for what is left of it. It begins in the middle of a second of the
// clock, so that its end lies in the next one.
TEST_F(DetachedProgram, SignalsDoNotChangeTheWaitForAFileSystem) {
  ASSERT_EQ(::mkfifo(log_.c_str(), 0600), 0);
  const std::string path = program("cat\n");
  const auto handled = ::signal(SIGALRM, [](int) {});
  const itimerval often{{0, 20'000}, {0, 20'000}}, never{};
  const double into_s = std::fmod(now().value, 1.0);
  std::this_thread::sleep_for(std::chrono::duration<double>(std::fmod(1.6 - into_s, 1.0)));
  const double start_s = now().value;
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  const Launched launched = start_detached({path}, folder_ / "spool", log_);
  const double waited_s = now().value - start_s;
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::signal(SIGALRM, handled);
  EXPECT_GE(waited_s, 0.99);
  EXPECT_LT(waited_s, 10);
  EXPECT_EQ(launched.notes.size(), 1U);
  ::close(launched.hold);
  ::close(::open(log_.c_str(), O_RDONLY | O_NONBLOCK));  // lets it go on and end
}

}  // namespace
}  // namespace molen::slurm
