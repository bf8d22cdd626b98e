// Tests the joules of phases: two ranks as threads, a counter whose power depends on what they do, and a clock that the
// test moves.
#include "train/observe/phase_energy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <thread>

#include "base/rng.h"
#include "comm/self/self.h"
#include "comm/threads/threads.h"
#include "program/build/build.h"

namespace molen::train {
namespace {

program::Program phase_program(int stages = 1, int stage = 0) {
  auto a = arch::preset("llama-tiny");
  a.layers = 4;
  a.tied = false;
  program::Setting s;
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.mesh[mesh::Axis::kPp] = stages;
  s.pipeline.stage = stage;
  s.global_batch = 8;
  s.micro_batch = 1;
  s.sequence = 64;
  return program::build(a, s);
}

// Ops one after another, each as long as `seconds_of` says.
template <class SecondsOf>
program::Timeline one_by_one(const std::vector<program::Expanded>& ops, std::int64_t start_ns, SecondsOf&& seconds_of) {
  program::Timeline t;
  t.start_ns = start_ns;
  for (const program::Expanded& op : ops) {
    const double end_s = t.total_s + seconds_of(*op.step);
    t.ops.push_back({t.total_s, end_s});
    t.total_s = end_s;
  }
  return t;
}

std::map<std::string, double> seconds_by_phase(const std::vector<PhaseTime>& times) {
  std::map<std::string, double> seconds;
  for (const PhaseTime& t : times)
    seconds[energy_phases().at(static_cast<std::size_t>(t.phase))] += static_cast<double>(t.end_ns - t.start_ns) * 1e-9;
  return seconds;
}

TEST(PhaseTimes, AddUpToTheOpsOfEachPhase) {
  const program::Program p = phase_program();
  const auto ops = program::expand(p);
  const auto t = one_by_one(ops, 5'000'000'000, [](const program::Step&) { return 0.001; });
  std::vector<PhaseTime> times;
  const std::vector<std::int64_t> of_ops = add_phase_times(ops, t, {}, times);
  std::map<std::string, double> want;
  for (const auto& op : ops) {
    const auto axis = program::axis_of(op.step->op);
    want[std::string(axis ? name_of(program::stream_of(*axis)) : name_of(op.step->phase))] += 0.001;
  }
  ASSERT_GT(want["dp_comm"], 0.0);
  ASSERT_GT(want["backward"], 0.0);
  const auto got = seconds_by_phase(times);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [phase, seconds] : want) EXPECT_NEAR(got.at(phase), seconds, 1e-6) << phase;
  EXPECT_EQ(of_ops, std::vector<std::int64_t>(ops.size(), 1'000'000));
  EXPECT_LT(times.size(), ops.size() / 4) << "ops of one phase that follow each other are one time";
  std::int64_t first = times.front().start_ns;
  for (const PhaseTime& time : times) first = std::min(first, time.start_ns);
  EXPECT_EQ(first, 5'000'000'000);
}

TEST(PhaseTimes, APauseWithinAPhaseEndsItsTime) {
  const program::Program p = phase_program();
  auto ops = program::expand(p);
  ops.erase(std::remove_if(ops.begin(), ops.end(),
                           [](const auto& op) { return op.step->phase != program::Phase::kBackward; }),
            ops.end());
  ops.resize(3);
  ASSERT_EQ(ops[0].step->stream, ops[2].step->stream);
  program::Timeline t;
  t.ops = {{0.0, 1.0}, {1.00009, 2.0}, {2.00011, 3.0}};
  t.total_s = 3.0;
  std::vector<PhaseTime> times;
  add_phase_times(ops, t, {}, times);
  ASSERT_EQ(times.size(), 2U);
  EXPECT_EQ(times[0].end_ns, 2'000'000'000);
  EXPECT_EQ(times[1].start_ns, 2'000'110'000);
}

TEST(PhaseTimes, WhatIsOutsideOfStepsHasItsOwnNames) {
  const auto name = [](OutsideSteps what) {
    return energy_phases().at(static_cast<std::size_t>(energy_phase_of(what)));
  };
  EXPECT_EQ(name(OutsideSteps::kStart), "start");
  EXPECT_EQ(name(OutsideSteps::kValidation), "validation");
  EXPECT_EQ(name(OutsideSteps::kCheckpoint), "checkpoint");
}

constexpr double kLag = 0.05, kBaseWatts = 120.0;
const std::map<std::string, double>& watts_of_phases() {  // of one rank, beside the base
  static const std::map<std::string, double> watts{{"forward", 300}, {"head", 260},      {"backward", 380},
                                                   {"dp_comm", 90},  {"optimizer", 200}, {"checkpoint", 40}};
  return watts;
}

// Energy since time 0 of all times that were given, late by kLag.
class PowerModel {
 public:
  void add(const std::vector<PhaseTime>& times) {
    const std::lock_guard lock(mutex_);
    for (const PhaseTime& t : times) {
      const auto watts = watts_of_phases().find(energy_phases().at(static_cast<std::size_t>(t.phase)));
      if (watts != watts_of_phases().end()) spans_.push_back({t.start_ns * 1e-9, t.end_ns * 1e-9, watts->second});
    }
  }
  double joules(double time_s) const {
    const std::lock_guard lock(mutex_);
    const double at = time_s - kLag;
    double sum = kBaseWatts * std::max(0.0, at);
    for (const Span& s : spans_) sum += s.watts * std::max(0.0, std::min(at, s.end_s) - s.start_s);
    return sum;
  }

 private:
  struct Span {
    double start_s, end_s, watts;
  };
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

class ModelMeter : public energy::Meter {
 public:
  ModelMeter(const PowerModel& model, const std::atomic<std::int64_t>& clock, const std::string& scope = "cpu-package0")
      : Meter({"model", scope, energy::Source::kCounter, "", Seconds(0), true, 1e-3, Seconds(1e-3)}),
        model_(model),
        clock_(clock) {}
  Result<energy::Reading> read() override {
    const auto ticks = static_cast<std::int64_t>(model_.joules(static_cast<double>(clock_) * 1e-9) * 1e3);
    return energy::Reading{Joules(static_cast<double>(ticks) * 1e-3), gaps, ticks};
  }
  std::int64_t gaps = 0;

 private:
  const PowerModel& model_;
  const std::atomic<std::int64_t>& clock_;
};

constexpr Seconds kNoThread{1e9};  // an interval at which the accountant's own thread takes no sample

// Plays the steps of one rank: ops one after another, whose seconds vary from step to step, and a checkpoint now and
// then. The first rank moves the clock and samples the counter.
class Player {
 public:
  // The joules of this rank go to all models. On rank 0, `meters` are opened; elsewhere it is empty. `device_of`: as
  // HostLedger has it.
  Player(comm::Communicator& world, std::vector<PowerModel*> models, std::vector<std::unique_ptr<ModelMeter>> meters,
         std::vector<int> device_of, program::Program program, std::atomic<std::int64_t>& clock)
      : world_(world),
        models_(std::move(models)),
        meters_(std::move(meters)),
        device_of_(std::move(device_of)),
        clock_(clock),
        key_(stream_key(7, "rank" + std::to_string(world.rank()))),
        program_(std::move(program)) {}

  Json play(int steps, const std::function<void(int step, ModelMeter&)>& between = {}) {
    ModelMeter* const meter = meters_.empty() ? nullptr : meters_.front().get();
    std::unique_ptr<energy::Accountant> accountant;
    if (meter) {
      energy::Meters meters;
      for (auto& m : meters_) meters.meters.push_back(std::move(m));
      accountant = std::make_unique<energy::Accountant>(std::move(meters), kNoThread,
                                                        [this] { return static_cast<double>(clock_) * 1e-9; });
    }
    PhaseEnergy phases(world_, device_of_, accountant.get(), 0.0, kNoThread, [this] { return clock_.load(); });
    for (int step = 0; step < steps; ++step) {
      if (between && meter) between(step, *meter);
      one_step(step, phases, accountant.get());
      if (step % 9 == 8) phases.collect();
    }
    phases.collect();
    return booked(phases);
  }

 private:
  // Each call waits for a bounded time and has the gaps since the one before, so a slow machine needs several.
  static Json booked(PhaseEnergy& phases) {
    Json all = phases.accounts();
    for (int i = 0; i < 20; ++i) {
      Json later = phases.accounts();
      for (auto& [name, account] : later.items()) {
        if (!all.contains(name)) continue;
        Json gaps = all[name]["gaps"];
        for (Json& gap : account["gaps"]) gaps.push_back(std::move(gap));
        account["gaps_count"] = gaps.size();
        account["gaps"] = std::move(gaps);
      }
      all = std::move(later);
    }
    return all;
  }

  double draw(double low, double high) { return low + (high - low) * uniform_at(key_, draws_++); }

  void one_step(int step, PhaseEnergy& phases, energy::Accountant* accountant) {
    const std::int64_t start = clock_ + std::llround(draw(0, 0.01) * 1e9);
    std::map<program::Phase, double> scale;
    for (int i = 0; i < program::kNumPhases; ++i) scale[static_cast<program::Phase>(i)] = draw(0.5, 1.5);
    const double comm = draw(0.3, 1.7);
    const auto t = one_by_one(ops_, start, [&](const program::Step& s) {
      return program::is_communication(s.op) ? 0.004 * comm : 0.003 * scale.at(s.phase);
    });
    std::vector<PhaseTime> times;
    add_phase_times(ops_, t, {}, times);
    std::int64_t end = start + std::llround(t.total_s * 1e9);
    phases.add_step(program_, ops_, t);
    if (step % 5 == 4) {
      const std::int64_t saved = end + std::llround(draw(0.1, 0.4) * 1e9);
      phases.add_outside(OutsideSteps::kCheckpoint, end, saved);
      times.push_back({energy_phase_of(OutsideSteps::kCheckpoint), end, saved});
      end = saved;
    }
    end += std::llround(draw(0.02, 0.2) * 1e9);
    for (PowerModel* const model : models_) model->add(times);
    world_.all_reduce(&end, 1, DType::kI64, comm::Reduce::kMax);
    if (accountant)
      while (clock_ < end) {
        clock_ = std::min<std::int64_t>(end, clock_ + std::llround(draw(0.019, 0.023) * 1e9));
        (void)accountant->so_far();  // which takes a sample
      }
    world_.barrier();
  }

  comm::Communicator& world_;
  std::vector<PowerModel*> models_;
  std::vector<std::unique_ptr<ModelMeter>> meters_;
  std::vector<int> device_of_;
  std::atomic<std::int64_t>& clock_;
  std::uint64_t key_, draws_ = 0;
  program::Program program_;
  std::vector<program::Expanded> ops_ = program::expand(program_);
};

// Runs `play(communicator)` on ranks of one host and returns what rank 0 returns.
Json on_ranks(int ranks, const std::function<Json(comm::Communicator&)>& play) {
  comm::ThreadWorld world(ranks);
  Json accounts;
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r, c = std::shared_ptr(world.communicator(r))] {
      Json own = play(*c);
      if (r == 0) accounts = std::move(own);
    });
  threads.clear();
  return accounts;
}

// A package that all ranks share.
Json play_on(int ranks, int steps, const std::function<void(int step, ModelMeter&)>& between = {}) {
  PowerModel model;
  std::atomic<std::int64_t> clock = 0;
  return on_ranks(ranks, [&](comm::Communicator& c) {
    std::vector<std::unique_ptr<ModelMeter>> meters;
    if (c.rank() == 0) meters.push_back(std::make_unique<ModelMeter>(model, clock));
    const std::vector<int> no_gpu(static_cast<std::size_t>(ranks), -1);
    return Player(c, {&model}, std::move(meters), no_gpu, phase_program(), clock).play(steps, between);
  });
}

std::int64_t sum_of_ticks(const Json& account) {
  std::int64_t sum = 0;
  for (const auto& [name, entry] : account["entries"].items()) sum += entry["ticks"].get<std::int64_t>();
  return sum;
}

// The power of each phase follows from one counter that two ranks share, and all entries add up to the counter.
TEST(PhaseEnergy, FindsThePowerOfEachPhaseOfAllRanks) {
  const Json account = play_on(2, 150).at("cpu-package0");
  EXPECT_EQ(account["not_attributed"], "");
  EXPECT_EQ(sum_of_ticks(account), account["ticks"]);
  EXPECT_GT(account["ticks"], 0);
  EXPECT_NEAR(account["lag_s"].get<double>(), kLag, 0.005);
  const double total = account["joules"];
  for (const auto& [phase, watts] : watts_of_phases()) {
    const Json& entry = account["entries"].at(phase);
    const double joules = watts * entry["rank_seconds"].get<double>();
    EXPECT_NEAR(entry["joules"].get<double>(), joules,
                std::max(0.005 * total, 4 * entry["standard_error_j"].get<double>()))
        << phase;
  }
  EXPECT_LT(account["entries"]["unattributed"]["joules"].get<double>(), 0.05 * total);
  EXPECT_EQ(account["gaps_count"], 0);
  // One stage has all but the base; each op of a phase lasted equally long.
  const Json& entries = account["entries"];
  const double left = entries["base"]["joules"].get<double>() + entries["unattributed"]["joules"].get<double>();
  EXPECT_NEAR(account["stages"].at("0").get<double>(), total - left, 1e-9 * total);
  EXPECT_EQ(account["stages"].size(), 1U);
  const Json& optimizer = entries.at("optimizer");
  EXPECT_NEAR(optimizer["ops"].at("optimizer_step").get<double>(), optimizer["joules"].get<double>(), 1e-9 * total);
  const Json& forward = entries.at("forward")["ops"];
  EXPECT_NEAR(forward.at("attention").get<double>(), forward.at("down").get<double>(), 1e-9 * total);
  const Json& layers = account["layers"];
  // Each of these layers has the same ops.
  EXPECT_NEAR(layers.at("layer 1").get<double>(), layers.at("layer 2").get<double>(), 1e-9 * total);
  EXPECT_GT(layers.at("layer 1").get<double>(), 0.05 * total);
}

// Two ranks of one host have a stage and a GPU of their own each. A GPU's joules are those of its stage, and the
// package has both.
TEST(PhaseEnergy, AGpuHasTheStageOfItsRank) {
  PowerModel of_gpus[2], of_both;
  std::atomic<std::int64_t> clock = 0;
  const Json accounts = on_ranks(2, [&](comm::Communicator& c) {
    std::vector<std::unique_ptr<ModelMeter>> meters;
    if (c.rank() == 0) {
      for (const int gpu : {0, 1})
        meters.push_back(std::make_unique<ModelMeter>(of_gpus[gpu], clock, "gpu" + std::to_string(gpu)));
      meters.push_back(std::make_unique<ModelMeter>(of_both, clock));
    }
    return Player(c, {&of_gpus[c.rank()], &of_both}, std::move(meters), {0, 1}, phase_program(2, c.rank()), clock)
        .play(150);
  });
  const auto joules_of_phases = [](const Json& account) {  // all but the base and what no entry explains
    double joules = 0.0;
    for (const auto& [name, entry] : account["entries"].items())
      if (name != ledger::kBase && name != ledger::kUnattributed) joules += entry["joules"].get<double>();
    return joules;
  };
  for (const int gpu : {0, 1}) {
    const Json& account = accounts.at("gpu" + std::to_string(gpu));
    ASSERT_EQ(account["not_attributed"], "");
    ASSERT_EQ(account["stages"].size(), 1U) << account;
    const double joules = joules_of_phases(account);
    EXPECT_GT(joules, 0.0);
    EXPECT_NEAR(account["stages"].at(std::to_string(gpu)).get<double>(), joules, 1e-9 * joules);
    EXPECT_EQ(account["layers"].contains("embed"), gpu == 0) << account["layers"];
  }
  const Json& both = accounts.at("cpu-package0");
  ASSERT_EQ(both["stages"].size(), 2U) << both;
  const double joules = joules_of_phases(both);
  EXPECT_NEAR(both["stages"]["0"].get<double>() + both["stages"]["1"].get<double>(), joules, 1e-9 * joules);
  EXPECT_TRUE(both["layers"].contains("embed") && both["layers"].contains("layer 3"));
}

// What a counter lost is a gap with its reason, and no phase gets it.
TEST(PhaseEnergy, ReportsWhatTheCounterLost) {
  const Json account =
      play_on(1, 30, [](int step, ModelMeter& meter) { meter.gaps = step >= 20 ? 1 : 0; }).at("cpu-package0");
  ASSERT_EQ(account["gaps_count"], 1);
  EXPECT_EQ(account["gaps"][0]["reason"], "the meter says that the counter restarted");
  EXPECT_TRUE(account["gaps"][0]["joules"].is_null());
  EXPECT_EQ(sum_of_ticks(account), account["ticks"]);
}

TEST(PhaseEnergy, IsDueAfterTenSeconds) {
  std::atomic<std::int64_t> clock = 0;
  const auto self = comm::make_self();
  PhaseEnergy phases(*self, {-1}, nullptr, 0.0, kNoThread, [&] { return clock.load(); });
  clock = 9'900'000'000;
  EXPECT_FALSE(phases.due());
  clock = 10'100'000'000;
  EXPECT_TRUE(phases.due());
  phases.collect();
  EXPECT_FALSE(phases.due());
  for (int i = 0; i < 70'000; ++i) phases.add_outside(OutsideSteps::kValidation, clock, clock + 1);
  EXPECT_TRUE(phases.due()) << "as well when times become many";
}

Json account_of(double per_tick, const std::map<std::string, std::pair<std::int64_t, double>>& entries) {
  Json account{{"joules", 0.0},
               {"ticks", 0},
               {"joules_per_tick", per_tick},
               {"entries", Json::object()},
               {"lag_s", 0.05},
               {"scaled_by", 1.0},
               {"changes", 500},
               {"not_attributed", ""},
               {"gaps_count", 1},
               {"gaps", {{{"start_s", 1.0}, {"end_s", 2.0}, {"joules", nullptr}, {"reason", "lost"}}}}};
  for (const auto& [name, entry] : entries) {
    account["ticks"] = account["ticks"].get<std::int64_t>() + entry.first;
    account["entries"][name] = {{"joules", static_cast<double>(entry.first) * per_tick},
                                {"ticks", entry.first},
                                {"standard_error_j", name == "unattributed" ? Json() : Json(entry.second)},
                                {"rank_seconds", 2.0}};
  }
  account["joules"] = static_cast<double>(account["ticks"].get<std::int64_t>()) * per_tick;
  return account;
}

TEST(SumOfAccounts, AddsHostsEntryByEntry) {
  Json second = account_of(0.5, {{"forward", {20, 4.0}}, {"base+start", {6, 1.0}}, {"unattributed", {0, 0.0}}});
  second["lag_s"] = 0.07, second["scaled_by"] = 0.9, second["not_attributed"] = "too few";
  second["entries"]["forward"]["note"] = "alike";
  Json first = account_of(0.5, {{"forward", {10, 3.0}}, {"unattributed", {2, 0.0}}});
  first["entries"]["forward"]["ops"] = {{"attention", 5.0}};
  first["layers"] = {{"layer 0", 3.0}}, first["stages"] = {{"0", 3.0}};
  second["entries"]["forward"]["ops"] = {{"attention", 6.0}, {"down", 2.0}};
  second["layers"] = {{"layer 1", 4.0}}, second["stages"] = {{"1", 4.0}};
  const Json sum = sum_of_accounts(
      {{"a", {{"gpu0", first}}}, {"b", {{"gpu0", second}, {"dram0", account_of(0.1, {{"unattributed", {5, 0.0}}})}}}});
  const Json& gpu = sum["gpu0"];
  EXPECT_EQ(gpu["hosts"], 2);
  EXPECT_EQ(gpu["ticks"], 38);
  EXPECT_EQ(sum_of_ticks(gpu), 38);
  EXPECT_EQ(gpu["joules"], 19.0);
  EXPECT_EQ(gpu["joules_per_tick"], 0.5);
  EXPECT_EQ(gpu["entries"]["forward"]["joules"], 15.0);
  EXPECT_EQ(gpu["entries"]["forward"]["standard_error_j"], 5.0);
  EXPECT_EQ(gpu["entries"]["forward"]["rank_seconds"], 4.0);
  EXPECT_EQ(gpu["entries"]["forward"]["note"], "alike (some hosts)");
  EXPECT_EQ(gpu["entries"]["base+start"]["ticks"], 6);
  EXPECT_TRUE(gpu["entries"]["unattributed"]["standard_error_j"].is_null());
  EXPECT_EQ(gpu["gaps"].size(), 2U);
  EXPECT_EQ(gpu["gaps"][1]["host"], "b");
  EXPECT_EQ(gpu["gaps_count"], 2);
  EXPECT_EQ(gpu["lag_s"], Json::array({0.05, 0.07}));
  EXPECT_EQ(gpu["scaled_by"], 0.9);
  EXPECT_EQ(gpu["not_attributed"], (Json{{"b", "too few"}}));
  EXPECT_EQ(sum["dram0"]["hosts"], 1);
  EXPECT_EQ(gpu["entries"]["forward"]["ops"], (Json{{"attention", 11.0}, {"down", 2.0}}));
  EXPECT_EQ(gpu["layers"], (Json{{"layer 0", 3.0}, {"layer 1", 4.0}}));
  EXPECT_EQ(gpu["stages"], (Json{{"0", 3.0}, {"1", 4.0}}));
  EXPECT_EQ(phase_line(sum, {"gpu0"}), "forward 78.9%, base+start 15.8%, unattributed 5.3% of 19 J");
  EXPECT_EQ(phase_line(sum, {"gpu0", "dram0"}), "forward 76.9%, base+start 15.4%, unattributed 7.7% of 19.5 J");
  EXPECT_EQ(phase_line(sum, {"cpu-package0"}), "");
}

// Hosts whose counters have ticks of different sizes have joules in common, but no ticks.
TEST(SumOfAccounts, NamesNoTickWhereHostsDiffer) {
  const Json sum = sum_of_accounts({{"a", {{"gpu0", account_of(0.5, {{"unattributed", {2, 0.0}}})}}},
                                    {"b", {{"gpu0", account_of(0.25, {{"unattributed", {2, 0.0}}})}}}});
  EXPECT_TRUE(sum["gpu0"]["joules_per_tick"].is_null());
  EXPECT_EQ(sum["gpu0"]["joules"], 1.5);
}

}  // namespace
}  // namespace molen::train
