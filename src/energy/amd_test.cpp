#include "energy/amd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "energy/accountant.h"
#include "energy/coverage.h"
#include "energy/open.h"
#include "energy/test_machine.h"
#include "energy/visible.h"

namespace molen::energy {
namespace {

// The size of a version's table and the places of its members, in bytes, by the kernel's header.
struct Version {
  int content;
  std::size_t size, watts, ticks, time;
};
constexpr Version kVersions[] = {
    {1, 96, 22, 24, 32},  {2, 104, 22, 24, 32},  {3, 120, 22, 24, 32},  {4, 288, 10, 24, 32},  {5, 352, 10, 88, 96},
    {6, 384, 10, 88, 96}, {6, 1664, 10, 16, 24}, {7, 2208, 10, 24, 32}, {8, 2208, 10, 24, 32},
};
constexpr Version kMi250 = kVersions[2], kMi300 = kVersions[3];

std::string table_of(const Version& v, std::uint64_t ticks, int watts, std::uint64_t time_ns) {
  std::string table(v.size, '\xff');
  const auto put = [&](std::size_t at, auto value) { std::memcpy(table.data() + at, &value, sizeof value); };
  put(0, static_cast<std::uint16_t>(v.size));
  table[2] = 1, table[3] = static_cast<char>(v.content);
  put(v.watts, static_cast<std::uint16_t>(watts));
  put(v.ticks, ticks);
  put(v.time, time_ns);
  return table;
}

// A node with GPUs, each of which takes a constant power. Node 0 of the topology is a processor.
class AmdNode : public FakeMachine {
 public:
  struct Device {
    double watts = 0.0;
    double shown = -1.0;  // watts as the table shows them, if not the same
    std::string model = "0x74a1";
    Version version = kMi300;
    double joules = 1000.0;
    bool processor = false;
  };

  explicit AmdNode(std::vector<Device> devices) : devices(std::move(devices)) {
    write("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n");
    write("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\n");
    for (std::size_t i = 0; i < this->devices.size(); ++i) {
      const std::string kfd = fmt::format("sys/class/kfd/kfd/topology/nodes/{}", i + 1);
      write(kfd + "/gpu_id", fmt::format("{}\n", 4000 + i));
      write(kfd + "/properties",
            fmt::format("cpu_cores_count {}\nlocation_id {}\ndomain 0\ndrm_render_minor {}\nunique_id {}\n",
                        this->devices[i].processor ? 8 : 0, 256 * (i + 1), 128 + i, 0xab00 + i));
      write(drm(i) + "/device", this->devices[i].model + "\n");
    }
    show();
    tick = [this] { go(0.0); };
  }

  static std::string drm(std::size_t i) { return fmt::format("sys/class/drm/renderD{}/device", 128 + i); }
  void show() {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const Device& d = devices[i];
      const bool second = d.model == "0x7408" && d.watts == 0.0;  // of a module: the driver shows zeros
      write(drm(i) + "/gpu_metrics",
            table_of(d.version, second ? 0 : static_cast<std::uint64_t>(d.joules * 65536.0),
                     static_cast<int>(d.shown < 0.0 ? d.watts : d.shown), static_cast<std::uint64_t>(time * 1e9)));
    }
  }
  void go(double seconds) {
    time += seconds;
    for (Device& d : devices) d.joules += d.watts * (time - shown_s_);
    shown_s_ = time;
    show();
  }
  OpenOptions options() const {
    OpenOptions o;
    o.machine = machine;
    o.nvml.library = "libno-such-library.so.1";
    return o;
  }

  std::vector<Device> devices;

 private:
  double shown_s_ = time;
};

std::string scopes_of(const Meters& m) {
  std::string text;
  for (const auto& meter : m.meters) text += meter->info().scope + " ";
  return text;
}

TEST(GpuMetrics, EachVersionHasItsPlaces) {
  for (const Version& v : kVersions) {
    const auto m = parse_gpu_metrics(table_of(v, 123456789012, 305, 77));
    ASSERT_TRUE(m.ok()) << v.content << m.reason();
    EXPECT_EQ(m.value().ticks, 123456789012u) << v.content;
    EXPECT_EQ(m.value().watts, 305.0) << v.content;
    EXPECT_EQ(m.value().time_ns, 77u) << v.content;
  }
}

TEST(GpuMetrics, OnesStandForNothing) {
  const auto m = parse_gpu_metrics(table_of(kMi300, ~std::uint64_t{0}, 0xffff, 1));
  ASSERT_TRUE(m.ok());
  EXPECT_EQ(m.value().ticks, std::nullopt);
  EXPECT_EQ(m.value().watts, std::nullopt);
}

TEST(GpuMetrics, OtherTablesAreRefused) {
  EXPECT_EQ(parse_gpu_metrics("").reason(), "0 bytes are no table");
  EXPECT_FALSE(parse_gpu_metrics(std::string("\x03\x00\x01", 3)));
  std::string table = table_of(kMi300, 1, 1, 1);
  for (std::size_t length = 4; length < table.size(); ++length)
    EXPECT_EQ(parse_gpu_metrics(table.substr(0, length)).reason(),
              fmt::format("a table of {} bytes that says it has 288", length));
  table[3] = 9;
  EXPECT_EQ(parse_gpu_metrics(table).reason(), "a table of version 1.9; molen reads 1.1 to 1.8");
  table[3] = 0;
  EXPECT_FALSE(parse_gpu_metrics(table));
  table[2] = 2, table[3] = 4;
  EXPECT_EQ(parse_gpu_metrics(table).reason(), "a table of version 2.4; molen reads 1.1 to 1.8");
  std::string liar = table_of(kMi300, 1, 1, 1);
  liar[0] = 39, liar[1] = 0;  // one byte less than its members need
  EXPECT_FALSE(parse_gpu_metrics(liar));
}

TEST(Amd, ATickIsExact) {
  AmdNode node({{.watts = 300}, {.watts = 500}});
  Accountant a(open_meters({"auto"}, node.options()));
  EXPECT_EQ(scopes_of(a.meters()), "gpu0 gpu1 cpu-package ");
  const MeterInfo& info = a.meters().meters[0]->info();
  EXPECT_EQ(info.name, "amd");
  EXPECT_EQ(info.source, Source::kCounter);
  EXPECT_EQ(info.joules_per_tick, 0x1p-16);
  a.begin_step();
  node.go(2.0);
  const StepEnergy step = a.end_step();
  EXPECT_NEAR(*step.scopes.at("gpu0").joules, 600.0, 1e-4) << "15.3 uJ a tick would be 1.6 J more";
  EXPECT_NEAR(*step.scopes.at("gpu1").joules, 1000.0, 1e-4);
  EXPECT_NEAR(*step.total_j, 1600.0, 1e-4);
}

TEST(Amd, OnlyTheGpusOfTheJobAreRead) {
  AmdNode node({{.watts = 100}, {.watts = 200}, {.watts = 300}});
  const auto watts = [&](const std::string& visible) {
    Meters m = open_amd(node.machine, visible);
    std::string text;
    for (const auto& meter : m.meters) {
      const double before = meter->read().value().total.value;
      node.go(1.0);
      text += fmt::format("{}={:.0f} ", meter->info().scope, meter->read().value().total.value - before);
    }
    for (const auto& u : m.unavailable) text += fmt::format("{}: {} ", u.scope, u.reason);
    return text;
  };
  EXPECT_EQ(watts("2,0"), "gpu0=300 gpu1=100 ");
  EXPECT_EQ(watts("GPU-000000000000AB01"), "gpu0=200 ");
  EXPECT_EQ(watts("1,-1,0"), "gpu0=200 ");
  EXPECT_EQ(watts("1,GPU-000000000000ab01"), "gpu0=200 ") << "one GPU by two names";
  EXPECT_EQ(watts("7,1"), "gpu1=200 gpu0: no GPU 7: this job may use 3 ");
  EXPECT_EQ(watts("GPU-ff"), "gpu0: no GPU is 'GPU-ff' ");
  EXPECT_EQ(watts(""),
            fmt::format("gpu: no GPU of ROCm that this job may use in {} ", (node.root() / "sys/class/kfd").string()));
  // The job's control group hides the files of the others.
  fs::remove(node.root() / "sys/class/kfd/kfd/topology/nodes/1/properties");
  EXPECT_EQ(watts("0"), "gpu0=200 ");
}

TEST(Amd, GpusHaveTheOrderOfTheRuntime) {
  std::vector<AmdNode::Device> devices;
  for (int i = 1; i <= 11; ++i) devices.push_back({.watts = 100.0 * i});
  AmdNode node(devices);
  Meters m = open_amd(node.machine);
  ASSERT_EQ(m.meters.size(), 11u);
  node.go(1.0);
  EXPECT_NEAR(m.meters[1]->read().value().total.value, 200.0, 1e-3) << "node 2 of the topology, not node 11";
  EXPECT_EQ(m.meters[1]->info().scope, "gpu1");
}

AmdNode::Device half(double watts) {
  return {.watts = watts, .model = "0x7408", .version = kMi250};
}

TEST(Amd, AModuleOfTwoCountsOnce) {
  AmdNode node({half(400), half(0), half(500), half(0)});
  Accountant a(open_meters({"auto"}, node.options()));
  EXPECT_EQ(scopes_of(a.meters()), "gpu0+1 gpu2+3 cpu-package ");
  a.begin_step();
  node.go(1.0);
  EXPECT_NEAR(*a.end_step().total_j, 900.0, 1e-4);
  EXPECT_EQ(coverage_of(a.meters(), true).partial(), "gpu only");
  std::string reasons;
  for (const auto& u : a.meters().unavailable)
    if (u.meter == "amd") reasons += u.reason + "; ";
  EXPECT_EQ(reasons,
            "the energy of gpu1 is in the counter of gpu0, the other GPU of its module; the energy of gpu3 is in the "
            "counter of gpu2, the other GPU of its module; ");
}

// The first GPU of a module has its counter; where that one is dead, the module has no joules, and neither of its GPUs
// has 0 J.
TEST(Amd, AModuleWhoseFirstGpuIsDeadIsNotRead) {
  AmdNode::Device dead = half(0);
  dead.shown = 400;  // the power works, and the counter reads 0
  AmdNode node({dead, half(0), half(500), half(0)});
  Accountant a(open_meters({"auto"}, node.options()));
  EXPECT_EQ(scopes_of(a.meters()), "gpu2+3 cpu-package gpu0+1 ");
  EXPECT_EQ(coverage_of(a.meters(), true).partial(), "without cpu, dram, gpu0+1");
  EXPECT_NE(a.meters().meters.back()->info().detail.find("did not change for 0.5 s"), std::string::npos);
  a.begin_step();
  node.go(1.0);
  const StepEnergy step = a.end_step();
  EXPECT_FALSE(step.scopes.at("gpu0+1").joules);
  EXPECT_NEAR(*step.scopes.at("gpu2+3").joules, 500.0, 1e-4);
  // The counter of the other module dies during the run.
  node.devices[2].watts = 1e-9;
  node.go(1.0);
  const StepEnergy after = a.end_step();
  EXPECT_FALSE(after.scopes.at("gpu2+3").joules);
  EXPECT_NE(after.scopes.at("gpu2+3").reason.find("did not change"), std::string::npos)
      << after.scopes.at("gpu2+3").reason;
  EXPECT_FALSE(after.total_j);
}

// Half of a module is another job's in each case, or may be.
TEST(Amd, AModuleThatIsSharedIsNotRead) {
  AmdNode node({half(400), half(0), half(500), half(0)});
  OpenOptions o = node.options();
  const auto opened = [&](const char* visible) {
    o.amd_visible = visible;
    const Meters m = open_meters({"auto"}, o);
    return scopes_of(m) + coverage_of(m, true).partial();
  };
  EXPECT_EQ(opened("0,2,3"), "gpu1+2 cpu-package gpu0 without cpu, dram, gpu0");
  EXPECT_EQ(opened("1,2,3"), "gpu1+2 cpu-package gpu0 without cpu, dram, gpu0");
  EXPECT_EQ(opened("0,3"), "cpu-package gpu0 gpu1 nothing measured");
  EXPECT_EQ(opened("3,2"), "gpu1+0 cpu-package gpu only");
  o.amd_visible = "0,3";
  EXPECT_NE(open_meters({"auto"}, o).meters.back()->info().detail.find("which is not this job's"), std::string::npos);
  fs::remove(node.root() / "sys/class/kfd/kfd/topology/nodes/2/properties");
  o.amd_visible.reset();
  const Meters hidden = open_meters({"auto"}, o);
  EXPECT_EQ(scopes_of(hidden), "cpu-package gpu0 gpu1 gpu2 ");
  EXPECT_NE(hidden.meters.back()->info().detail.find("sees not all GPUs of the machine"), std::string::npos);
}

TEST(Amd, ACounterOfACrayNodeAndThatOfTheDriverAreNotAdded) {
  AmdNode node({half(400), half(0)});
  node.write("sys/cray/pm_counters/startup", "1\n");
  const auto scan = [&] {
    node.go(0.0);
    node.write("sys/cray/pm_counters/freshness", fmt::format("{}\n", std::llround(node.time * 100)));
    node.write("sys/cray/pm_counters/accel1_energy", fmt::format("{} J 1 us\n", std::llround(node.time * 400)));
  };
  scan();
  node.tick = scan;
  const Meters m = open_meters({"auto"}, node.options());
  EXPECT_EQ(scopes_of(m), "gpu0+1 accel1 cpu-package ");
  EXPECT_EQ(coverage_of(m, true).summed, (std::set<std::string>{"accel1"}));
}

TEST(Amd, AProcessorsGpuIsMeteredWithIt) {
  AmdNode node({{.watts = 10, .processor = true}, {.watts = 300}});
  const Meters m = open_meters({"auto"}, node.options());
  EXPECT_EQ(scopes_of(m), "gpu1 cpu-package ") << "it keeps its number, and nothing is missing";
  AmdNode whole({{.watts = 500, .model = "0x74a0"}});
  const Meters refused = open_meters({"auto"}, whole.options());
  EXPECT_EQ(scopes_of(refused), "cpu-package gpu0 ");
  EXPECT_EQ(refused.meters.back()->info().detail, "the counter of an MI300A also has its processor and memory");
}

TEST(Amd, ModelsWhoseCounterIsNotKnownAreNotRead) {
  AmdNode node(
      {{.watts = 100, .model = "0x738c", .version = kMi250}, {.watts = 100, .model = "0x740f", .version = kMi250}});
  const Meters m = open_amd(node.machine);
  EXPECT_EQ(scopes_of(m), "gpu1 ");
  EXPECT_EQ(m.unavailable.at(0).reason, "of GPUs of model 0x738c it is not known that their counter has 64 bits");
}

TEST(Amd, ADividedGpuIsNotRead) {
  AmdNode node({{.watts = 100}, {.watts = 200}});
  node.write(AmdNode::drm(0) + "/current_compute_partition", "CPX\n");
  node.write(AmdNode::drm(1) + "/current_compute_partition", "SPX\n");
  const Meters m = open_amd(node.machine);
  EXPECT_EQ(scopes_of(m), "gpu1 ");
  EXPECT_EQ(m.unavailable.at(0).reason,
            "the GPU is divided into partitions (CPX), which have no counters of their own");
}

TEST(Amd, ACounterThatContradictsThePowerIsNotBelieved) {
  AmdNode node({{.watts = 10, .shown = 300},
                {.watts = 3000, .shown = 200},
                {.watts = 40, .shown = 300},
                {.watts = 0},
                {.watts = -1, .shown = 100},
                {.watts = 20, .shown = 0}});
  const Meters m = open_meters({"amd"}, node.options());
  EXPECT_EQ(scopes_of(m), "gpu2 gpu5 gpu0 gpu1 gpu4 gpu3 ") << "those without a reading are null meters";
  ASSERT_EQ(m.unavailable.size(), 4u);
  EXPECT_EQ(m.unavailable[0].reason, "its counter rose by 5 J in 0.5 s, at a power of 300 W");
  EXPECT_EQ(m.unavailable[1].reason, "its counter rose by 1.5e+03 J in 0.5 s, at a power of 200 W");
  EXPECT_EQ(m.unavailable[2].reason, "its counter went back from 65536000 to 65503232");
  EXPECT_NE(m.unavailable[3].reason.find("did not change for 0.5 s"), std::string::npos) << "a frozen counter";
}

TEST(Amd, ACounterThatGoesBackOrVanishesIsNoReading) {
  AmdNode node(std::vector<AmdNode::Device>{{.watts = 100}});
  Accountant a(open_amd(node.machine));
  a.begin_step();
  node.devices[0].joules -= 500.0;
  node.go(1.0);
  EXPECT_NE(a.end_step().scopes.at("gpu0").reason.find("went back"), std::string::npos);
  node.go(1.0);
  EXPECT_NE(a.end_step().scopes.at("gpu0").reason.find("went back"), std::string::npos) << "the step began there";
  node.go(1.0);
  EXPECT_NEAR(*a.end_step().scopes.at("gpu0").joules, 100.0, 1e-4);
  node.write(AmdNode::drm(0) + "/gpu_metrics", table_of(kMi300, ~std::uint64_t{0}, 100, 1));
  EXPECT_EQ(a.end_step().scopes.at("gpu0").reason, "the GPU shows no energy any more");
  fs::remove(node.root() / AmdNode::drm(0) / "gpu_metrics");
  EXPECT_NE(a.end_step().scopes.at("gpu0").reason.find("No such file"), std::string::npos);
}

TEST(Amd, AGpuWithoutACounterSaysSo) {
  AmdNode node(std::vector<AmdNode::Device>{{.watts = 100}});
  node.tick = {};
  node.write(AmdNode::drm(0) + "/gpu_metrics", table_of(kMi300, ~std::uint64_t{0}, 100, 1));
  EXPECT_EQ(open_amd(node.machine).unavailable.at(0).reason, "the GPU has no counter of energy");
  FakeMachine other;
  EXPECT_EQ(open_amd(other.machine, "0,1").unavailable.at(0).scope, "gpu") << "the list names another maker's GPUs";
  EXPECT_EQ(open_amd(other.machine, "0,1").unavailable.size(), 1u);
}

TEST(Visible, EachMakerHasItsList) {
  const auto of = [](std::map<std::string, const char*> variables) {
    return visible_gpus([&](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second;
    });
  };
  EXPECT_EQ(of({}), VisibleGpus{});
  EXPECT_EQ(of({{"CUDA_VISIBLE_DEVICES", "1,GPU-5"}}), (VisibleGpus{"1,GPU-5", "1,GPU-5"}));
  EXPECT_EQ(of({{"CUDA_VISIBLE_DEVICES", ""}}), (VisibleGpus{"", {}})) << "hides all of CUDA, and none of HIP";
  EXPECT_EQ(of({{"HIP_VISIBLE_DEVICES", "2"}, {"CUDA_VISIBLE_DEVICES", "1"}}), (VisibleGpus{"1", "2"}));
  EXPECT_EQ(of({{"HIP_VISIBLE_DEVICES", ""}, {"CUDA_VISIBLE_DEVICES", "1"}}), (VisibleGpus{"1", "1"}));
  EXPECT_EQ(of({{"ROCR_VISIBLE_DEVICES", "4,5,GPU-a"}}), (VisibleGpus{{}, "4,5,GPU-a"}));
  EXPECT_EQ(of({{"ROCR_VISIBLE_DEVICES", ""}}), (VisibleGpus{{}, ""}));
  EXPECT_EQ(of({{"ROCR_VISIBLE_DEVICES", "4,5,GPU-a"}, {"HIP_VISIBLE_DEVICES", "2,0"}}).amd, "GPU-a,4");
  EXPECT_EQ(of({{"ROCR_VISIBLE_DEVICES", "4,5"}, {"HIP_VISIBLE_DEVICES", "1,7,0"}}).amd, "5") << "hides the rest";
  EXPECT_EQ(of({{"ROCR_VISIBLE_DEVICES", "4,-1,5"}, {"HIP_VISIBLE_DEVICES", "0,1"}}).amd, "4");
  // Slurm sets all of them alike; NVIDIA's GPUs must not vanish by that.
  EXPECT_EQ(of({{"CUDA_VISIBLE_DEVICES", "2,3"}, {"ROCR_VISIBLE_DEVICES", "2,3"}}).nvidia, "2,3");
}

}  // namespace
}  // namespace molen::energy
