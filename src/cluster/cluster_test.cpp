#include <gtest/gtest.h>
#include <toml++/toml.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/file.h"
#include "cluster/cluster.h"
#include "cluster/test_description.h"

namespace molen::cluster {
namespace {

std::string reason_of(const std::string& text) {
  return reason([&] { parse(text, "c.toml"); });
}

// Returns the reason why the usual description is refused when a line is replaced, and checks that it names the line.
std::string reason_with(const std::string& table, const std::string& key, const std::string& line, int nth = 0) {
  Lines lines = usual();
  const std::size_t at = lines.find(table, key, nth);
  lines[at] = line;
  const std::string text = reason_of(lines.text());
  EXPECT_TRUE(text.starts_with(fmt::format("c.toml:{}: ", at + 1))) << line << "\n" << text;
  return text;
}

TEST(Parse, SiteFiguresBecomeSI) {
  Lines lines = usual();
  lines[lines.find("site", "intensity_g_per_kwh")] = "intensity_g_per_kwh = { value = 360, source = \"x\" }";
  lines[lines.find("site", "water_l_per_kwh")] = "water_l_per_kwh = { value = 1.8, spread = 0.25, source = \"y\" }";
  lines[lines.find("site", "price_eur_per_kwh")] = "price_eur_per_kwh = { value = 0.09, source = \"z\" }";
  const Site site = parse(lines.text(), "c.toml").site;
  EXPECT_DOUBLE_EQ(site.intensity.value, 1e-7);  // 0.36 kg for 3.6e6 J
  EXPECT_DOUBLE_EQ(site.water.value, 5e-10);     // 0.0018 m^3 for 3.6e6 J
  EXPECT_DOUBLE_EQ(site.price.value, 2.5e-8);    // 0.09 euros for 3.6e6 J
  EXPECT_DOUBLE_EQ(site.water.spread, 0.25);     // stays relative
  EXPECT_EQ(site.intensity.spread, 0.0);
  EXPECT_EQ(site.price.source, "z");
}

TEST(Parse, AWholeNumberIsAFigureToo) {
  Lines lines = usual();
  lines[lines.find("device", "bandwidth")] = "bandwidth = { value = 3_350_000_000_000, source = \"x\" }";
  EXPECT_DOUBLE_EQ(parse(lines.text(), "c.toml").device.bandwidth.value, 3.35e12);
}

TEST(Parse, TheExampleOfTheFormatIsRead) {
  const std::string page = read_file("docs/formats/cluster.md");
  const std::size_t begin = page.find("## Example\n"), end = page.find("\n## ", begin);
  ASSERT_NE(end, std::string::npos);
  Lines lines(std::string_view(page).substr(begin, end - begin));
  lines.erase(0);
  const Cluster c = parse(lines.text(), "cluster.md");
  EXPECT_EQ(c.devices(), 8);
  EXPECT_EQ(c.tiers.size(), 2u);
}

TEST(Parse, TextsAndCommentsMayHaveLettersBeyondAscii) {
  Lines lines = usual();
  lines[lines.find("", "title")] = "title = \"J\u00fclich \\\" \u00e4\"  # \u00e4 '\"";
  EXPECT_EQ(parse("\xef\xbb\xbf" + lines.text(), "c.toml").title, "J\u00fclich \" \u00e4");
}

struct Bounds {
  std::string table, key;
  double low, high;
  bool or_zero = false;
};

// The documented ranges (docs/formats/cluster.md).
const std::vector<Bounds> kBounds{
    {"device", "peak_fp32", 1e11, 1e17},
    {"device", "peak_16bit", 1e12, 1e17},
    {"device", "peak_fp8", 1e12, 1e17, true},
    {"device", "memory", 1e8, 1e13},
    {"device", "bandwidth", 1e10, 1e15},
    {"device", "gemm_efficiency", 0.05, 1},
    {"device", "attention_efficiency", 0.02, 1},
    {"device", "memory_efficiency", 0.1, 1},
    {"device", "launch", 1e-8, 1e-3},
    {"device", "idle_power", 1, 1000},
    {"device", "peak_power", 10, 10000},
    {"node", "host_power", 10, 20000},
    {"node", "host_memory", 1e9, 1e14},
    {"node", "host_bandwidth", 1e9, 1e14},
    {"node", "host_link", 1e8, 1e13},
    {"tiers", "bandwidth", 1e7, 1e14},
    {"tiers", "efficiency", 0.05, 1},
    {"tiers", "latency", 1e-8, 1e-2},
    {"site", "pue", 1, 3},
    {"site", "intensity_g_per_kwh", 0, 2000},
    {"site", "water_l_per_kwh", 0, 50},
    {"site", "price_eur_per_kwh", 0, 5},
};

TEST(Parse, EveryFigureHasARange) {
  for (const Bounds& b : kBounds) {
    const std::string full = b.table + "." + b.key + ".value";
    std::vector<std::string> outside{"-1.0", "nan", "inf", "-inf", fmt::format("{:.9e}", b.high * 1.001)};
    if (b.low > 0.0) outside.push_back(fmt::format("{:.9e}", b.low * 0.999));
    if (b.low > 0.0 && !b.or_zero) outside.push_back("0");
    for (const std::string& value : outside) {
      const std::string text =
          reason_with(b.table, b.key, fmt::format("{} = {{ value = {}, source = \"x\" }}", b.key, value));
      expect_parts(text, {full, "out of range", fmt::format("{:g} to {:g}", b.low, b.high)});
    }
    Lines lines = usual();
    if (b.key == "idle_power")
      lines[lines.find("device", "peak_power")] = "peak_power = { value = 5e3, source = \"x\" }";
    if (b.key == "peak_power") lines[lines.find("device", "idle_power")] = "idle_power = { value = 5, source = \"x\" }";
    for (const double value : {b.low, b.high}) {
      lines[lines.find(b.table, b.key)] = fmt::format("{} = {{ value = {:.9e}, source = \"x\" }}", b.key, value);
      EXPECT_EQ(reason_of(lines.text()), "") << full;
    }
  }
}

// The table above has every figure of the format.
TEST(Parse, TheRangesAreThoseOfAllFigures) {
  const toml::table document = toml::parse(shipped_text("dgx-h100"));
  std::set<std::string> in_file, in_test;
  for (const char* table : {"device", "node", "site"})
    for (const auto& [key, node] : *document[table].as_table())
      if (node.is_table()) in_file.insert(fmt::format("{}.{}", table, key.str()));
  for (const auto& [key, node] : *document["tiers"][0].as_table())
    if (node.is_table()) in_file.insert(fmt::format("tiers.{}", key.str()));
  for (const Bounds& b : kBounds) in_test.insert(b.table + "." + b.key);
  EXPECT_EQ(in_file, in_test);
}

// Figures that a description may lack.
struct OptionalBounds : Bounds {
  std::string unit;
};
const std::vector<OptionalBounds> kOptional{
    {{"reliability", "step_jitter", 0, 0.3}, "of the mean"},
    {{"reliability", "slow_node_share", 0, 0.5}, "of the nodes"},
    {{"reliability", "slow_node_factor", 1, 10}, ""},
    {{"reliability", "node_mtbf_hours", 1, 1e8}, "hours"},
    {{"reliability", "restart", 1, 86400}, "s"},
    {{"storage", "write_bandwidth", 1e6, 1e15}, "bytes/s"},
    {{"storage", "read_bandwidth", 1e6, 1e15}, "bytes/s"},
    {{"storage", "node_bandwidth", 1e6, 1e13}, "bytes/s"},
    {{"clocks", "low_hz", 1e6, 1e11}, "Hz"},
    {{"clocks", "high_hz", 1e6, 1e11}, "Hz"},
    {{"clocks", "step_hz", 1e6, 1e10}, "Hz"},
    {{"clocks", "knee_hz", 1e6, 1e11}, "Hz"},
    {{"clocks", "exponent", 0, 5}, ""},
    {{"clocks", "share", 0, 1}, "of the time"},
};

TEST(Parse, OptionalFiguresHaveRangesAndSources) {
  const std::string usual_text = usual().text();
  const auto with = [&](const OptionalBounds& b, const std::string& figure) {
    return fmt::format("{}[{}]\n{} = {}\n", usual_text, b.table, b.key, figure);
  };
  for (const OptionalBounds& b : kOptional) {
    const std::string full = b.table + "." + b.key;
    std::vector<std::string> outside{"-1.0", "nan", "inf", fmt::format("{:.9e}", b.high * 1.001)};
    if (b.low > 0.0) outside.push_back(fmt::format("{:.9e}", b.low * 0.999));
    for (const std::string& value : outside)
      expect_parts(reason_of(with(b, fmt::format("{{ value = {}, source = \"x\" }}", value))),
                   {full + ".value", "out of range", fmt::format("{:g} to {:g}", b.low, b.high), b.unit});
    for (const double value : {b.low, b.high})
      EXPECT_EQ(reason_of(with(b, fmt::format("{{ value = {:.9e}, source = \"x\" }}", value))), "") << full;
    expect_parts(reason_of(with(b, fmt::format("{:.9e}", b.low))), {full, "needs its source"});
    expect_parts(reason_of(with(b, fmt::format("{{ value = {:.9e} }}", b.low))),
                 {full + ".source: the key is missing"});
  }
  expect_parts(reason_of(usual_text + "[reliability]\nrestrat = { value = 60, source = \"x\" }\n"),
               {"reliability.restrat: the key is unknown", "did you mean 'reliability.restart'?"});
  expect_parts(reason_of(usual_text + "[storage]\nwrite = { value = 1e9, source = \"x\" }\n"),
               {"storage.write: the key is unknown"});
  expect_parts(reason_of("reliability = 3\n" + usual_text), {"c.toml:1: reliability: expected the table"});
}

TEST(Parse, DeviceHoursMayHaveAPrice) {
  EXPECT_FALSE(parse(usual().text(), "c.toml").site.device_hour.has_value());
  const auto with = [](const std::string& figure) {
    Lines lines = usual();
    lines[lines.find("site", "price_eur_per_kwh")] += "\nprice_eur_per_device_hour = " + figure;
    return lines.text();
  };
  const Site site = parse(with("{ value = 1.8, spread = 0.1, source = \"contract\" }"), "c.toml").site;
  EXPECT_DOUBLE_EQ(site.device_hour.value().value, 1.8 / 3600.0);
  EXPECT_DOUBLE_EQ(site.device_hour.value().spread, 0.1);
  expect_parts(reason_of(with("{ value = 1001, source = \"x\" }")),
               {"site.price_eur_per_device_hour.value", "out of range", "0 to 1000", "euros/h"});
  expect_parts(reason_of(with("2.0")), {"site.price_eur_per_device_hour", "needs its source"});
}

TEST(Parse, OptionalFiguresAreAbsentUnlessTheFileHasThem) {
  const Cluster without = parse(usual().text(), "c.toml");
  EXPECT_FALSE(without.reliability.node_mtbf.has_value());
  EXPECT_FALSE(without.storage.node_bandwidth.has_value());
  const Cluster with = parse(usual().text() +
                                 "[reliability]\nnode_mtbf_hours = { value = 1000, spread = 0.5, source = \"log\" }\n"
                                 "[storage]\nwrite_bandwidth = { value = 2e11, source = \"IOR\" }\n",
                             "c.toml");
  EXPECT_DOUBLE_EQ(with.reliability.node_mtbf.value().value, 3.6e6);  // 1,000 hours
  EXPECT_DOUBLE_EQ(with.reliability.node_mtbf.value().spread, 0.5);   // stays relative
  EXPECT_EQ(with.reliability.node_mtbf.value().source, "log");
  EXPECT_DOUBLE_EQ(with.storage.write_bandwidth.value().value, 2e11);
  EXPECT_FALSE(with.reliability.restart.has_value());
  EXPECT_FALSE(with.storage.read_bandwidth.has_value());
}

TEST(Parse, ClocksAboveTheHighestAreRefused) {
  const auto with = [](const char* low, const char* knee) {
    return reason_of(
        fmt::format("{}[clocks]\nlow_hz = {{ value = {}, source = \"x\" }}\nhigh_hz = {{ value = 1e9, source = "
                    "\"x\" }}\nknee_hz = {{ value = {}, source = \"x\" }}\n",
                    usual().text(), low, knee));
  };
  EXPECT_EQ(with("1e9", "1e9"), "");
  expect_parts(with("1.1e9", "1e9"), {"clocks.low_hz", "1.1e+09 Hz exceeds clocks.high_hz, 1e+09 Hz"});
  expect_parts(with("5e8", "2e9"), {"clocks.knee_hz", "2e+09 Hz exceeds clocks.high_hz, 1e+09 Hz"});
}

TEST(Parse, EveryCountHasARange) {
  const std::vector<std::tuple<std::string, std::string, std::int64_t>> counts{{"", "nodes", 1000000},
                                                                               {"device", "multiprocessors", 65536},
                                                                               {"node", "devices", 1000},
                                                                               {"tiers", "devices", 8192}};
  for (const auto& [table, key, high] : counts) {
    const std::string full = table.empty() ? key : table + "." + key;
    for (const std::string& value : {std::string("-1"), std::to_string(high + 1), std::string("9223372036854775807")})
      expect_parts(reason_with(table, key, key + " = " + value, table == "tiers" ? 1 : 0), {full});
    expect_parts(reason_with(table, key, key + " = 8.0"), {full, "expected a whole number"});
    expect_parts(reason_with(table, key, key + " = \"8\""), {full, "expected a whole number"});
  }
  expect_parts(reason_with("", "nodes", "nodes = 0"), {"nodes", "1 to 1000000"});
  expect_parts(reason_with("node", "devices", "devices = 0"), {"node.devices", "1 to 1000"});
  expect_parts(reason_with("tiers", "devices", "devices = 1"), {"tiers.devices"});
}

// Every key is needed: without it, the message names the key and the line of its table.
TEST(Parse, AMissingKeyIsNamed) {
  const std::string text = usual().text();
  int keys = 0;
  std::string table;
  for (std::size_t i = 0; i < static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')); ++i) {
    Lines lines = usual();
    const std::string line = lines[i];
    if (line.starts_with("[")) table = line.substr(line.find_first_not_of('['), line.find(']') - line.rfind('[') - 1);
    const std::size_t equals = line.find(" = ");
    if (equals == std::string::npos || line.starts_with("#")) continue;
    lines.erase(i);
    const std::string key = (table.empty() ? "" : table + ".") + line.substr(0, equals);
    const std::string message = reason_of(lines.text());
    EXPECT_TRUE(message.starts_with("c.toml:")) << message;
    expect_parts(message, {": " + key + ": the key is missing; expected "});
    ++keys;
  }
  EXPECT_EQ(keys, 3 + 15 + 5 + 2 * 5 + 4);  // top level, device, node, two tiers, site
}

TEST(Parse, AMissingTableIsNamed) {
  expect_parts(reason_of("name = \"a\"\ntitle = \"A\"\nnodes = 2\n"), {"c.toml:1: device: ", "the table [device]"});
  Lines lines = usual();
  const std::string text = lines.text();
  expect_parts(reason_of(text.substr(0, text.find("[site]"))), {"site: the key is missing; expected the table [site]"});
  const std::size_t tiers = text.find("[[tiers]]"), site = text.find("[site]");
  expect_parts(reason_of(text.substr(0, tiers) + text.substr(site)), {"tiers: the key is missing", "[[tiers]]"});
  expect_parts(reason_of("tiers = []\n" + text.substr(0, tiers) + text.substr(site)), {"c.toml:1: tiers: expected"});
  expect_parts(reason_of("tiers = 3\n" + text.substr(0, tiers) + text.substr(site)), {"c.toml:1: tiers: expected"});
  expect_parts(reason_of("name = \"a\"\ntitle = \"A\"\nnodes = 2\ndevice = 1\n"), {"c.toml:4: device: ", "[device]"});
}

TEST(Parse, AFigureNeedsItsSource) {
  expect_parts(reason_with("device", "bandwidth", "bandwidth = 3.35e12"),
               {"device.bandwidth", "needs its source", "source = ", "bytes/s"});
  expect_parts(reason_with("device", "bandwidth", "bandwidth = { value = 3.35e12 }"),
               {"device.bandwidth.source: the key is missing"});
  expect_parts(reason_with("device", "bandwidth", "bandwidth = { value = 3.35e12, source = \" \" }"),
               {"device.bandwidth.source: the text is empty"});
  expect_parts(reason_with("device", "bandwidth", "bandwidth = { value = 3.35e12, source = 7 }"),
               {"device.bandwidth.source: expected a text"});
  expect_parts(reason_with("device", "bandwidth", "bandwidth = { source = \"x\" }"),
               {"device.bandwidth.value: the key is missing", "1e+10 to 1e+15 bytes/s"});
  expect_parts(reason_with("device", "bandwidth", "bandwidth = { value = \"fast\", source = \"x\" }"),
               {"device.bandwidth.value: expected a number"});
}

TEST(Parse, ASpreadIsAShare) {
  for (const char* spread : {"-0.1", "1.01", "nan", "5"})
    expect_parts(
        reason_with("site", "pue", fmt::format("pue = {{ value = 1.2, source = \"x\", spread = {} }}", spread)),
        {"site.pue.spread", "out of range", "0 to 1"});
}

TEST(Parse, AnUnknownKeyGetsTheNearest) {
  expect_parts(reason_with("device", "bandwidth", "bandwith = { value = 3.35e12, source = \"x\" }"),
               {"device.bandwith: the key is unknown", "did you mean 'device.bandwidth'?"});
  expect_parts(reason_with("", "nodes", "node_s = 4"), {"node_s: the key is unknown", "did you mean 'nodes'?"});
  expect_parts(reason_with("tiers", "latency", "latenzy = 1"), {"did you mean 'tiers.latency'?"});
  expect_parts(reason_with("site", "pue", "pue = { value = 1.2, sauce = \"x\" }"),
               {"site.pue.sauce: the key is unknown", "did you mean 'site.pue.source'?"});
  expect_parts(reason_of("[devise]\n"), {"c.toml:1: devise: the key is unknown", "did you mean 'device'?"});
}

TEST(Parse, TextsAreOneLineThatATerminalCanShow) {
  expect_parts(reason_with("", "title", "title = \"a\\u001bb\""), {"title", "control character"});
  expect_parts(reason_with("", "title", "title = \"a\\nb\""), {"title", "line break"});
  expect_parts(reason_with("", "title", "title = \"" + std::string(1001, 'a') + "\""), {"title", "1000 bytes"});
  expect_parts(reason_with("", "name", "name = \"../x\""), {"name", "'../x' is not a name"});
  expect_parts(reason_with("device", "kind", "kind = \"kuda\""), {"device.kind", "did you mean 'cuda'?"});
  EXPECT_EQ(reason_of("\"\\u001b[31m\" = 1\n").find('\x1b'), std::string::npos);
}

TEST(Parse, IdleIsBelowPeak) {
  expect_parts(reason_with("device", "idle_power", "idle_power = { value = 701, source = \"x\" }"),
               {"device.idle_power: 701 W exceeds device.peak_power, 700 W"});
}

TEST(Parse, TiersGrowToAllDevices) {
  expect_parts(reason_with("tiers", "devices", "devices = 8", 1), {"tiers.devices", "not more than the 8", "NVLink 4"});
  expect_parts(reason_with("tiers", "devices", "devices = 4", 1), {"tiers.devices", "not more than the 8"});
  expect_parts(reason_with("tiers", "devices", "devices = 4096", 1), {"tiers.devices", "must have all 8192"});
  expect_parts(reason_with("tiers", "devices", "devices = 8200", 1), {"tiers.devices", "larger than the cluster"});
  expect_parts(reason_with("tiers", "devices", "devices = 8191", 1), {"tiers.devices", "multiple of the 8"});
  Lines lines = usual();
  lines[lines.find("", "nodes")] = "nodes = 1";
  lines[lines.find("node", "devices")] = "devices = 1";
  expect_parts(reason_of(lines.text()), {"c.toml:4: nodes: ", "at least 2 devices"});
}

// None of these texts may exhaust the stack or the memory.
TEST(Parse, HostileTextsAreRefused) {
  std::string dots = "a";
  for (int i = 0; i < 100000; ++i) dots += ".a";
  expect_parts(reason_of("\n" + dots + " = 1\n"), {"c.toml:2: the line has more than 1000 dots"});
  expect_parts(reason_of("[" + dots + "]\n"), {"c.toml:1: the line has more than 1000 dots"});
  expect_parts(reason_of(std::string((1 << 20) + 1, '\n')), {"larger than 1048576 bytes"});
  EXPECT_NE(reason_of("a = " + std::string(100000, '[')), "");
  std::string tables = usual().text();
  tables = tables.substr(0, tables.find("[[tiers]]"));
  for (int i = 0; i < 17; ++i) tables += "[[tiers]]\n";
  expect_parts(reason_of(tables), {"more than 16 tiers"});
  expect_parts(reason_of(std::string(300, 'k') + " = 1\n"), {"c.toml:1: ", "...", "the key is unknown"});
}

TEST(Parse, TextThatIsNotTomlIsRefusedWithItsLine) {
  expect_parts(reason_of("name = \"a\"\nnodes = = 2\n"), {"c.toml:2: the file is not TOML"});
  expect_parts(reason_of("nodes = 1\nnodes = 2\n"), {"c.toml:2: the file is not TOML"});
  for (const char* text :
       {"[/]", "[", "[[", "[]", "[=]", "[.a]", "[\xca\x8f]", "\u00e4 = 1", "a = \u00e4", "a = [}{1,]"})
    expect_parts(reason_of(text), {"c.toml:1: the file is not TOML"});
  expect_parts(reason_of("\xff"), {"c.toml:1: the file is not TOML"});
  expect_parts(reason_of(""), {"c.toml:1: name: the key is missing"});
}

}  // namespace
}  // namespace molen::cluster
