#include "sim/costs.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace molen::sim {

int CoreContention::busy() const {
  return static_cast<int>(std::min(static_cast<std::int64_t>(cores), static_cast<std::int64_t>(ranks) * threads));
}

double collective_traffic(const std::string& kind, double bytes, int ranks, const std::string& communicator) {
  const double n = ranks;
  // Each rank reads its n-th of n buffers and writes the result to its own buffer, or to all; a gather reads and writes
  // all of it.
  if (communicator == "threads") return kind == "reduce_scatter" ? bytes * (1.0 + 1.0 / n) : 2.0 * bytes;
  return bytes * (kind == "all_reduce" ? 2.0 : 1.0) * (n - 1.0) / n;
}

namespace {

bool is_message(const program::Op& op) {
  return std::holds_alternative<program::Send>(op) || std::holds_alternative<program::Receive>(op) ||
         std::holds_alternative<program::RingExchange>(op);
}

}  // namespace

double MeasuredCosts::seconds(const program::Program& p, const program::Step& step) const {
  double seconds = own_seconds(p, step);
  for (const double epilogue : epilogue_seconds(step)) seconds += epilogue;
  return seconds;
}

double MeasuredCosts::own_seconds(const program::Program& p, const program::Step& step) const {
  if (program::is_copy(step.op)) return copy_seconds(step, step.updates(program::Arg::kTo));
  if (is_message(step.op)) return message_seconds(p, step);
  return program::is_communication(step.op) ? collective_seconds(p, step) : compute_seconds(p, step);
}

// A message has two ends, whatever the number of ranks. Among threads, the receiver copies what the sender shows it.
double MeasuredCosts::message_seconds(const program::Program& p, const program::Step& step) const {
  const CostModel& model = collectives_ ? collectives_->model : compute_;
  const bool sends = std::holds_alternative<program::Send>(step.op);
  if (!model.knows(fitted_kind(p, step)) && communicator_ == "threads") return sends ? 0.0 : copy_seconds(step, false);
  return model.seconds(p, step);
}

std::vector<double> MeasuredCosts::epilogue_seconds(const program::Step& step) const {
  std::vector<double> all;
  for (const program::EpilogueCost& e : step.epilogues) {
    std::string kind = program::kind_of(e.kind);
    const std::vector<double> features = features_of(e);
    if (!compute_.knows(kind) && collectives_ && collectives_->model.knows(kind)) {
      all.push_back(collectives_->model.seconds(kind, features));
      continue;
    }
    if (!compute_.knows(kind)) kind = "optimizer_step";
    const double near = compute_.seconds(kind, features);
    const bool both = contention_ && contention_->other.knows(kind);
    all.push_back(both ? under_contention(near, contention_->other.seconds(kind, features)) : near);
  }
  return all;
}

double MeasuredCosts::copy_seconds(const program::Step& step, bool adds) const {
  const double traffic = (adds ? 3.0 : 2.0) * static_cast<double>(step.moved.value);
  return compute_.seconds("optimizer_step", {1.0, std::log(std::max(1.0, traffic))});
}

double MeasuredCosts::compute_seconds(const program::Program& p, const program::Step& step) const {
  const double near = compute_.seconds(p, step);
  const bool both = contention_ && contention_->other.knows(fitted_kind(p, step));
  return both ? under_contention(near, contention_->other.seconds(p, step)) : near;
}

double MeasuredCosts::under_contention(double near, double other) const {
  const auto& c = *contention_;
  // Limits the growth: more busy cores do not make an op faster, and slow it down at most as if all its time were spent
  // on the shared memory.
  const double growth = std::log(other / near) / std::log(double(c.other_busy) / c.busy);
  return near * std::pow(double(sharing_.busy()) / c.busy, std::clamp(growth, 0.0, 1.0));
}

double MeasuredCosts::collective_seconds(const program::Program& p, const program::Step& step) const {
  const std::string kind = program::kind_of(step.op);
  const double bytes = std::max(1.0, static_cast<double>(step.moved.value));
  // The measured collectives were among all ranks, but this one is among the ranks of the op's axis. A group of one
  // rank only copies.
  const auto axis = program::axis_of(step.op);
  MOLEN_CHECK(axis, "{} is among no ranks", kind);
  const int group = program::group_size(p.grid, *axis), measured = collectives_ ? collectives_->ranks : sharing_.ranks;
  const CostModel& model = collectives_ ? collectives_->model : compute_;
  if (group == 1) return step.updates(program::Arg::kTo) ? 0.0 : copy_seconds(step, false);
  const double traffic = collective_traffic(kind, bytes, group, communicator_);
  if (measured == 0) return model.seconds("optimizer_step", {1.0, std::log(std::max(1.0, traffic))});
  if (group == measured) return model.seconds(p, step);
  // Returns the number of rounds of messages until each rank's few bytes have reached all ranks. Among threads, each
  // rank reads those of every other rank.
  const auto rounds = [&](int ranks) { return communicator_ == "mpi" ? std::ceil(std::log2(ranks)) : ranks - 1.0; };
  if (kind == "reduce_scalars") return model.seconds(p, step) * rounds(group) / rounds(measured);
  return model.seconds(p, step) * traffic / collective_traffic(kind, bytes, measured, communicator_);
}

}  // namespace molen::sim
