// Two jobs, each a process, on one directory of checkpoints. They start at nearly the same time, or the second starts
// when the first was killed within a save, or was stopped there for longer than its lease and then continues. One job
// runs; the other is refused or runs after it. No checkpoint mixes the files of both, and no checkpoint that was
// reported as saved is lost.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/test_filesystem.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "checkpoint/test_folder.h"
#include "store/lease.h"

namespace molen::checkpoint {
namespace {

constexpr int kRuns = 200, kControllers = 40, kSaves = 3;
constexpr double kPeriod = 0.4;
enum Exit { kSavedAll = 0, kRefused = 3, kFenced = 4 };

// Sends this process a signal before one of its calls that change something.
class Fated : public UnsyncedFileSystem {
 public:
  Fated(int signal, int calls) : signal_(signal), left_(calls) {}
  int rename(const fs::path& from, const fs::path& to) override { return meet(), FileSystem::rename(from, to); }
  int exchange(const fs::path& a, const fs::path& b) override { return meet(), FileSystem::exchange(a, b); }
  int remove(const fs::path& path) override { return meet(), FileSystem::remove(path); }
  int make_directory(const fs::path& path, int mode) override { return meet(), FileSystem::make_directory(path, mode); }
  std::int64_t write(int fd, const void* from, std::size_t size) override {
    return meet(), FileSystem::write(fd, from, size);
  }
  std::int64_t write_at(int fd, const void* from, std::size_t size, std::int64_t at) override {
    return meet(), FileSystem::write_at(fd, from, size, at);
  }

 private:
  void meet() {
    if (signal_ != 0 && left_-- == 0) ::raise(signal_);
  }
  const int signal_;
  std::atomic<int> left_;  // the lease renews itself on a separate thread
};

void pause_us(unsigned us) {
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

// An owner on another machine: only its renewals show whether its process lives.
store::LeaseOptions options_of(int job) {
  store::LeaseOptions options;
  options.period_s = kPeriod;
  options.owner.host = fmt::format("node{}", job);
  options.owner.boot = "another";
  return options;
}

// The work of a job on the directory; it writes a line to `said` for each checkpoint that it considers saved. `signal`,
// if any, arrives at a random call.
int run_job(const fs::path& directory, const fs::path& said, int job, int signal, unsigned seed) {
  std::mt19937 random(seed);
  Fated fated(signal, static_cast<int>(random() % 120));
  const FileSystemOverride instead(fated);
  pause_us(random() % 4000);
  try {
    const store::Lease lease(directory, options_of(job));
    recover(directory);
    const auto newest = latest(directory);
    const std::int64_t before = newest ? Checkpoint(*newest).step() : 0;
    for (std::int64_t step = before + 1; step <= before + kSaves; ++step) {
      const auto value = static_cast<float>(1000 * job + step);
      const std::vector<float> a(35, value);
      const auto slow = [&](std::int64_t, std::int64_t count, void* to) {
        pause_us(random() % 20'000);
        std::fill_n(static_cast<float*>(to), count, value);
      };
      SaveOptions options;
      options.directory = directory;
      options.step = step;
      options.state = {{"value", value}};
      options.keep = seed % 2 == 0 ? 2 : 0;
      options.token = lease.token();
      options.still_owner = [&] { lease.require(); };
      save({{"a", DType::kF32, {5, 7}, {{0, 0}, {5, 3}}, a.data(), {}},
            {"a", DType::kF32, {5, 7}, {{0, 3}, {5, 4}}, nullptr, slow},
            {"b", DType::kF32, {12}, {{0}, {12}}, nullptr, slow}},
           options);
      std::ofstream(said, std::ios::app) << step << std::endl;
      pause_us(random() % 80'000);
    }
    return kSavedAll;
  } catch (const store::LeaseHeld&) {
    return path_exists(said) ? kFenced : kRefused;
  } catch (const Error&) {  // another job took its directory
    return kFenced;
  }
}

// Returns "" when every checkpoint is one job's, and the newest is not older than those reported as saved; else the
// problem.
std::string problem_in(const fs::path& directory, const std::vector<fs::path>& said) {
  std::int64_t newest = 0, promised = 0;
  for (const Step& step : steps_in(directory)) try {
      const Checkpoint checkpoint(step.path);
      const auto value = checkpoint.state().at("value").get<float>();
      for (const auto& [name, tensor] : checkpoint.tensors()) {
        std::vector<float> held(static_cast<std::size_t>(tensor.elements()));
        checkpoint.read(name, 0, tensor.elements(), held.data());
        if (std::count(held.begin(), held.end(), value) != tensor.elements())
          return fmt::format("step {} mixes two jobs in {}", step.step, name);
      }
      newest = std::max(newest, step.step);
    } catch (const Error& error) {
      return error.what();
    }
  for (const fs::path& file : said) {
    std::ifstream in(file);
    for (std::int64_t step; in >> step;) promised = std::max(promised, step);
  }
  return newest < promised ? fmt::format("step {} was said to be saved, {} is the newest", promised, newest) : "";
}

struct Outcome {
  int refused = 0, in_turn = 0, taken_over = 0, after_death = 0, failed = 0;
};

// Waits until the process has ended, or optionally until it has stopped.
int status_of(pid_t process, bool or_stopped = false) {
  int status = 0;
  ::waitpid(process, &status, or_stopped ? WUNTRACED : 0);
  return status;
}
int exit_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void one_run(const fs::path& directory, int run, Outcome& outcome) {
  std::mt19937 random(static_cast<unsigned>(run));
  const int signal = run % 4 == 0 ? 0 : run % 4 == 1 ? SIGKILL : SIGSTOP;
  const bool at_once = signal == 0 || random() % 3 == 0;
  const std::vector<fs::path> said{directory.string() + ".a", directory.string() + ".b"};
  const auto begin = [&](std::size_t job, int meets) {
    const auto seed = static_cast<unsigned>(random());
    const pid_t process = ::fork();
    if (process == 0) ::_exit(run_job(directory, said[job], static_cast<int>(job) + 1, meets, seed));
    return process;
  };
  const pid_t first = begin(0, signal);
  pid_t second = at_once ? begin(1, 0) : 0;
  int status = status_of(first, true);
  if (!at_once) second = begin(1, 0);
  if (WIFSTOPPED(status)) {  // while the second is in its saves
    pause_us(static_cast<unsigned>(kPeriod * 1e6) + random() % 300'000);
    ::kill(first, SIGCONT);
    status = status_of(first);
  }
  const int a = exit_of(status), b = exit_of(status_of(second));
  std::string problem = problem_in(directory, said);
  if (a != kSavedAll && b != kSavedAll && signal != SIGKILL)
    problem += fmt::format("; neither job went on ({}, {})", a, b);
  // Nobody is left who could take the directory from the second job.
  const bool alone = signal == SIGKILL && !at_once && WIFSIGNALED(status);
  if (alone && b != kSavedAll && b != kRefused)
    problem += fmt::format("; the first job was dead, and the second did not go on ({})", b);
  if (!problem.empty()) {
    fmt::print(stderr, "run {}: {}\n", run, problem);
    ++outcome.failed;
  }
  const bool refused = a == kRefused || b == kRefused;
  outcome.refused += refused;
  outcome.in_turn += a == kSavedAll && b == kSavedAll;
  outcome.taken_over += !refused && a != b;
  outcome.after_death += alone && b == kSavedAll;
}

TEST(TwoJobs, InTwoHundredRandomInterleavings) {
  const TestFolder folder;
  std::vector<pid_t> controllers;
  for (int c = 0; c < kControllers; ++c) {
    controllers.push_back(::fork());
    if (controllers.back() != 0) continue;
    Outcome outcome;
    for (int run = c; run < kRuns; run += kControllers) one_run(folder / std::to_string(run), run, outcome);
    std::ofstream(folder / fmt::format("outcome-{}", c))
        << outcome.refused << ' ' << outcome.in_turn << ' ' << outcome.taken_over << ' ' << outcome.after_death << ' '
        << outcome.failed;
    ::_exit(0);
  }
  for (const pid_t controller : controllers) EXPECT_EQ(exit_of(status_of(controller)), 0);
  Outcome all;
  for (int c = 0; c < kControllers; ++c) {
    Outcome one;
    std::ifstream(folder / fmt::format("outcome-{}", c)) >> one.refused >> one.in_turn >> one.taken_over >>
        one.after_death >> one.failed;
    all.refused += one.refused, all.in_turn += one.in_turn, all.taken_over += one.taken_over;
    all.after_death += one.after_death, all.failed += one.failed;
  }
  fmt::print(
      "{} runs: the second refused {} times, after the first {} times, in the place of a dead or late one {} "
      "times, of which {} were alone after a death\n",
      kRuns, all.refused, all.in_turn, all.taken_over, all.after_death);
  EXPECT_EQ(all.failed, 0);
  EXPECT_GT(all.refused, 20);
  EXPECT_GT(all.taken_over, 15);
  EXPECT_GT(all.after_death, 5);
}

}  // namespace
}  // namespace molen::checkpoint
