// Two jobs, each a process, start on one directory of checkpoints at nearly the same time; one may be killed, or stand
// still for longer than its lease holds and then go on. One runs and the other is refused, or comes after it; no
// checkpoint mixes what the two wrote, and none is lost that was said to be saved.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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
enum Exit { kSavedAll = 0, kRefused = 3, kFenced = 4 };
enum class Fate { kLives, kKilled, kStandsStill };

void pause_us(unsigned us) {
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

// An owner on another machine: whether its process lives is seen by its renewals alone.
store::LeaseOptions options_of(int job, double period_s) {
  store::LeaseOptions options;
  options.period_s = period_s;
  options.owner.host = fmt::format("node{}", job);
  options.owner.boot = "another";
  return options;
}

// What a job does with the directory; it writes a line to `said` for each checkpoint that it takes for saved.
int run_job(const fs::path& directory, const fs::path& said, int job, double period_s, unsigned seed) {
  std::mt19937 random(seed);
  UnsyncedFileSystem unsynced;
  const FileSystemOverride instead(unsynced);
  pause_us(random() % 4000);
  try {
    const store::Lease lease(directory, options_of(job, period_s));
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
  } catch (const Error&) {  // its own directory was taken from it
    return kFenced;
  }
}

// "": every checkpoint is one job's, and the newest is not older than what was said to be saved.
std::string problem_in(const fs::path& directory, const std::vector<fs::path>& said) {
  std::int64_t newest = 0, promised = 0;
  for (const Step& step : steps_in(directory)) {
    const Checkpoint checkpoint(step.path);
    const auto value = checkpoint.state().at("value").get<float>();
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      std::vector<float> held(static_cast<std::size_t>(tensor.elements()));
      checkpoint.read(name, 0, tensor.elements(), held.data());
      if (std::count(held.begin(), held.end(), value) != tensor.elements())
        return fmt::format("step {} mixes two jobs in {}", step.step, name);
    }
    newest = std::max(newest, step.step);
  }
  for (const fs::path& file : said) {
    std::ifstream in(file);
    for (std::int64_t step; in >> step;) promised = std::max(promised, step);
  }
  return newest < promised ? fmt::format("step {} was said to be saved, {} is the newest", promised, newest) : "";
}

struct Outcome {
  int refused = 0, in_turn = 0, taken_over = 0, failed = 0;
};

int exit_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void one_run(const fs::path& directory, int run, Outcome& outcome) {
  std::mt19937 random(static_cast<unsigned>(run));
  const Fate fate = run % 2 == 0 ? Fate::kLives : run % 4 == 1 ? Fate::kKilled : Fate::kStandsStill;
  constexpr double period_s = 0.4;
  const std::vector<fs::path> said{directory.string() + ".a", directory.string() + ".b"};
  std::vector<pid_t> jobs;
  for (int job = 0; job < 2; ++job) {
    const unsigned seed = static_cast<unsigned>(random());
    jobs.push_back(::fork());
    if (jobs.back() == 0) ::_exit(run_job(directory, said[static_cast<std::size_t>(job)], job + 1, period_s, seed));
  }
  // Either may be the one that holds the lease.
  const pid_t victim = jobs[random() % 2];
  if (fate != Fate::kLives) {
    pause_us(random() % 100'000);
    ::kill(victim, fate == Fate::kKilled ? SIGKILL : SIGSTOP);
    if (fate == Fate::kStandsStill) {
      pause_us(900'000);
      ::kill(victim, SIGCONT);
    }
  }
  const int a = exit_of(jobs[0]), b = exit_of(jobs[1]);
  std::string problem = problem_in(directory, said);
  const bool lives = a == kSavedAll || b == kSavedAll;
  if (!lives && fate != Fate::kKilled) problem += fmt::format("; neither job went on ({}, {})", a, b);
  if (!problem.empty()) {
    fmt::print(stderr, "run {}: {}\n", run, problem);
    ++outcome.failed;
  }
  const bool refused = a == kRefused || b == kRefused;
  outcome.refused += refused;
  outcome.in_turn += a == kSavedAll && b == kSavedAll;
  outcome.taken_over += !refused && a != b;
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
        << outcome.refused << ' ' << outcome.in_turn << ' ' << outcome.taken_over << ' ' << outcome.failed;
    ::_exit(0);
  }
  for (const pid_t controller : controllers) EXPECT_EQ(exit_of(controller), 0);
  Outcome all;
  for (int c = 0; c < kControllers; ++c) {
    Outcome one;
    std::ifstream(folder / fmt::format("outcome-{}", c)) >> one.refused >> one.in_turn >> one.taken_over >> one.failed;
    all.refused += one.refused, all.in_turn += one.in_turn, all.taken_over += one.taken_over, all.failed += one.failed;
  }
  fmt::print("{} runs: the second refused {} times, after the first {} times, in the place of a dead or late one {}\n",
             kRuns, all.refused, all.in_turn, all.taken_over);
  EXPECT_EQ(all.failed, 0);
  EXPECT_GT(all.refused, 40);
  EXPECT_GT(all.taken_over, 10);
}

}  // namespace
}  // namespace molen::checkpoint
