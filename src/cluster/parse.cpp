// Reads the TOML file of a cluster. The keys and their ranges are in docs/formats/cluster.md.
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/error.h"
#include "base/filesystem.h"
#include "base/suggest.h"
#include "base/utf8.h"
#include "cluster/cluster.h"
#include "cluster/site.h"

namespace molen::cluster {
namespace {

constexpr std::size_t kLargestText = 1 << 20;  // bytes
constexpr std::size_t kLongestText = 1000;     // bytes of a source or a name
constexpr std::size_t kLongestShownKey = 100;
constexpr int kMostDots = 1000;  // of a line
constexpr int kMostTiers = 16;
constexpr int kMostNodes = 1000000, kMostDevicesOfNode = 1000;
static_assert(kMostNodes <= std::numeric_limits<int>::max() / kMostDevicesOfNode);

// The sensible values of a figure, in the units of the file. A value times `si` is in SI units.
struct Range {
  double low, high;
  std::string_view unit;
  bool or_zero = false;
  double si = 1.0;

  bool has(double value) const { return (or_zero && value == 0.0) || (value >= low && value <= high); }
  std::string text() const {
    return fmt::format("{}{:g} to {:g}{}{}", or_zero ? "0, or " : "", low, high, unit.empty() ? "" : " ", unit);
  }
};

constexpr double kJoulesPerKwh = 3.6e6;

template <class T, class Member = Figure>
struct FigureKey {
  const char* key;
  Member T::*member;
  Range range;
};
template <class T>
using OptionalKey = FigureKey<T, std::optional<Figure>>;

constexpr FigureKey<Device> kDeviceFigures[] = {
    {"peak_fp32", &Device::peak_fp32, {1e11, 1e17, "FLOP/s"}},
    {"peak_16bit", &Device::peak_16bit, {1e12, 1e17, "FLOP/s"}},
    {"peak_fp8", &Device::peak_fp8, {1e12, 1e17, "FLOP/s", true}},
    {"memory", &Device::memory, {1e8, 1e13, "bytes"}},
    {"bandwidth", &Device::bandwidth, {1e10, 1e15, "bytes/s"}},
    {"gemm_efficiency", &Device::gemm_efficiency, {0.05, 1.0, ""}},
    {"attention_efficiency", &Device::attention_efficiency, {0.02, 1.0, ""}},
    {"memory_efficiency", &Device::memory_efficiency, {0.1, 1.0, ""}},
    {"launch", &Device::launch, {1e-8, 1e-3, "s"}},
    {"idle_power", &Device::idle_power, {1.0, 1000.0, "W"}},
    {"peak_power", &Device::peak_power, {10.0, 10000.0, "W"}},
};
constexpr FigureKey<Node> kNodeFigures[] = {
    {"host_power", &Node::host_power, {10.0, 20000.0, "W"}},
    {"host_memory", &Node::host_memory, {1e9, 1e14, "bytes"}},
    {"host_bandwidth", &Node::host_bandwidth, {1e9, 1e14, "bytes/s"}},
    {"host_link", &Node::host_link, {1e8, 1e13, "bytes/s"}},
};
constexpr FigureKey<Tier> kTierFigures[] = {
    {"bandwidth", &Tier::bandwidth, {1e7, 1e14, "bytes/s"}},
    {"efficiency", &Tier::efficiency, {0.05, 1.0, ""}},
    {"latency", &Tier::latency, {1e-8, 1e-2, "s"}},
};
constexpr FigureKey<Site> kSiteFigures[] = {
    {"pue", &Site::pue, {1.0, 3.0, ""}},
    {"intensity_g_per_kwh", &Site::intensity, {0.0, 2000.0, "g CO2e/kWh", false, 1e-3 / kJoulesPerKwh}},
    {"water_l_per_kwh", &Site::water, {0.0, 50.0, "l/kWh", false, 1e-3 / kJoulesPerKwh}},
    {"price_eur_per_kwh", &Site::price, {0.0, 5.0, "euros/kWh", false, 1.0 / kJoulesPerKwh}},
};
constexpr double kSecondsOfHour = 3600.0;
constexpr OptionalKey<Site> kSiteOptions[] = {
    {"price_eur_per_device_hour", &Site::device_hour, {0.0, 1000.0, "euros/h", false, 1.0 / kSecondsOfHour}},
    {"market_intensity_g_per_kwh", &Site::market_intensity, {0.0, 2000.0, "g CO2e/kWh", false, 1e-3 / kJoulesPerKwh}},
    {"embodied_g_per_device_hour", &Site::embodied, {0.0, 10000.0, "g CO2e/h", false, 1e-3 / kSecondsOfHour}},
};
constexpr OptionalKey<Reliability> kReliabilityFigures[] = {
    {"step_jitter", &Reliability::step_jitter, {0.0, 0.3, "of the mean"}},
    {"slow_node_share", &Reliability::slow_node_share, {0.0, 0.5, "of the nodes"}},
    {"slow_node_factor", &Reliability::slow_node_factor, {1.0, 10.0, ""}},
    {"node_mtbf_hours", &Reliability::node_mtbf, {1.0, 1e8, "hours", false, kSecondsOfHour}},
    {"restart", &Reliability::restart, {1.0, 86400.0, "s"}},
};
constexpr OptionalKey<Storage> kStorageFigures[] = {
    {"write_bandwidth", &Storage::write_bandwidth, {1e6, 1e15, "bytes/s"}},
    {"read_bandwidth", &Storage::read_bandwidth, {1e6, 1e15, "bytes/s"}},
    {"node_bandwidth", &Storage::node_bandwidth, {1e6, 1e13, "bytes/s"}},
};
constexpr OptionalKey<Clocks> kClockFigures[] = {
    {"low_hz", &Clocks::low, {1e6, 1e11, "Hz"}},     {"high_hz", &Clocks::high, {1e6, 1e11, "Hz"}},
    {"step_hz", &Clocks::step, {1e6, 1e10, "Hz"}},   {"knee_hz", &Clocks::knee, {1e6, 1e11, "Hz"}},
    {"exponent", &Clocks::exponent, {0.0, 5.0, ""}}, {"share", &Clocks::share, {0.0, 1.0, "of the time"}},
    {"change_s", &Clocks::change, {0.0, 10.0, "s"}},
};

std::string shown(std::string_view key) {
  return printable(key.substr(0, kLongestShownKey)) + (key.size() > kLongestShownKey ? "..." : "");
}

// Dotted keys nest tables, which are destroyed recursively, and the parser does not limit their depth. Long dotted keys
// are therefore refused here, so that they cannot overflow the stack.
void refuse_many_dots(std::string_view text, std::string_view origin) {
  int line = 1, dots = 0;
  for (const char c : text) {
    if (c == '\n')
      ++line, dots = 0;
    else if (c == '.' && ++dots > kMostDots)
      throw UsageError("{}:{}: the line has more than {} dots", origin, line, kMostDots);
  }
}

toml::table parse_text(std::string_view text, std::string_view origin) {
  if (text.size() > kLargestText) throw UsageError("{}: the file is larger than {} bytes", origin, kLargestText);
  refuse_many_dots(text, origin);
  try {
    return toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    throw UsageError("{}:{}: the file is not TOML: {}", origin, error.source().begin.line, error.description());
  }
}

double number_of(const toml::node& node) {
  if (const auto* v = node.as_integer()) return static_cast<double>(v->get());
  if (const auto* v = node.as_floating_point()) return v->get();
  return std::numeric_limits<double>::quiet_NaN();
}

// A table of the file, with the name of its keys in messages.
class Section {
 public:
  Section(const toml::table& table, std::string_view origin, std::string prefix)
      : table_(table), origin_(origin), prefix_(std::move(prefix)) {}

  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  // Returns "file:line: key", with the line of the value, or that of the table if there is none.
  std::string where(std::string_view name) const {
    const toml::node* node = table_.get(name);
    return fmt::format("{}:{}: {}", origin_, line_of(node ? *node : table_), key(name));
  }

  void refuse_unknown(const std::vector<std::string>& names) const {
    std::vector<std::string> valid;
    for (const std::string& name : names) valid.push_back(key(name));
    for (const auto& [name, node] : table_) {
      if (std::find(names.begin(), names.end(), name.str()) != names.end()) continue;
      const std::string full = key(name.str());
      throw UsageError("{}:{}: {}: the key is unknown{} (docs/formats/cluster.md lists all)", origin_, line_of(node),
                       shown(full), did_you_mean(full, valid));
    }
  }

  const toml::node& at(std::string_view name, std::string_view wanted) const {
    const toml::node* node = table_.get(name);
    if (!node) throw UsageError("{}: the key is missing; expected {}", where(name), wanted);
    return *node;
  }

  bool contains(std::string_view name) const { return table_.contains(name); }

  Section table(std::string_view name) const {
    const std::string header = fmt::format("the table [{}]", key(name));
    const toml::table* table = at(name, header).as_table();
    if (!table) throw UsageError("{}: expected {}", where(name), header);
    return {*table, origin_, key(name) + "."};
  }

  std::string text(std::string_view name) const {
    const auto* value = at(name, "a text").as_string();
    if (!value) throw UsageError("{}: expected a text in quotes", where(name));
    const std::string& text = value->get();
    if (text.find_first_not_of(" \t") == std::string::npos) throw UsageError("{}: the text is empty", where(name));
    if (text.size() > kLongestText) throw UsageError("{}: the text has more than {} bytes", where(name), kLongestText);
    if (text.find('\n') != std::string::npos || printable(text) != text)
      throw UsageError("{}: the text has a line break or a control character", where(name));
    return text;
  }

  // As `figure`, where the key is there.
  std::optional<Figure> figure_if_any(std::string_view name, const Range& range) const {
    return contains(name) ? std::optional(figure(name, range)) : std::nullopt;
  }

  std::int64_t whole(std::string_view name, std::int64_t low, std::int64_t high) const {
    const std::string range = fmt::format("a whole number from {} to {}", low, high);
    const auto* value = at(name, range).as_integer();
    if (!value) throw UsageError("{}: expected {}", where(name), range);
    if (value->get() < low || value->get() > high)
      throw UsageError("{}: {} is out of range; expected {}", where(name), value->get(), range);
    return value->get();
  }

  Figure figure(std::string_view name, const Range& range) const {
    const std::string form = fmt::format("{{ value = {}, source = \"...\" }}", range.text());
    const toml::table* members = at(name, "the figure " + form).as_table();
    if (!members) throw UsageError("{}: a figure needs its source; expected {}", where(name), form);
    const Section fields(*members, origin_, key(name) + ".");
    fields.refuse_unknown({"value", "spread", "source"});
    Figure figure;
    figure.value = fields.number("value", range) * range.si;
    if (members->contains("spread")) figure.spread = fields.number("spread", {0.0, 1.0, "of the value"});
    figure.source = fields.text("source");
    return figure;
  }

  template <class T>
  void figures(std::span<const FigureKey<T>> keys, T& into) const {
    for (const FigureKey<T>& k : keys) into.*k.member = figure(k.key, k.range);
  }
  // The figures that the table has; the others stay absent.
  template <class T>
  void figures(std::span<const OptionalKey<T>> keys, T& into) const {
    for (const OptionalKey<T>& k : keys)
      if (table_.contains(k.key)) into.*k.member = figure(k.key, k.range);
  }

 private:
  static int line_of(const toml::node& node) { return std::max(1, static_cast<int>(node.source().begin.line)); }

  double number(std::string_view name, const Range& range) const {
    const toml::node& node = at(name, range.text());
    if (!node.is_number()) throw UsageError("{}: expected a number, {}", where(name), range.text());
    const double value = number_of(node);
    if (!range.has(value)) throw UsageError("{}: {:g} is out of range; expected {}", where(name), value, range.text());
    return value;
  }

  const toml::table& table_;
  std::string_view origin_;
  std::string prefix_;
};

template <class Key, std::size_t N>
std::vector<std::string> with_figures(std::vector<std::string> names, const Key (&keys)[N]) {
  for (const auto& k : keys) names.emplace_back(k.key);
  return names;
}

std::string read_name(const Section& top) {
  std::string name = top.text("name");
  const char* letters = "abcdefghijklmnopqrstuvwxyz0123456789-";
  if (name.size() > 64 || name.find_first_not_of(letters) != std::string::npos)
    throw UsageError("{}: '{}' is not a name; expected up to 64 lower-case letters, digits and '-'", top.where("name"),
                     shown(name));
  return name;
}

Device read_device(const Section& section) {
  section.refuse_unknown(with_figures({"name", "kind", "peak_note", "multiprocessors"}, kDeviceFigures));
  Device device;
  device.name = section.text("name");
  device.kind = section.text("kind");
  const std::vector<std::string> kinds{"cuda", "rocm", "ipu"};
  if (std::find(kinds.begin(), kinds.end(), device.kind) == kinds.end())
    throw UsageError("{}: '{}' is unknown{}; expected {}", section.where("kind"), shown(device.kind),
                     did_you_mean(device.kind, kinds), fmt::join(kinds, ", "));
  device.peak_note = section.text("peak_note");
  device.multiprocessors = static_cast<double>(section.whole("multiprocessors", 0, 65536));
  section.figures<Device>(kDeviceFigures, device);
  if (device.idle_power.value > device.peak_power.value)
    throw UsageError("{}: {:g} W exceeds device.peak_power, {:g} W", section.where("idle_power"),
                     device.idle_power.value, device.peak_power.value);
  return device;
}

Node read_node(const Section& section) {
  section.refuse_unknown(with_figures({"devices"}, kNodeFigures));
  Node node;
  node.devices = static_cast<int>(section.whole("devices", 1, kMostDevicesOfNode));
  section.figures<Node>(kNodeFigures, node);
  return node;
}

// Reads a tier, whose groups must consist of whole groups of the tier before.
Tier read_tier(const Section& section, const Tier* before, int all) {
  section.refuse_unknown(with_figures({"name", "devices"}, kTierFigures));
  Tier tier;
  tier.name = section.text("name");
  tier.devices = static_cast<int>(section.whole("devices", 2, std::numeric_limits<int>::max()));
  if (tier.devices > all)
    throw UsageError("{}: a group of {} devices is larger than the cluster, which has {} (nodes x node.devices)",
                     section.where("devices"), tier.devices, all);
  if (before && tier.devices <= before->devices)
    throw UsageError("{}: {} devices are not more than the {} of the tier before, '{}'; tiers grow",
                     section.where("devices"), tier.devices, before->devices, before->name);
  if (before && tier.devices % before->devices != 0)
    throw UsageError("{}: {} devices are not a multiple of the {} of the tier before, '{}'", section.where("devices"),
                     tier.devices, before->devices, before->name);
  section.figures<Tier>(kTierFigures, tier);
  return tier;
}

std::vector<Tier> read_tiers(const Section& top, std::string_view origin, int all) {
  constexpr std::string_view kForm = "tables [[tiers]], from the smallest group of devices to all of them";
  const toml::array* tables = top.at("tiers", kForm).as_array();
  if (!tables || tables->empty() || !tables->is_array_of_tables())
    throw UsageError("{}: expected {}", top.where("tiers"), kForm);
  if (tables->size() > kMostTiers) throw UsageError("{}: there are more than {} tiers", top.where("tiers"), kMostTiers);
  std::vector<Tier> tiers;
  for (const toml::node& node : *tables) {
    const Section section(*node.as_table(), origin, "tiers.");
    tiers.push_back(read_tier(section, tiers.empty() ? nullptr : &tiers.back(), all));
    if (&node == &tables->back() && tiers.back().devices != all)
      throw UsageError("{}: the last tier has {} devices; it must have all {} of the cluster (nodes x node.devices)",
                       section.where("devices"), tiers.back().devices, all);
  }
  return tiers;
}

Site read_site(const Section& section) {
  section.refuse_unknown(with_figures(with_figures({}, kSiteFigures), kSiteOptions));
  Site site;
  section.figures<Site>(kSiteFigures, site);
  section.figures<Site>(std::span<const OptionalKey<Site>>(kSiteOptions), site);
  return site;
}

const Range& range_of_site(const char* key) {
  for (const auto& k : kSiteFigures)
    if (std::string_view(k.key) == key) return k.range;
  for (const auto& k : kSiteOptions)
    if (std::string_view(k.key) == key) return k.range;
  MOLEN_CHECK(false, "no figure {}", key);
}

// Reads the [site] table of a file that has no other: `country` may stand in for the intensity.
RunSite read_run_site(const Section& section, const std::string& origin) {
  section.refuse_unknown({"pue", "country", "intensity_g_per_kwh", "intensity_file", "water_l_per_kwh",
                          "price_eur_per_kwh", "market_intensity_g_per_kwh", "embodied_g_per_device_hour"});
  RunSite site;
  if (section.contains("country")) {
    const std::string code = section.text("country");
    const auto found = std::ranges::find(countries(), code, &Country::code);
    if (found == countries().end())
      throw UsageError(
          "{}: molen has no carbon intensity of a country '{}'; docs/formats/site.md lists those that it has",
          section.where("country"), shown(code));
    site = find_site(code);
  }
  site.name = origin;
  site.pue = section.figure("pue", range_of_site("pue"));
  if (section.contains("intensity_g_per_kwh") || !section.contains("country"))
    site.intensity = section.figure("intensity_g_per_kwh", range_of_site("intensity_g_per_kwh"));
  site.water = section.figure_if_any("water_l_per_kwh", range_of_site("water_l_per_kwh"));
  site.price = section.figure_if_any("price_eur_per_kwh", range_of_site("price_eur_per_kwh"));
  site.market_intensity =
      section.figure_if_any("market_intensity_g_per_kwh", range_of_site("market_intensity_g_per_kwh"));
  site.embodied = section.figure_if_any("embodied_g_per_device_hour", range_of_site("embodied_g_per_device_hour"));
  if (section.contains("intensity_file"))
    site.series_file = (fs::path(origin).parent_path() / section.text("intensity_file")).string();
  return site;
}

// Reads a table that a description may leave out, and of whose figures it may have any.
template <class T, std::size_t N>
T read_optional(const Section& top, const char* name, const OptionalKey<T> (&keys)[N]) {
  T figures;
  if (!top.contains(name)) return figures;
  const Section section = top.table(name);
  section.refuse_unknown(with_figures({}, keys));
  section.figures<T>(std::span<const OptionalKey<T>>(keys), figures);
  return figures;
}

Clocks read_clocks(const Section& top) {
  auto clocks = read_optional<Clocks>(top, "clocks", kClockFigures);
  if (!clocks.high) return clocks;
  for (const auto& [key, figure] : {std::pair("low_hz", &clocks.low), std::pair("knee_hz", &clocks.knee)})
    if (*figure && (*figure)->value > clocks.high->value)
      throw UsageError("{}: {:g} Hz exceeds clocks.high_hz, {:g} Hz", top.table("clocks").where(key), (*figure)->value,
                       clocks.high->value);
  return clocks;
}

}  // namespace

RunSite parse_site(std::string_view text, const std::string& origin) {
  const toml::table document = parse_text(text, origin);
  if (document.contains("device")) {
    RunSite site = site_of(parse(text, origin));
    site.name = origin;
    return site;
  }
  const Section top(document, origin, "");
  top.refuse_unknown({"site"});
  return read_run_site(top.table("site"), origin);
}

Cluster parse(std::string_view text, const std::string& origin) {
  const toml::table document = parse_text(text, origin);
  const Section top(document, origin, "");
  top.refuse_unknown({"name", "title", "nodes", "device", "node", "tiers", "site", "reliability", "storage", "clocks"});
  Cluster cluster;
  cluster.origin = origin;
  cluster.name = read_name(top);
  cluster.title = top.text("title");
  cluster.nodes = static_cast<int>(top.whole("nodes", 1, kMostNodes));
  cluster.device = read_device(top.table("device"));
  cluster.node = read_node(top.table("node"));
  if (cluster.devices() < 2)
    throw UsageError("{}: a cluster has at least 2 devices (nodes x node.devices)", top.where("nodes"));
  cluster.tiers = read_tiers(top, origin, cluster.devices());
  cluster.site = read_site(top.table("site"));
  cluster.reliability = read_optional<Reliability>(top, "reliability", kReliabilityFigures);
  cluster.storage = read_optional<Storage>(top, "storage", kStorageFigures);
  cluster.clocks = read_clocks(top);
  return cluster;
}

}  // namespace molen::cluster
