// Tests a thread-rank that hangs in an op: its process ends with status 1 and a report that names the rank, the op and
// what the other rank waits in. The same ranks without a hang end normally, within the same limit. usage:
// flight_threads
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "base/clock.h"
#include "base/file.h"
#include "launch/world.h"
#include "prove/layouts_suite.h"
#include "train/observe/flight_recorder.h"

namespace molen::train {
namespace {

constexpr double kLimit = 2.0;  // seconds, of train.hang_timeout
constexpr std::int64_t kHangStep = 4;

// Counts steps for the recorder, and hangs when it is told to.
class Hanging final : public exec::Observer {
 public:
  Hanging(FlightRecorder& recorder, bool hangs) : recorder_(recorder), hangs_(hangs) {}
  void begin(program::Stream stream, std::size_t op, std::int64_t ns) noexcept override {
    if (op == 0) {
      if (step_ > 0) recorder_.step_took(0.001);
      recorder_.phase(store::FlightPhase::kTrain, ++step_);
    }
    recorder_.begin(stream, op, ns);
    if (hangs_ && stream == program::Stream::kCompute && op == 5 && step_ == kHangStep)
      for (;;) ::pause();
  }
  void end(program::Stream stream, std::size_t op, std::int64_t ns) noexcept override { recorder_.end(stream, op, ns); }

 private:
  FlightRecorder& recorder_;
  bool hangs_;
  std::int64_t step_ = 0;
};

int run(const fs::path& runs, bool hangs) {
  Job job;
  job.arch = prove::suite::llama(false);
  job.setting = prove::suite::setting_of(2, 1, false, DType::kF32);
  job.program = program::build(job.arch, job.setting);
  job.config.run.dir = runs.string();
  job.config.run.name = hangs ? "hangs" : "well";
  job.config.train.hang_timeout = Seconds(kLimit);
  launch::run_ranks(launch::launch_threads(2), [&](comm::Communicator& world) {
    FlightRecorder recorder;
    recorder.open(job, 1, world);
    Hanging observer(recorder, hangs && world.rank() == 1);
    prove::Trial trial;
    trial.steps = 10;
    trial.options.observer = &observer;
    prove::prove(job.program, world, prove::synthetic_samples(job.setting, job.arch.vocabulary), trial);
    recorder.phase(store::FlightPhase::kFinish, trial.steps);
  });
  return 0;
}

// Returns the exit code of a separate process; -1 when the process does not end in time.
int in_process(const fs::path& runs, bool hangs, double seconds) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    try {
      ::_exit(run(runs, hangs));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(7);
    }
  }
  const double end = now().value + seconds;
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (now().value > end) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      return -1;
    }
    ::usleep(10'000);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
}

int failures = 0;
void check(bool condition, const char* what, const std::string& detail) {
  std::printf("%s  %s%s%s\n", condition ? "ok" : "FAILED", what, condition ? "" : ": ",
              condition ? "" : detail.c_str());
  if (!condition) ++failures;
}

int test() {
  const fs::path runs = fs::temp_directory_path() / fmt::format("molen_flight_threads_{}", ::getpid());
  const int well = in_process(runs, false, 60);
  check(well == 0, "ranks that do not hang end by themselves", std::to_string(well));
  check(!fs::exists(runs / "well/flight/report-1.txt"), "and write no report", "");
  const double start = now().value;
  const int hung = in_process(runs, true, 60);
  const double took = now().value - start;
  check(hung == 1, "a hung thread-rank ends the process with 1", std::to_string(hung));
  check(took < kLimit + 10, "in time", fmt::format("{} s", took));
  const fs::path report = runs / "hangs/flight/report-1.txt";
  const std::string text = fs::exists(report) ? read_file(report) : "";
  check(text.find("rank 1 (") < text.find("hung: op 5 (") && text.find("hung: op 5 (") != std::string::npos,
        "the report names the rank and the op", text);
  check(text.find("of step 4; rank 0 waits in op ") != std::string::npos, "the step and who waits", text);
  check(text.find("<-- here") != std::string::npos, "with its place in the program", text);
  fs::remove_all(runs);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace molen::train

int main() {
  return molen::train::test();
}
