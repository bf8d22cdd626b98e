#include "sim/costs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

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

MeasuredCosts::Priced MeasuredCosts::priced(const CostModel& model, const std::string& kind,
                                            const std::vector<double>& features) {
  return {model.seconds(kind, features), &model, model.fit_of(kind)};
}

double MeasuredCosts::seconds(const program::Program& p, const program::Step& step) const {
  double seconds = own(p, step).seconds;
  for (const double epilogue : epilogue_seconds(step)) seconds += epilogue;
  return seconds;
}

MeasuredCosts::Priced MeasuredCosts::own(const program::Program& p, const program::Step& step) const {
  // policy/clock_ops.h has the time of a change, which depends on the clock before it.
  if (std::holds_alternative<program::SetClock>(step.op)) return {};
  if (program::is_copy(step.op)) return copy(p, step);
  if (is_message(step.op)) return message(p, step);
  return program::is_communication(step.op) ? collective(p, step) : compute(p, step);
}

// A message has two ends, whatever the number of ranks. Among threads, the receiver copies what the sender shows it.
MeasuredCosts::Priced MeasuredCosts::message(const program::Program& p, const program::Step& step) const {
  const CostModel& model = collectives_ ? collectives_->model : compute_;
  const bool sends = std::holds_alternative<program::Send>(step.op);
  if (!model.knows(fitted_kind(p, step)) && communicator_ == "threads") return sends ? Priced{} : moved(step, false);
  return priced(model, fitted_kind(p, step), features_of(step));
}

MeasuredCosts::Priced MeasuredCosts::contended(Priced near, const std::string& kind,
                                               const std::vector<double>& features) const {
  const bool both = contention_ && contention_->other.knows(kind);
  if (both) near.seconds = under_contention(near.seconds, contention_->other.seconds(kind, features));
  return near;
}

const CostModel* MeasuredCosts::model_of(const program::EpilogueCost& e) const {
  const std::string kind = program::kind_of(e.kind);
  if (compute_.knows(kind)) return &compute_;
  return collectives_ && collectives_->model.knows(kind) ? &collectives_->model : nullptr;
}

MeasuredCosts::Priced MeasuredCosts::epilogue(const program::EpilogueCost& e) const {
  const CostModel* model = model_of(e);
  const std::string kind = model ? program::kind_of(e.kind) : "optimizer_step";
  const std::vector<double> features = features_of(e);
  if (model && model != &compute_) return priced(*model, kind, features);
  return contended(priced(compute_, kind, features), kind, features);
}

std::vector<double> MeasuredCosts::epilogue_seconds(const program::Step& step) const {
  std::vector<double> all;
  for (const program::EpilogueCost& e : step.epilogues) all.push_back(epilogue(e).seconds);
  return all;
}

MeasuredCosts::Priced MeasuredCosts::copy(const program::Program& p, const program::Step& step) const {
  const std::string kind = fitted_kind(p, step);
  if (!compute_.knows(kind)) return moved(step, step.updates(program::Arg::kTo));
  return contended(priced(compute_, kind, features_of(step)), kind, features_of(step));
}

std::string MeasuredCosts::extrapolated(const std::vector<const program::Program*>& programs) const {
  std::set<std::string> kinds;
  for (const program::Program* p : programs)
    for (const program::Body& body : p->bodies)
      for (const program::Step& step : body.steps) {
        const CostModel* model = program::is_copy(step.op)             ? &compute_
                                 : is_message(step.op) && collectives_ ? &collectives_->model
                                 : is_message(step.op)                 ? &compute_
                                                                       : nullptr;
        const bool free = std::holds_alternative<program::Send>(step.op);
        if (model && !free && !model->knows(fitted_kind(*p, step))) kinds.insert(fitted_kind(*p, step));
        for (const program::EpilogueCost& e : step.epilogues)
          if (!model_of(e)) kinds.insert(program::kind_of(e.kind));
      }
  if (kinds.empty()) return extrapolated_;
  return fmt::format("{}; {} at the optimizer step's memory rate",
                     extrapolated_.empty() ? "these conditions" : extrapolated_, fmt::join(kinds, ", "));
}

MeasuredCosts::Priced MeasuredCosts::moved(const program::Step& step, bool adds) const {
  const double traffic = (adds ? 3.0 : 2.0) * static_cast<double>(step.moved.value);
  return priced(compute_, "optimizer_step", {1.0, std::log(std::max(1.0, traffic))});
}

MeasuredCosts::Priced MeasuredCosts::compute(const program::Program& p, const program::Step& step) const {
  Priced near = priced(compute_, fitted_kind(p, step), features_of(step));
  const bool both = contention_ && contention_->other.knows(fitted_kind(p, step));
  if (both) near.seconds = under_contention(near.seconds, contention_->other.seconds(p, step));
  return near;
}

double MeasuredCosts::under_contention(double near, double other) const {
  const auto& c = *contention_;
  // Limits the growth: more busy cores do not make an op faster, and slow it down at most as if all its time were spent
  // on the shared memory.
  const double growth = std::log(other / near) / std::log(double(c.other_busy) / c.busy);
  return near * std::pow(double(sharing_.busy()) / c.busy, std::clamp(growth, 0.0, 1.0));
}

MeasuredCosts::Priced MeasuredCosts::collective(const program::Program& p, const program::Step& step) const {
  const std::string kind = program::kind_of(step.op);
  const double bytes = std::max(1.0, static_cast<double>(step.moved.value));
  // The measured collectives were among all ranks, but this one is among the ranks of the op's axis. A group of one
  // rank only copies.
  const auto axis = program::axis_of(step.op);
  MOLEN_CHECK(axis, "{} is among no ranks", kind);
  const int group = program::group_size(p.grid, *axis), measured = collectives_ ? collectives_->ranks : sharing_.ranks;
  const CostModel& model = collectives_ ? collectives_->model : compute_;
  if (group == 1) return step.updates(program::Arg::kTo) ? Priced{} : moved(step, false);
  const double traffic = collective_traffic(kind, bytes, group, communicator_);
  if (measured == 0) return priced(model, "optimizer_step", {1.0, std::log(std::max(1.0, traffic))});
  Priced all = priced(model, fitted_kind(p, step), features_of(step));
  if (group == measured) return all;
  // Returns the number of rounds of messages until each rank's few bytes have reached all ranks. Among threads, each
  // rank reads those of every other rank.
  const auto rounds = [&](int ranks) { return communicator_ == "mpi" ? std::ceil(std::log2(ranks)) : ranks - 1.0; };
  all.seconds *= kind == "reduce_scalars" ? rounds(group) / rounds(measured)
                                          : traffic / collective_traffic(kind, bytes, measured, communicator_);
  return all;
}

std::vector<Errors> MeasuredErrors::of(const program::Program& p, const program::Step& step) const {
  std::vector<Errors> all;
  const auto add = [&](const MeasuredCosts::Priced& cost) {
    Errors& errors = all.emplace_back();
    if (!cost.model) return;
    errors[cost.kind] = cost.model->spread(cost.kind);
    errors["whole steps"] = cost.model->factor_spread();
  };
  add(costs_.own(p, step));
  for (const program::EpilogueCost& e : step.epilogues) add(costs_.epilogue(e));
  return all;
}

}  // namespace molen::sim
