#include "sim/described_errors.h"

#include <fmt/format.h>

#include <span>

#include "program/parts/part.h"
#include "program/values/costs.h"

namespace molen::sim {
namespace {

// A figure on which costs depend. Ops take longer where a rate or a share is less, and where a time is more.
template <class T>
struct CostFigure {
  const char* key;
  cluster::Figure T::*figure;
  bool is_time = false;
};

constexpr CostFigure<cluster::Device> kFiguresOfDevice[] = {
    {"peak_fp32", &cluster::Device::peak_fp32},
    {"peak_16bit", &cluster::Device::peak_16bit},
    {"peak_fp8", &cluster::Device::peak_fp8},
    {"bandwidth", &cluster::Device::bandwidth},
    {"gemm_efficiency", &cluster::Device::gemm_efficiency},
    {"attention_efficiency", &cluster::Device::attention_efficiency},
    {"memory_efficiency", &cluster::Device::memory_efficiency},
    {"launch", &cluster::Device::launch, true},
};
constexpr CostFigure<cluster::Node> kFiguresOfNode[] = {
    {"host_bandwidth", &cluster::Node::host_bandwidth},
    {"host_link", &cluster::Node::host_link},
};
constexpr CostFigure<cluster::Tier> kFiguresOfTier[] = {
    {"bandwidth", &cluster::Tier::bandwidth},
    {"efficiency", &cluster::Tier::efficiency},
    {"latency", &cluster::Tier::latency, true},
};

void slow_down(cluster::Figure& figure, bool is_time) {
  const double times = 1.0 + figure.spread;
  figure.value = is_time ? figure.value * times : figure.value / times;
}

// Calls `moved(name)` with each figure of one table at its slow end, while it is there.
template <class T, class Call>
void each_moved(std::span<const CostFigure<T>> figures, const std::string& table, T& of, const Call& moved) {
  for (const CostFigure<T>& f : figures) {
    cluster::Figure& figure = of.*(f.figure);
    if (!(figure.spread > 0.0)) continue;
    const cluster::Figure before = figure;
    slow_down(figure, f.is_time);
    moved(fmt::format("{}.{}", table, f.key));
    figure = before;
  }
}

// The seconds of an op without its epilogues, and of each epilogue.
std::vector<double> seconds_apart(const DescribedCosts& costs, const program::Program& p, const program::Step& step) {
  std::vector<double> all{costs.seconds(p, step)};
  for (const double epilogue : costs.epilogue_seconds(step)) {
    all[0] -= epilogue;
    all.push_back(epilogue);
  }
  return all;
}

}  // namespace

DescribedErrors::DescribedErrors(const cluster::Cluster& cluster, const Factors& factors, const Framework& framework)
    : costs_(cluster, factors, framework), spread_(factors.spread()) {
  cluster::Cluster c = cluster;
  const auto add = [&](const std::string& figure) {
    moved_.push_back({figure, figure.starts_with("node."), figure.starts_with("tiers."), {c, factors, framework}});
  };
  each_moved<cluster::Device>(kFiguresOfDevice, "device", c.device, add);
  each_moved<cluster::Node>(kFiguresOfNode, "node", c.node, add);
  for (cluster::Tier& tier : c.tiers) each_moved<cluster::Tier>(kFiguresOfTier, "tiers." + tier.name, tier, add);
}

std::string DescribedErrors::class_of(const program::Program& p, const program::Step& step) const {
  if (program::is_copy(step.op) || step.stream == program::Stream::kHost) return "host";
  if (const auto axis = program::axis_of(step.op)) {
    if (std::holds_alternative<program::Send>(step.op) || std::holds_alternative<program::Receive>(step.op) ||
        std::holds_alternative<program::RingExchange>(step.op))
      return "messages";
    const DescribedCosts::Group group = costs_.group_of(p, *axis);
    return group.in_node < group.ranks ? "collectives between nodes" : "collectives within nodes";
  }
  const auto* part = std::get_if<program::Compute>(&step.op);
  if (part && program::declaration_of(part->part).mixes_positions()) return "attention";
  return part && program::products_of(p, step) ? "products" : "memory";
}

std::vector<Errors> DescribedErrors::of(const program::Program& p, const program::Step& step) const {
  const std::vector<double> seconds = seconds_apart(costs_, p, step);
  std::vector<Errors> all(seconds.size());
  const bool communicates = program::is_communication(step.op), at_host = class_of(p, step) == "host";
  for (const Moved& moved : moved_) {
    // Figures on which the op cannot depend are not worth the time.
    if ((moved.of_host && !at_host) || (moved.of_links && !communicates)) continue;
    const std::vector<double> longer = seconds_apart(moved.costs, p, step);
    for (std::size_t k = 0; k < all.size(); ++k)
      if (longer[k] > seconds[k] && seconds[k] > 0.0) all[k][moved.figure] = longer[k] / seconds[k] - 1.0;
  }
  all[0][class_of(p, step)] = spread_;
  for (std::size_t k = 1; k < all.size(); ++k) all[k]["memory"] = spread_;
  return all;
}

}  // namespace molen::sim
