// Clusters by name or by file.
#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/suggest.h"
#include "base/units.h"
#include "base/utf8.h"
#include "cluster/cluster.h"
#include "cluster/shipped_files.h"

namespace molen::cluster {
namespace {

constexpr std::int64_t kLargestDescription = 1 << 20;  // bytes
constexpr std::size_t kLongestShownName = 100;

std::string shown_name(std::string_view name) {
  return printable(name.size() <= kLongestShownName ? std::string(name)
                                                    : std::string(name.substr(0, kLongestShownName)) + "...");
}

}  // namespace

const std::vector<std::string>& shipped() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> sorted;
    for (const ShippedFile& file : shipped_files()) sorted.emplace_back(file.name);
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }();
  return names;
}

std::string_view shipped_text(const std::string& name) {
  for (const ShippedFile& file : shipped_files())
    if (file.name == name) return file.text;
  throw UsageError("there is no cluster '{}'{}\nmolen ships {}; a word that ends in .toml or has a / is a file",
                   shown_name(name), did_you_mean(name, shipped()), fmt::join(shipped(), ", "));
}

Cluster find(const std::string& name_or_file) {
  if (name_or_file.ends_with(".toml") || name_or_file.find('/') != std::string::npos) {
    const std::string text = read_file(name_or_file, kLargestDescription);
    if (const auto first = text.find_first_not_of(" \t\r\n"); first != std::string::npos && text[first] == '{')
      throw UsageError(
          "{}: this is JSON, as a calibration is; needed here is the description of a cluster (*.toml), or the name of "
          "one that molen ships",
          name_or_file);
    return parse(text, name_or_file);
  }
  Cluster cluster = parse(shipped_text(name_or_file), name_or_file + ".toml");
  cluster.origin = "shipped";
  return cluster;
}

const Tier& Cluster::tier_of(int wanted) const {
  MOLEN_CHECK(wanted >= 1, "a group of {} devices", wanted);
  for (const Tier& tier : tiers)
    if (tier.devices >= wanted) return tier;
  throw UsageError("cluster {} has {}, not {}", name, counted(devices(), "device"), wanted);
}

void Cluster::require_programs() const {
  if (device.kind == "ipu")
    throw UsageError(
        "cluster {}: molen has no programs for devices of kind ipu ({}); the description serves the "
        "compute calculus alone",
        name, device.name);
}

}  // namespace molen::cluster
