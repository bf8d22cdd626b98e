#include <gtest/gtest.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "base/file.h"
#include "cluster/cluster.h"
#include "cluster/test_description.h"

namespace molen::cluster {
namespace {

TEST(Shipped, EveryDescriptionIsReadAndHasTheNameOfItsFile) {
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator("clusters"))
    if (entry.path().extension() == ".toml") files.insert(entry.path().stem().string());
  EXPECT_EQ(std::set<std::string>(shipped().begin(), shipped().end()), files);
  EXPECT_TRUE(std::is_sorted(shipped().begin(), shipped().end()));
  ASSERT_GE(files.size(), 14u);
  for (const std::string& name : shipped()) {
    const Cluster c = find(name);
    EXPECT_EQ(c.name, name);
    EXPECT_EQ(c.origin, "shipped");
    EXPECT_EQ(c.tiers.back().devices, c.devices()) << name;
    EXPECT_EQ(shipped_text(name), read_file(fs::path("clusters") / (name + ".toml"))) << name;
  }
}

// A figure that nobody published must be marked and must not look exact.
TEST(Shipped, AssumptionsHaveASpread) {
  for (const std::string& name : shipped()) {
    const toml::table document = toml::parse(shipped_text(name));
    int assumptions = 0;
    const auto visit = [&](const toml::table& table, const auto& self) -> void {
      if (const auto source = table["source"].value<std::string>()) {
        EXPECT_TRUE(table.contains("value")) << name;
        if (!source->starts_with("assumption: ")) return;
        ++assumptions;
        EXPECT_GE(table["spread"].value_or(0.0), 0.02) << name << ": " << *source;
      }
      for (const auto& [key, node] : table) {
        if (const auto* inner = node.as_table()) self(*inner, self);
        if (const auto* array = node.as_array())
          for (const auto& item : *array) self(*item.as_table(), self);
      }
    };
    visit(document, visit);
    EXPECT_GT(assumptions, 0) << name;
  }
}

TEST(Shipped, ADeviceIsTheSameInEveryDescriptionThatHasIt) {
  std::map<std::string, Device> devices;
  for (const std::string& name : shipped()) {
    const Device d = find(name).device;
    const auto [same, is_new] = devices.emplace(d.name, d);
    if (is_new) continue;
    EXPECT_EQ(same->second.peak_16bit.value, d.peak_16bit.value) << name;
    EXPECT_EQ(same->second.memory.value, d.memory.value) << name;
    EXPECT_EQ(same->second.bandwidth.value, d.bandwidth.value) << name;
    EXPECT_EQ(same->second.gemm_efficiency.value, d.gemm_efficiency.value) << name;
    EXPECT_EQ(same->second.multiprocessors, d.multiprocessors) << name;
  }
}

// Figures from the data sheets, so that a slip of a power of ten in a file is seen.
TEST(Shipped, SnelliusIsWhatItsSourcesSay) {
  const Cluster c = find("snellius-h100");
  EXPECT_EQ(c.nodes, 22);
  EXPECT_EQ(c.devices(), 88);
  EXPECT_EQ(c.device.kind, "cuda");
  EXPECT_EQ(c.device.multiprocessors, 132);
  EXPECT_DOUBLE_EQ(c.device.peak_16bit.value, 989.4e12);
  EXPECT_NEAR(c.device.memory.value, 94e9, 7e9);
  EXPECT_NEAR(c.device.bandwidth.value, 2.4e12, 0.2e12);
  EXPECT_EQ(c.node.devices, 4);
  EXPECT_DOUBLE_EQ(c.site.pue.value, 1.19);
  c.require_programs();
}

TEST(Shipped, TheClocksOfAnA100AreThoseOfItsDataSheet) {
  for (const char* name : {"dgx-a100", "dgx-a100-40gb", "jean-zay-a100", "juwels-booster"}) {
    const Clocks c = find(name).clocks;
    EXPECT_DOUBLE_EQ(c.high.value().value, 1410e6) << name;
    EXPECT_DOUBLE_EQ(c.low.value().value, 855e6) << name;
    EXPECT_DOUBLE_EQ(c.step.value().value, 15e6) << name;
    EXPECT_GT(c.knee.value().value, c.low->value) << name;
    EXPECT_LE(c.knee->value, c.high->value) << name;
    EXPECT_TRUE(c.exponent && c.share) << name;
  }
}

TEST(Shipped, ADieOfLumiIsADevice) {
  const Cluster c = find("lumi-g");
  EXPECT_EQ(c.devices(), 2978 * 8);
  EXPECT_EQ(c.device.kind, "rocm");
  EXPECT_DOUBLE_EQ(c.device.peak_fp8.value, 0.0);
  EXPECT_DOUBLE_EQ(c.tiers.back().bandwidth.value, 4 * 200e9 / 8 / 8);
  c.require_programs();
}

TEST(Shipped, AnIpuHasNoPrograms) {
  const std::string text = reason([] { find("ipu-pod4").require_programs(); });
  expect_parts(text, {"ipu-pod4", "GC200", "no programs"});
}

TEST(Find, AnUnknownNameGetsTheNearest) {
  const std::string text = reason([] { find("snelius-h100"); });
  expect_parts(text, {"no cluster 'snelius-h100'", "did you mean 'snellius-h100'", "dgx-a100", ".toml"});
  EXPECT_EQ(reason([] { shipped_text(std::string(5000, 'x') + "\x1b"); }).find('\x1b'), std::string::npos);
}

TEST(Find, AFileIsReadByItsPath) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("molen-cluster-{}", getpid());
  fs::create_directories(folder);
  const std::string path = (folder / "mine.toml").string();
  std::ofstream(path) << usual().text();
  EXPECT_EQ(find(path).origin, path);
  EXPECT_EQ(find(path).name, "dgx-h100");
  std::ofstream(path) << "nodes = ";
  expect_parts(reason([&] { find(path); }), {path + ":1: the file is not TOML"});
  expect_parts(reason([&] { find((folder / "none.toml").string()); }), {"none.toml"});
  std::ofstream(path) << "\n { \"format\": 8 }";
  expect_parts(reason([&] { find(path); }), {path + ": this is JSON, as a calibration is", "*.toml"});
  fs::remove_all(folder);
}

TEST(Tier, IsTheSmallestThatHasAllDevices) {
  const Cluster c = find("lumi-g");
  EXPECT_EQ(c.tier_of(1).devices, 2);
  EXPECT_EQ(c.tier_of(2).devices, 2);
  EXPECT_EQ(c.tier_of(3).devices, 8);
  EXPECT_EQ(c.tier_of(8).devices, 8);
  EXPECT_EQ(c.tier_of(9).devices, c.devices());
  EXPECT_EQ(c.tier_of(c.devices()).devices, c.devices());
  expect_parts(reason([&] { c.tier_of(c.devices() + 1); }), {"lumi-g", "23824 devices", "23825"});
}

}  // namespace
}  // namespace molen::cluster
