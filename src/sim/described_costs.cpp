#include "sim/described_costs.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "program/ir/stages.h"
#include "program/parts/part.h"
#include "program/values/costs.h"
#include "sim/attended.h"

namespace molen::sim {
namespace {

using program::parts::MatrixProduct;

// Tiles of a result that libraries choose from, and the rate at which a device computes them over that of the largest:
// a smaller tile uses each loaded element less often. The tiles are those of NVIDIA's libraries; the rates are
// assumptions.
struct Tile {
  double rows, columns, rate;
};
constexpr std::array kTiles{Tile{256, 128, 1.0}, Tile{128, 256, 1.0}, Tile{128, 128, 0.93},
                            Tile{128, 64, 0.8},  Tile{64, 128, 0.8},  Tile{64, 64, 0.65}};

// The products of a step: those of its forward, of the gradient of its input, and of the gradient of its weights.
std::vector<MatrixProduct> products_in(const program::Step& step, const program::StepProducts& of) {
  const MatrixProduct& f = of.forward;
  const MatrixProduct input{f.rows, f.terms, f.columns, f.groups};
  // Each group has the gradient of its own weights, over its own rows.
  const MatrixProduct weights{f.columns * f.groups, f.terms, f.rows / f.groups, f.groups};
  const auto pass = std::get<program::Compute>(step.op).pass;
  switch (of.count) {
    case 1:
      return {pass == program::Pass::kBackwardInput ? input : pass == program::Pass::kBackwardWeights ? weights : f};
    case 2:
      return {input, weights};
    case 3:
      return {f, input, weights};
    default:
      return {};
  }
}

// The bytes that kernels of a loss move for each logit. Forward: a cast to fp32 reads 2 and writes 4, the log of the
// softmax reads 4 and writes 4. Backward: the gradient of the softmax reads and writes 4, and its cast to 16 bits reads
// 4 and writes 2. The products read and write their own operands.
constexpr double kForwardOfLogit = 14.0, kBackwardOfLogit = 14.0;

double loss_bytes(const MatrixProduct& logits, int products) {
  const double forward = products == 1 || products == 3 ? kForwardOfLogit : 0.0,
               backward = products >= 2 ? kBackwardOfLogit : 0.0;
  return (forward + backward) * static_cast<double>(logits.rows) * static_cast<double>(logits.columns);
}

double operand_bytes(const MatrixProduct& p, int bytes) {
  const auto m = static_cast<double>(p.rows), n = static_cast<double>(p.columns), k = static_cast<double>(p.terms);
  return bytes * (m * k + static_cast<double>(p.groups) * k * n + m * n);
}

// Returns the number of matrices that a unit has as a program computes with them: query, key and value are one, and so
// are gate and up.
int matrices_of(const program::Program& p, const program::Unit& unit) {
  using arch::Role;
  int matrices = 0;
  for (const program::UnitEntry& entry : unit.entries) {
    const arch::Parameter& parameter = p.parameters.at(static_cast<std::size_t>(entry.parameter));
    const bool in_another =
        parameter.role == Role::kKey || parameter.role == Role::kValue || parameter.role == Role::kGate;
    if (parameter.shape.size() > 1 && !in_another) ++matrices;
  }
  return matrices;
}

// Whether an op copies between a device and its host, or computes there.
bool at_host(const program::Step& step) {
  return program::is_copy(step.op) || step.stream == program::Stream::kHost;
}

}  // namespace

DescribedCosts::DescribedCosts(cluster::Cluster cluster, Factors factors, Framework framework)
    : cluster_(std::move(cluster)), factors_(std::move(factors)), framework_(framework) {
  cluster_.require_programs();
  if (framework_.fp8 && cluster_.device.peak_fp8.value <= 0.0)
    throw UsageError("{}: {} does not compute in fp8", cluster_.name, cluster_.device.name);
  sharing_.one_at_a_time = framework_.one_at_a_time;
}

Interference DescribedCosts::interference() const {
  Interference all{};
  for (const program::Stream stream : program::kCommStreams)
    all[static_cast<std::size_t>(stream)] = factors_.of("interference");
  if (!framework_.messages_beside_compute) all[static_cast<std::size_t>(program::Stream::kPpComm)] = 1.0;
  return all;
}

double DescribedCosts::peak(int bytes) const {
  const cluster::Device& device = cluster_.device;
  if (bytes == 2) return device.peak_16bit.value;
  if (bytes == 4) return device.peak_fp32.value;
  throw UsageError("{}: the description of {} has no rate of fp64 products; precision.compute = \"fp32\" or \"bf16\"",
                   cluster_.name, device.name);
}

double DescribedCosts::efficiency_of(const MatrixProduct& p) const {
  const double units = cluster_.device.multiprocessors;
  const auto m = static_cast<double>(p.rows) / static_cast<double>(p.groups), n = static_cast<double>(p.columns),
             groups = static_cast<double>(p.groups);
  double best = 0.0;
  for (const Tile& tile : kTiles) {
    const double tiles = groups * std::ceil(m / tile.rows) * std::ceil(n / tile.columns);
    const double computed = units > 0.0 ? std::ceil(tiles / units) * units : tiles;
    best = std::max(best, tile.rate * groups * m * n / (tile.rows * tile.columns) / computed);
  }
  const auto k = static_cast<double>(p.terms);
  // Tensor cores take whole groups of 8 elements of 16 bits (NVIDIA, the guide above, section "Requirements to use
  // tensor cores").
  if (p.terms % 8 != 0 || p.columns % 8 != 0) best *= factors_.of("ragged");
  return best * k / (k + factors_.of("gemm_terms"));
}

double DescribedCosts::product_seconds(const MatrixProduct& p, int bytes, bool linear_layer) const {
  if (p.flops() <= 0.0) return 0.0;
  const cluster::Device& device = cluster_.device;
  double rate = peak(bytes) * device.gemm_efficiency.value * factors_.of("gemm") * efficiency_of(p);
  if (framework_.fp8 && linear_layer && bytes == 2)
    rate *= device.peak_fp8.value / device.peak_16bit.value * factors_.of("gemm_fp8");
  const double moving = operand_bytes(p, bytes) / (device.bandwidth.value * device.memory_efficiency.value);
  return device.launch.value * factors_.of("launch") + std::max(p.flops() / rate, moving);
}

double DescribedCosts::fastest_rate(int bytes) const {
  const cluster::Device& device = cluster_.device;
  double products = device.gemm_efficiency.value * factors_.of("gemm");
  if (framework_.fp8 && bytes == 2)
    products *= std::max(1.0, device.peak_fp8.value / device.peak_16bit.value * factors_.of("gemm_fp8"));
  const double attention = device.attention_efficiency.value * factors_.of("attention");
  return peak(bytes) * std::max(products, attention);
}

double DescribedCosts::memory_seconds(double bytes) const {
  const cluster::Device& device = cluster_.device;
  return device.launch.value * factors_.of("launch") +
         bytes * factors_.of("memory") / (device.bandwidth.value * device.memory_efficiency.value);
}

double DescribedCosts::attention_seconds(const program::Program& p, const program::Step& step) const {
  const auto& op = std::get<program::Compute>(step.op);
  const bool backward = arch::is_backward(op.pass);
  const double flops = step.hardware_flops.value;
  const std::int64_t width = p.local.head_dim;
  const double aligned = width % 64 == 0 ? 1.0 : factors_.of("misaligned");
  const int bytes = size_of(step.attributes.compute.value_or(DType::kF32));
  if (framework_.flash_attention && !flash_on_device(p, step)) return written_attention_seconds(step, width);

  if (framework_.flash_attention) {
    // A backward in tiles computes the scores again: five products for the four that count.
    const double rate = peak(bytes) * cluster_.device.attention_efficiency.value * factors_.of("attention") * aligned;
    return memory_seconds(0.0) + (backward ? 1.25 * flops / (rate * factors_.of("attention_backward")) : flops / rate);
  }
  // The products of whole scores, with the half above the diagonal, and the traffic of the scores. In 16 bits a forward
  // moves 13 bytes for each score: the product writes 2, softmax with scale and mask reads 2 and writes 2, dropout
  // reads 2 and writes 2 and a mask of 1, and the product with the values reads 2. A backward moves 19 bytes: 3
  // products of scores and what comes back through dropout and softmax. A backward has twice the products.
  constexpr double kBackwardTraffic = 19.0 / 13.0;
  const program::Rows& rows = step.attributes.rows;
  const std::int64_t heads = rows.sequences * p.local.heads, length = rows.length,
                     keys = length * p.grid.sizes[mesh::Axis::kCp];  // those of all context ranks
  const double times = backward ? 2.0 : 1.0, scores = static_cast<double>(heads) * static_cast<double>(length * keys);
  // The few terms of a product of scores do not slow it as they do other products: its result is in the traffic.
  const double rate = peak(bytes) * cluster_.device.gemm_efficiency.value * factors_.of("gemm") *
                      (width % 8 == 0 ? 1.0 : factors_.of("ragged"));
  const double products = memory_seconds(0.0) * 2.0 + 4.0 * scores * static_cast<double>(width) / rate;
  const double traffic = scores * factors_.of("scores_bytes") /
                         (cluster_.device.bandwidth.value * cluster_.device.memory_efficiency.value);
  return times * products / aligned + (backward ? kBackwardTraffic : 1.0) * traffic;
}

// Counted in model/device_attention.cpp: operators that write scores out, in fp32, one after another. For each score a
// forward moves 48 bytes: the product writes 4, scaling and the mask read and write 4 each, the maximum reads 4, the
// difference and its exponential read and write 4 each, and the sum and the second product read 4 each. A backward
// moves 80 and multiplies the scores again. Only scores below the diagonal are written.
double DescribedCosts::written_attention_seconds(const program::Step& step, std::int64_t width) const {
  constexpr double kForwardBytes = 48.0, kBackwardBytes = 80.0;
  const bool backward = arch::is_backward(std::get<program::Compute>(step.op).pass);
  const double flops = step.hardware_flops.value, scores = flops / static_cast<double>((backward ? 8 : 4) * width);
  const double rate = peak(4) * cluster_.device.gemm_efficiency.value * factors_.of("gemm");
  return (backward ? 1.25 : 1.0) * flops / rate + memory_seconds(scores * (backward ? kBackwardBytes : kForwardBytes));
}

// The backward of a layer's last product stands for the forward that a framework makes again before it.
bool DescribedCosts::ends_layer_again(const program::Program& p, const program::Compute& op) const {
  const program::Recompute& recompute = p.setting.recompute;
  return framework_.whole_layers_again && op.part == arch::Part::kDown && arch::is_backward(op.pass) &&
         op.pass != program::Pass::kBackwardWeights && recompute.parts == program::Recompute::full().parts &&
         recompute.in(arch::Part::kOutProjection, op.layer);
}

double DescribedCosts::part_seconds(const program::Program& p, const program::Step& step) const {
  const auto& op = std::get<program::Compute>(step.op);
  if (program::declaration_of(op.part).mixes_positions()) return attention_seconds(p, step);
  const int bytes = size_of(step.attributes.compute.value_or(DType::kF32));
  double seconds = 0.0, moved = static_cast<double>(step.moved.value);
  if (auto of = program::products_of(p, step)) {
    if (framework_.whole_logits && program::of_head(op.part))
      seconds += memory_seconds(loss_bytes(of->forward, of->count));
    for (const MatrixProduct& product : products_in(step, *of)) moved -= operand_bytes(product, bytes);
    double share = 1.0;
    if (const std::int64_t rows = of->forward.rows, tokens = p.setting.tokens();
        framework_.pieces_at_once && rows < tokens && of->forward.groups == 1) {
      share = static_cast<double>(rows) / static_cast<double>(tokens);
      of->forward.rows = tokens;
    }
    std::vector<MatrixProduct> products = products_in(step, *of);
    if (ends_layer_again(p, op)) products.push_back(of->forward);
    for (const MatrixProduct& product : products)
      seconds += share * product_seconds(product, bytes, !program::of_head(op.part));
  }
  if (moved <= 0.0) return seconds;
  return seconds + memory_seconds(moved * (framework_.compiled ? factors_.of("compiled") : 1.0));
}

DescribedCosts::Group DescribedCosts::group_of(const program::Program& p, program::Axis axis) const {
  Group group;
  const mesh::Axes axes = program::axes_of(axis);
  int stride = 1, smallest = 0;
  for (auto a = p.grid.order.rbegin(); a != p.grid.order.rend(); ++a) {
    const int size = p.grid.sizes[*a];
    if (axes.contains(*a) && size > 1) {
      if (smallest == 0) smallest = stride;
      group.in_node *= std::clamp(cluster_.node.devices / stride, 1, size);
    }
    stride *= size;
  }
  group.ranks = program::group_size(p.grid, axis);
  group.distance = std::max(1, smallest);
  if (axis == program::Axis::kEmbedding && group.ranks == 2) {  // the first and the last stage
    group.distance *= p.grid.sizes[mesh::Axis::kPp] - 1;
    group.in_node = group.distance < cluster_.node.devices ? 2 : 1;
  }
  group.in_node = std::min(group.in_node, group.ranks);
  return group;
}

double DescribedCosts::bandwidth_within(const Group& g) const {
  const int devices = std::min(g.distance * (g.in_node - 1) + 1, cluster_.node.devices);
  const cluster::Tier& tier = cluster_.tier_of(std::max(devices, std::min(2, cluster_.devices())));
  return tier.bandwidth.value * tier.efficiency.value * factors_.of("inside");
}

CollectiveRanks DescribedCosts::links_of(const Group& g) const {
  const cluster::Tier& near = cluster_.tier_of(std::min(2, cluster_.devices()));
  const cluster::Tier& far = cluster_.tier_of(std::min(g.distance * (g.ranks - 1) + 1, cluster_.devices()));
  const double latency = factors_.of("latency");
  return {.ranks = g.ranks,
          .in_node = g.in_node,
          .inside = bandwidth_within(g),
          .between = far.bandwidth.value * far.efficiency.value * factors_.of("between"),
          .near_s = near.latency.value * latency,
          .far_s = far.latency.value * latency,
          .start_s = cluster_.device.launch.value * factors_.of("launch")};
}

double DescribedCosts::collective_seconds(const std::string& kind, double bytes, const Group& g) const {
  if (g.ranks == 1) return memory_seconds(2.0 * bytes);
  const CollectiveRanks ranks = links_of(g);
  if (kind == "reduce_scalars") return *seconds_of(Algorithm::kTree, "all_reduce", 0.0, ranks);
  return fastest_of(kind == "all_reduce" ? framework_.all_reduces : framework_.other_collectives, kind, bytes, ranks);
}

const cluster::Tier& DescribedCosts::tier_of_message(const program::Program& p, const program::Step& step,
                                                     const Group& group) const {
  const int of_node = cluster_.node.devices, within = std::min({group.distance + 1, of_node, cluster_.devices()});
  bool crosses = group.in_node < group.ranks;  // a ring has a neighbour in another node
  const auto between = [&](int peer) {
    return program::stage_shown(p) * group.distance / of_node != peer * group.distance / of_node;
  };
  if (const auto* send = std::get_if<program::Send>(&step.op)) crosses = between(send->peer);
  if (const auto* receive = std::get_if<program::Receive>(&step.op)) crosses = between(receive->peer);
  return cluster_.tier_of(crosses ? std::min(of_node + 1, cluster_.devices()) : within);
}

double DescribedCosts::more_by_matrices(const program::Program& p, const program::Step& step, double bytes,
                                        const Group& group) const {
  const bool gathers = std::holds_alternative<program::AllGather>(step.op),
             scatters = std::holds_alternative<program::ReduceScatter>(step.op);
  if (!framework_.gathers_matrices || !p.setting.sharded_parameters() || !(gathers || scatters)) return 0.0;
  const auto axis = program::axis_of(step.op);
  if (!axis || stream_of(*axis) != program::Stream::kDpComm) return 0.0;
  const int unit = p.unit_of_buffer(step.operand(program::Arg::kTo).buffer);
  if (unit < 0) return 0.0;
  const int matrices = matrices_of(p, p.units.at(static_cast<std::size_t>(unit)));
  if (matrices == 0) return 0.0;
  const double start = collective_seconds(program::kind_of(step.op), 0.0, group);
  return (matrices - 1) * start + (matrices * group.ranks - 1) * memory_seconds(0.0) + memory_seconds(2.0 * bytes);
}

double DescribedCosts::communication_seconds(const program::Program& p, const program::Step& step) const {
  const auto axis = program::axis_of(step.op);
  const auto bytes = static_cast<double>(step.moved.value);
  const Group group = group_of(p, axis.value_or(program::Axis::kPp));
  const bool message = std::holds_alternative<program::Send>(step.op) ||
                       std::holds_alternative<program::Receive>(step.op) ||
                       std::holds_alternative<program::RingExchange>(step.op);
  if (!message) {
    // Both blocks of a layer end with an exchange of as many bytes.
    const bool twice = framework_.whole_layers_again && step.phase == program::Phase::kRecompute &&
                       axis == program::Axis::kTp && !std::holds_alternative<program::AllGather>(step.op) &&
                       p.setting.recompute.parts == program::Recompute::full().parts;
    return (twice ? 2.0 : 1.0) * collective_seconds(program::kind_of(step.op), bytes, group) +
           more_by_matrices(p, step, bytes, group);
  }
  const cluster::Tier& tier = tier_of_message(p, step, group);
  return cluster_.device.launch.value * factors_.of("launch") + tier.latency.value * factors_.of("latency") +
         bytes / (tier.bandwidth.value * tier.efficiency.value * factors_.of("messages"));
}

// The ranks of a node share its memory: each has as much of the rate as any other.
double DescribedCosts::host_seconds(const program::Program& p, const program::Step& step, double bytes) const {
  const cluster::Node& node = cluster_.node;
  const double of_rank = node.host_bandwidth.value / std::min(p.grid.ranks(), node.devices);
  return bytes / (program::is_copy(step.op) ? std::min(node.host_link.value, of_rank) : of_rank);
}

double DescribedCosts::seconds(const program::Program& p, const program::Step& step) const {
  double seconds = 0.0;
  const auto moved = static_cast<double>(step.moved.value);
  if (std::holds_alternative<program::SetClock>(step.op)) return 0.0;  // as in MeasuredCosts
  if (at_host(step))
    seconds = cluster_.device.launch.value * factors_.of("launch") + host_seconds(p, step, moved);
  else if (program::is_communication(step.op))
    seconds = communication_seconds(p, step);
  else if (std::holds_alternative<program::Compute>(step.op))
    seconds = part_seconds(p, step);
  else if (std::holds_alternative<program::OptimizerStep>(step.op))
    seconds = memory_seconds(moved * factors_.of("optimizer") / factors_.of("memory")) +
              step.hardware_flops.value / (peak(4) * cluster_.device.gemm_efficiency.value);
  else
    seconds = memory_seconds(moved);
  for (const double epilogue : epilogue_seconds(step)) seconds += epilogue;
  return seconds;
}

std::vector<double> DescribedCosts::epilogue_seconds(const program::Step& step) const {
  std::vector<double> all;
  MOLEN_CHECK(!at_host(step) || step.epilogues.empty(), "an epilogue of {}, which runs on the host",
              program::kind_of(step.op));
  for (const program::EpilogueCost& e : step.epilogues)
    all.push_back(memory_seconds(static_cast<double>(e.moved.value)));
  return all;
}

}  // namespace molen::sim
