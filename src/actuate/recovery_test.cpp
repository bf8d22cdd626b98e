// The journals that the next job, or `molen energy restore`, finds.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <string>

#include "actuate/journal.h"
#include "actuate/session.h"
#include "actuate/test_watchdog.h"
#include "base/error.h"
#include "base/file.h"
#include "base/filesystem.h"

namespace molen::actuate {
namespace {

TEST_F(Watchdog, JournalsOfOthersAreNotTouched) {
  ASSERT_TRUE(open().ok());  // makes the folder
  const auto journal = [&](const std::function<void(Journal&)>& change) {
    Journal j;
    j.owner = store::Owner::self();
    j.owner.pid = 999999999;
    j.entries = {{kFirst, {"policy0", "policy1"}, {3000000, 3000000}, {{1500000, 1500000}}}};
    change(j);
    const fs::path file = journal_file(journals(), j.owner);
    write_file_atomic(file, journal_text(j));
    return file;
  };
  const auto set = [&] {
    for (int p = 0; p < 2; ++p) tree_.number(tree_.policy(p), 1500000);
  };
  set();
  const fs::path other_host = journal([](Journal& j) { j.owner.host = "elsewhere"; });
  recover();
  EXPECT_TRUE(fs::exists(other_host));
  EXPECT_EQ(said_, "");
  EXPECT_EQ(tree_.clocks(), kSet);
  fs::remove(other_host);
  const fs::path alive = journal([](Journal& j) { j.owner = store::Owner::self(); });
  recover();
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_EQ(tree_.clocks(), kSet);
  fs::remove(alive);
  const fs::path old = journal([](Journal& j) { j.owner.boot = "before"; });
  recover();
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(said("from before this machine was started"));
  EXPECT_EQ(tree_.clocks(), kSet) << "a restart has reset them; what is set now is somebody else's";
  // A process number that is used again: another start time.
  const fs::path used_again = journal([](Journal& j) {
    j.owner = store::Owner::self();
    j.owner.process_start -= 1;
  });
  recover();
  EXPECT_FALSE(fs::exists(used_again));
  EXPECT_EQ(tree_.clocks(), kFound);
}

TEST_F(Watchdog, DamagedAndHostileJournalsChangeNothing) {
  ASSERT_TRUE(open().ok());
  Journal j;
  j.owner = store::Owner::self();
  j.owner.pid = 999999999;
  j.entries = {{kFirst, {"policy0", "policy1"}, {3000000, 3000000}, {{1500000, 1500000}}}};
  const fs::path file = journal_file(journals(), j.owner);
  for (int p = 0; p < 2; ++p) tree_.number(tree_.policy(p), 1500000);
  const std::string text = journal_text(j);
  for (const std::size_t size : {std::size_t{0}, text.size() / 2, text.size() - 3}) {
    write_file_atomic(file, text.substr(0, size));
    recover();
    EXPECT_FALSE(fs::exists(file));
    EXPECT_TRUE(fs::exists(file.string() + ".damaged"));
    EXPECT_TRUE(said("what it held is not restored, and it is kept as"));
    fs::remove(file.string() + ".damaged");
  }
  const auto kept = [&](const std::string& why) {
    said_.clear();
    write_file_atomic(file, journal_text(j));
    recover();
    EXPECT_TRUE(said(why)) << said_;
    EXPECT_TRUE(fs::exists(file));
    EXPECT_EQ(tree_.clocks(), kSet);
  };
  j.entries[0].original = {3000001, 3000000};
  kept("3 GHz is no value of policy0");
  j.entries[0].original = {0, 3000000};
  kept("0 GHz is no value of policy0");
  j.entries[0].original = {3000000, 3000000};
  j.entries[0].parts = {"policy0", "../../../../etc/passwd"};
  kept("it has no part ../../../../etc/passwd");
  EXPECT_EQ(open().reason(),
            fmt::format("nothing is set as long as {} has a journal that could not be restored", journals().string()));
  j.entries[0] = {"cpufreq:\x1b[2J", {"policy0"}, {3000000}, {{1500000}}};
  kept("cpufreq:\\x1b[2J cannot be restored: this machine has no such setting");
  EXPECT_EQ(open().reason(), "") << "the journal of a device that this session does not set is no hindrance";
  EXPECT_TRUE(fs::exists(file));
  fs::remove(file);
  fs::permissions(journals(), fs::perms(0777));
  Actuators here = open_cpufreq(tree_.machine);
  EXPECT_THROW(recover_journals(journals(), here, options().said, Seconds(1)), UsageError);
  fs::permissions(journals(), fs::perms(0700));
}

// The parts of all entries count, those that were put back and those that were not.
TEST_F(Watchdog, APartThatCannotBeRestoredIsCounted) {
  Journal journal;
  journal.entries = {{"cpufreq:cpu-package7", {"policy8", "policy9"}, {3000000, 3000000}, {{1500000, 1500000}}},
                     {kFirst, {"policy0", "policy1"}, {3000000, 3000000}, {{1500000, 1500000}}},
                     {"uncore:cpu-package0", {"package_00_die_00"}, {2400000}, {{1600000}}}};
  for (int p = 0; p < 2; ++p) tree_.number(tree_.policy(p), 1500000);
  Actuators here = open_cpufreq(tree_.machine);
  const Restoration done = restore_journal(journal, here);
  EXPECT_EQ(done.failed, 3);
  EXPECT_EQ(done.restored, 2);
  EXPECT_FALSE(done.complete());
  EXPECT_EQ(tree_.clocks(), kFound);
}

// Whoever starts a guardian learns from its exit status whether something stays changed.
TEST_F(Watchdog, TheStatusOfAGuardianTellsWhetherAllIsRestored) {
  make_own_folder(journals());
  for (const bool readable : {true, false}) {
    tree_.cpufreq();
    for (int p = 0; p < 2; ++p) tree_.number(tree_.policy(p), 1500000);
    Journal j;
    j.owner = store::Owner::self();
    j.entries = {{kFirst, {"policy0", "policy1"}, {3000000, 3000000}, {{1500000, 1500000}}}};
    const fs::path file = journal_file(journals(), j.owner);
    write_file_atomic(file, journal_text(j));
    int control[2], ready[2];
    ASSERT_EQ(::pipe2(control, O_CLOEXEC), 0);
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const pid_t guardian = ::fork();
    if (guardian == 0) {
      ::dup2(control[0], STDIN_FILENO);
      ::dup2(ready[1], STDOUT_FILENO);
      ::execl(MOLEN_GUARDIAN, MOLEN_GUARDIAN, tree_.root().c_str(), file.c_str(), nullptr);
      std::_Exit(127);
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1) << "it is ready";
    if (!readable) fs::remove(tree_.root() / tree_.policy(0));
    ::close(control[1]);
    int status = -1;
    EXPECT_EQ(::waitpid(guardian, &status, 0), guardian);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), readable ? 0 : 1);
    EXPECT_EQ(fs::exists(file), !readable) << "what is not restored is for the next job";
    ::close(control[0]);
    ::close(ready[0]);
  }
}

// The reason is the one of the disk, not that the folder is missing.
TEST_F(Watchdog, AFolderThatCannotBeMadeIsSaid) {
  class Full : public FileSystem {
    int make_directory(const fs::path& path, int mode) override {
      return path.filename() == "journals" ? -ENOSPC : FileSystem::make_directory(path, mode);
    }
  } full;
  const FileSystemOverride replaced(full);
  try {
    make_own_folder(journals());
    ADD_FAILURE() << "it was made";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos) << error.what();
  }
}

// A job that was killed while it wrote its first journal has no guardian yet.
TEST_F(Watchdog, UnfinishedJournalsOfDeadJobsAreRemoved) {
  ASSERT_TRUE(open().ok());
  store::Owner dead = store::Owner::self(), other = dead;
  const std::int64_t alive = dead.pid;
  dead.pid = 999999999;
  other.host = "elsewhere";
  const std::string suffix = ".part-0123456789abcdef";
  const auto unfinished = [&](const store::Owner& owner) {
    const fs::path file = journal_file(journals(), owner).string() + suffix;
    write_file_atomic(file, "{");
    return file;
  };
  const fs::path mine = unfinished(store::Owner::self()), of_dead = unfinished(dead), elsewhere = unfinished(other);
  EXPECT_EQ(unfinished_of(mine.filename().string(), dead), alive);
  recover();
  EXPECT_TRUE(fs::exists(mine));
  EXPECT_FALSE(fs::exists(of_dead));
  EXPECT_TRUE(fs::exists(elsewhere));
}

}  // namespace
}  // namespace molen::actuate
