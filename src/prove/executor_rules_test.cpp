// Rules of the executor that no comparison of layouts sees, because both sides of such a comparison would break them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "program/memory/memory.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

exec::StepInput counting_up(const program::Program& p, bool counted = true) {
  exec::StepInput input;
  input.optimizer.lr = 1e-2;
  input.load = [&p, counted](const exec::MicroBatch& to) {
    const std::int64_t n = p.setting.micro_batch * p.setting.sequence;
    for (std::int64_t i = 0; i < n; ++i) {
      to.ids[i] = static_cast<std::int32_t>(i % p.arch.vocabulary);
      to.labels[i] = counted ? static_cast<std::int32_t>((i + 1) % p.arch.vocabulary) : -1;
    }
    return counted ? n : 0;
  };
  return input;
}

// Many tests run with Options::poison_dead and compare results. They prove something only if dead buffers are filled.
TEST(DeadBuffers, AreFilled) {
  const auto p = program::build(llama(false), setting_of(1, 0, false, DType::kF32));
  const auto filled = [&](bool poison) {
    exec::Executor executor(p, 0, nullptr, {at::kCPU, poison});
    launch::initialize_parameters(executor, 1, 2);
    executor.run(counting_up(p));
    const auto arena = executor.arena();
    std::size_t found = 0, all = 0;
    for (std::size_t b = 0; b < p.buffers.size(); ++b) {
      if (!program::packed(p.buffers[b])) continue;
      const auto bytes = arena.subspan(static_cast<std::size_t>(executor.memory().buffer_offset[b]),
                                       static_cast<std::size_t>(p.buffers[b].bytes().value));
      ++all;
      found += std::ranges::all_of(bytes, [](std::byte x) { return x == std::byte{0xff}; });
    }
    EXPECT_GT(all, 10u);
    return static_cast<double>(found) / static_cast<double>(all);
  };
  EXPECT_EQ(filled(false), 0.0);
  EXPECT_GT(filled(true), 0.5);  // values that live longer, or were written later, are in the place of the others
}

// One rank leaves out the last gather of parameters and waits for all ranks elsewhere. The streams of tensor ranks have
// ended by then, so the threads of those streams no longer count as threads that could still call.
TEST(Deadlocks, AreReportedAfterSomeStreamsHaveEnded) {
  Layout l{2, 1};
  l.tensor = 2;
  const auto whole = program::build(llama(false), setting_of(l, DType::kF32));
  program::Program lacking = whole;
  auto& steps = lacking.bodies.back().steps;
  const auto last = std::find_if(steps.rbegin(), steps.rend(), [](const program::Step& step) {
    return std::holds_alternative<program::AllGather>(step.op) && program::axis_of(step.op) == program::Axis::kDp;
  });
  ASSERT_NE(last, steps.rend());
  const int index = static_cast<int>(steps.rend() - last) - 1;
  for (const auto& step : steps)
    for (const auto& ref : step.after) ASSERT_NE(ref.op, index) << "another op waits for the gather";
  ASSERT_EQ(index, static_cast<int>(steps.size()) - 1);
  steps.pop_back();
  std::string said;
  try {
    on_ranks(4, [&](comm::Communicator& world) {
      const auto& p = world.rank() == 3 ? lacking : whole;
      exec::Executor executor(p, world.rank(), &world, {});
      launch::initialize_parameters(executor, 1, 1);
      executor.run(counting_up(p));
      world.barrier();
    });
  } catch (const Error& error) {
    said = error.what();
  }
  EXPECT_NE(said.find("wait"), std::string::npos) << said;
}

// Returns the program with ops that set clocks: before instance k, one of k + 1 MHz.
program::Program with_clocks(program::Program p) {
  std::vector<program::Instance> schedule;
  for (std::size_t k = 0; k < p.schedule.size(); ++k) {
    program::Step step;
    step.op = program::SetClock{1000 * (static_cast<std::int64_t>(k) + 1)};
    step.stream = program::Stream::kCompute;
    p.bodies.push_back({"clock" + std::to_string(k), {step}});
    schedule.push_back({static_cast<int>(p.bodies.size()) - 1, -1});
    schedule.push_back(p.schedule[k]);
  }
  p.schedule = std::move(schedule);
  return p;
}

TEST(SetClocks, RunInTheOrderOfTheProgramAndChangeNoBit) {
  auto s = setting_of(1, 0, false, DType::kF32);
  s.global_batch = 4 * s.micro_batch;
  const auto plain = program::build(llama(false), s);
  const auto clocked = with_clocks(plain);
  ASSERT_TRUE(program::verify(clocked).empty());
  std::vector<std::int64_t> called, wanted;
  std::vector<std::size_t> begun;  // by call: the ops that had begun
  struct Count : exec::Observer {
    std::size_t ops = 0;
    void begin(program::Stream, std::size_t, std::int64_t) noexcept override { ++ops; }
    void end(program::Stream, std::size_t, std::int64_t) noexcept override {}
  } count;
  exec::Options options;
  options.observer = &count;
  options.set_clock = [&](std::int64_t khz) {
    called.push_back(khz);
    begun.push_back(count.ops);
  };
  exec::Executor with(clocked, 0, nullptr, options), without(plain, 0, nullptr, {});
  launch::initialize_parameters(with, 1, 1);
  launch::initialize_parameters(without, 1, 1);
  for (int i = 0; i < 2; ++i) {
    const auto a = with.run(counting_up(clocked)), b = without.run(counting_up(plain));
    EXPECT_EQ(a.loss_sum, b.loss_sum);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
    for (std::size_t k = 0; k < plain.schedule.size(); ++k) wanted.push_back(1000 * (static_cast<std::int64_t>(k) + 1));
  }
  EXPECT_GT(plain.schedule.size(), 4u);
  EXPECT_EQ(called, wanted);
  for (std::size_t k = 1; k < plain.schedule.size(); ++k)
    EXPECT_EQ(begun[k] - begun[k - 1],
              plain.bodies[static_cast<std::size_t>(plain.schedule[k - 1].body)].steps.size() + 1);
  for (std::size_t u = 0; u < plain.units.size(); ++u)
    EXPECT_TRUE(with.state("param", static_cast<int>(u)).equal(without.state("param", static_cast<int>(u))));
}

TEST(SetClocks, AreRefusedWhereNothingSetsThem) {
  const auto p = with_clocks(program::build(llama(false), setting_of(1, 0, false, DType::kF32)));
  try {
    const exec::Executor executor(p, 0, nullptr, {});
    FAIL() << "nothing was refused";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("kHz"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("leave set_clock out"), std::string::npos) << error.what();
  }
}

TEST(SetClocks, AFailureEndsTheStepAndNamesTheOp) {
  const auto p = with_clocks(program::build(llama(false), setting_of(1, 0, false, DType::kF32)));
  exec::Options options;
  options.set_clock = [](std::int64_t khz) {
    if (khz == 2000) throw Error("the device refuses");
  };
  exec::Executor executor(p, 0, nullptr, options);
  launch::initialize_parameters(executor, 1, 1);
  try {
    executor.run(counting_up(p));
    FAIL() << "the step went on";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the device refuses"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("set_clock"), std::string::npos);
  }
}

TEST(EmptySteps, UpdateNothing) {
  const auto p = program::build(llama(false), setting_of(1, 0, false, DType::kF32));
  exec::Executor executor(p, 0, nullptr, {});
  launch::initialize_parameters(executor, 1, 1);
  std::vector<at::Tensor> before;
  for (std::size_t u = 0; u < p.units.size(); ++u)
    before.push_back(executor.state("param", static_cast<int>(u)).clone());
  const auto result = executor.run(counting_up(p, false));
  EXPECT_TRUE(result.non_finite) << "a mean over no tokens is not a number";
  EXPECT_EQ(result.valid_tokens, 0.0);
  for (std::size_t u = 0; u < p.units.size(); ++u)
    EXPECT_TRUE(executor.state("param", static_cast<int>(u)).equal(before[u])) << p.units[u].name;
}

// A step without the update leaves every state of every rank as it is, and its norm is that of the step.
TEST(StepsWithoutUpdate, ChangeNoState) {
  auto sparse = mixtral();
  sparse.experts->scores = arch::RouterScores::kSigmoid;
  sparse.experts->z_loss = 0.0;
  sparse.experts->bias_rate = 0.25;
  const std::vector<std::pair<arch::Architecture, Layout>> cases{
      {sparse, {1, 0}}, {llama(false), {2, 3}}, {llama(false), over_two_stages({2, 1}, program::ScheduleKind::k1f1b)}};
  for (const auto& [a, layout] : cases) {
    const auto stages = program::build_stages(a, setting_of(layout, DType::kF32));
    on_ranks(layout.ranks(), [&](comm::Communicator& world) {
      const auto& p =
          stages[static_cast<std::size_t>(program::at_rank(stages.front().setting, world.rank()).pipeline.stage)];
      at::set_num_threads(p.setting.threads);
      exec::Executor probed(p, world.rank(), &world, {}), plain(p, world.rank(), &world, {});
      for (exec::Executor* executor : {&probed, &plain}) launch::initialize_parameters(*executor, 1, 1);
      for (int step = 0; step < 2; ++step) {
        const std::string before = launch::state_hash(probed, world);
        exec::StepInput without = counting_up(p);
        without.update = false;
        const auto first = probed.run(without);
        EXPECT_FALSE(first.non_finite);
        EXPECT_EQ(launch::state_hash(probed, world), before);
        const auto second = probed.run(counting_up(p)), other = plain.run(counting_up(p));
        EXPECT_EQ(first.grad_norm, second.grad_norm);
        EXPECT_EQ(second.loss_sum, other.loss_sum);
        EXPECT_EQ(second.grad_norm, other.grad_norm);
        EXPECT_NE(launch::state_hash(probed, world), before);
        EXPECT_EQ(launch::state_hash(probed, world), launch::state_hash(plain, world));
      }
    });
  }
}

// The forward reads the rounded master weights. This also holds for the biases of routers, which no optimizer updates.
TEST(RoundedWeights, AreThoseOfTheMaster) {
  auto a = mixtral();
  a.experts->scores = arch::RouterScores::kSigmoid;
  a.experts->z_loss = 0.0;
  a.experts->bias_rate = 0.25;
  program::Setting s = setting_of(1, 0, false, DType::kF32);
  s.compute = DType::kBF16;
  s.kernels = arch::Kernels::kAten;
  at::set_num_threads(s.threads);  // for which the scratch of the products of experts is planned
  const auto p = program::build(a, s);
  exec::Executor executor(p, 0, nullptr, {});
  launch::initialize_parameters(executor, 1, 1);
  executor.run(counting_up(p));
  int moved = 0;
  for (std::size_t u = 0; u < p.units.size(); ++u) {
    const at::Tensor weights = executor.state("param", static_cast<int>(u)),
                     master = executor.state("master", static_cast<int>(u));
    EXPECT_TRUE(weights.equal(master.to(at::kBFloat16))) << p.units[u].name;
    for (const auto& entry : p.units[u].entries) {
      const auto& parameter = p.parameters[static_cast<std::size_t>(entry.parameter)];
      if (arch::moved_by_load(parameter.role))
        moved += weights.narrow(0, entry.offset, parameter.elements()).count_nonzero().item<std::int64_t>() > 0;
    }
  }
  EXPECT_EQ(moved, p.arch.sparse_layers());
}

}  // namespace
}  // namespace molen::prove
