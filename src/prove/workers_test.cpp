// Tests the threads that run a program's streams. They serve all steps of an executor, also after a step that failed.
#include "exec/workers.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Program;
using program::Stream;

// Records which threads run the ops of each stream.
class ThreadsOfStreams final : public exec::Observer {
 public:
  void begin(Stream stream, std::size_t, std::int64_t) noexcept override {
    const std::lock_guard lock(mutex_);
    threads_[stream].insert(std::this_thread::get_id());
  }
  void end(Stream, std::size_t, std::int64_t) noexcept override {}
  std::map<Stream, std::set<std::thread::id>> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(threads_, {});
  }

 private:
  std::mutex mutex_;
  std::map<Stream, std::set<std::thread::id>> threads_;
};

exec::StepInput samples_of(const Program& p) {
  exec::StepInput input;
  input.optimizer.lr = 1e-3;
  input.load = [&p, read = synthetic_samples(p.setting, p.arch.vocabulary)](const exec::MicroBatch& to) {
    return read(0, p.setting.micro_batch, to);
  };
  return input;
}

Program on_the_host() {
  return program::build(llama(false), setting_of(on_host(kAll, {1, 0, false, 6}), DType::kF32));
}

TEST(Workers, ServeAllSteps) {
  for (const Program& p : {on_the_host(), program::build(llama(false), setting_of({2, 3, false, 6}, DType::kF32))})
    on_ranks(p.setting.ranks(), [&](comm::Communicator& world) {
      ThreadsOfStreams seen;
      exec::Options options;
      options.observer = &seen;
      exec::Executor executor(p, world.rank(), &world, options);
      launch::initialize_parameters(executor, 1, 1);
      executor.run(samples_of(p));
      const auto first = seen.take();
      std::set<std::thread::id> all;
      for (const auto& [stream, threads] : first) {
        EXPECT_EQ(threads.size(), 1U) << program::name_of(stream);
        all.insert(threads.begin(), threads.end());
      }
      EXPECT_GE(first.size(), 2U);
      EXPECT_EQ(all.size(), first.size()) << "each stream has a thread of its own";
      EXPECT_EQ(*first.at(Stream::kCompute).begin(), std::this_thread::get_id());
      for (int step = 0; step < 3; ++step) {
        executor.run(samples_of(p));
        EXPECT_EQ(seen.take(), first);
      }
    });
}

// The first op of a stream fails in the first step. The error names the op. Afterwards the executor gives the results
// of a run without a failure, on the same threads.
TEST(Workers, AnOpThatFailsEndsItsStepAlone) {
  const Program p = on_the_host();
  exec::Executor whole(p, 0, nullptr, {});
  launch::initialize_parameters(whole, 1, 1);
  const double loss = whole.run(samples_of(p)).loss_sum;
  for (const Stream fails : {Stream::kCompute, Stream::kToHost, Stream::kToDevice, Stream::kHost}) {
    SCOPED_TRACE(program::name_of(fails));
    bool armed = true;  // written while no step runs
    ThreadsOfStreams seen;
    exec::Options options;
    options.observer = &seen;
    options.sleep = [&](const program::Step& step) -> std::optional<double> {
      if (armed && step.stream == fails) throw Error("it has failed");
      return std::nullopt;
    };
    exec::Executor executor(p, 0, nullptr, options);
    launch::initialize_parameters(executor, 1, 1);
    std::string text;
    try {
      executor.run(samples_of(p));
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_NE(text.find("it has failed\n  in op %"), std::string::npos) << "but: " << text;
    const auto first = seen.take();
    armed = false;
    EXPECT_EQ(executor.run(samples_of(p)).loss_sum, loss);
    for (const auto& [stream, threads] : seen.take())
      if (const auto before = first.find(stream); before != first.end()) {
        EXPECT_EQ(threads, before->second) << program::name_of(stream);
      }
  }
}

// An executor may be destroyed after a failed step, and without a step.
TEST(Workers, EndWithTheirExecutor) {
  const Program p = on_the_host();
  { const exec::Executor idle(p, 0, nullptr, {}); }
  exec::Options options;
  options.sleep = [](const program::Step& step) -> std::optional<double> {
    if (step.stream == Stream::kHost) throw Error("it has failed");
    return 0.0;
  };
  exec::Executor executor(p, 0, nullptr, options);
  EXPECT_THROW(executor.run(samples_of(p)), Error);
}

// Each side reads what the other side wrote between two calls, so that a data race would show under ThreadSanitizer.
TEST(Workers, SeeWhatTheCallerWrote) {
  constexpr int kSteps = 2000;
  std::array<int, program::kNumStreams> seen{};
  std::array<int, program::kNumStreams> prepared{};
  exec::Workers workers({Stream::kToHost, Stream::kToDevice},
                        [&](Stream stream) { ++prepared[static_cast<std::size_t>(stream)]; });
  int step = 0, caller = 0;
  for (step = 1; step <= kSteps; ++step) {
    workers.run([&](Stream stream) { seen[static_cast<std::size_t>(stream)] += step; }, [&] { caller += step; });
    const int sum = step * (step + 1) / 2;
    ASSERT_EQ(caller, sum);
    for (const Stream stream : {Stream::kToHost, Stream::kToDevice}) {
      ASSERT_EQ(seen[static_cast<std::size_t>(stream)], sum);
      ASSERT_EQ(prepared[static_cast<std::size_t>(stream)], 1);
    }
  }
}

}  // namespace
}  // namespace molen::prove
