#include "sim/extrapolate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

namespace molen::sim {

class Extrapolation {
 public:
  Extrapolation(const Calibration& calibration, const Conditions& wanted) : wanted_(wanted) {
    for (const auto& e : calibration.entries)
      if (e.conditions.threads == wanted.threads && e.conditions.compute == wanted.compute &&
          e.conditions.kernels == wanted.kernels)
        basis_.push_back(&e);
  }

  Result<MeasuredCosts> run() const {
    if (basis_.empty())
      return Failure{"the number of threads a rank, the precision and the kernels of a prediction must be measured"};
    const Calibration::Entry& near = *nearest(basis_);
    const CoreContention sharing{near.cores.logical, wanted_.ranks, wanted_.threads};
    if (wanted_.threads > 1 && wanted_.ranks * std::int64_t{wanted_.threads} > sharing.cores)
      return Failure{fmt::format(
          "{} ranks of {} threads on {} cores: threads that wait for each other at every loop's end, without a core "
          "each, follow no rule",
          wanted_.ranks, wanted_.threads, sharing.cores)};
    MeasuredCosts costs(near.costs, sharing, wanted_.communicator);
    costs.extrapolated_ = near.conditions.text();
    add_contention(costs, near);
    if (wanted_.ranks > 1)
      if (const auto lacking = add_collectives(costs, near)) return *lacking;
    if (sharing.rate(static_cast<double>(wanted_.ranks) * wanted_.threads) < 1.0)
      costs.extrapolated_ +=
          fmt::format("; {} threads share {} cores", wanted_.ranks * std::int64_t{wanted_.threads}, sharing.cores);
    return costs;
  }

 private:
  static int busy(const Calibration::Entry& e) {
    return CoreContention{e.cores.logical, e.conditions.ranks, e.conditions.threads}.busy();
  }
  static double distance(int a, int b) { return std::abs(std::log(static_cast<double>(a) / b)); }

  // The nearest entry by busy cores, then by communicator, then by ranks; among equals, the one measured last.
  const Calibration::Entry* nearest(const std::vector<const Calibration::Entry*>& among) const {
    const auto rank_of = [&](const Calibration::Entry* e) {
      const int wanted = CoreContention{e->cores.logical, wanted_.ranks, wanted_.threads}.busy();
      return std::tuple(distance(busy(*e), wanted), e->conditions.communicator != wanted_.communicator,
                        distance(e->conditions.ranks, wanted_.ranks));
    };
    return *std::min_element(among.rbegin(), among.rend(),
                             [&](const auto* a, const auto* b) { return rank_of(a) < rank_of(b); });
  }

  void add_contention(MeasuredCosts& costs, const Calibration::Entry& near) const {
    const int wanted = costs.sharing_.busy();
    if (busy(near) == wanted) return;
    std::vector<const Calibration::Entry*> others;
    for (const auto* e : basis_)
      if (e->cores == near.cores && busy(*e) != busy(near)) others.push_back(e);
    if (others.empty()) {
      costs.extrapolated_ += fmt::format("; how {} busy cores slow each other's memory was not measured", wanted);
      return;
    }
    const Calibration::Entry& other = *nearest(others);
    costs.contention_ = MeasuredCosts::Contention{other.costs, busy(near), busy(other)};
    costs.extrapolated_ += "; memory shared by busy cores from " + other.conditions.text();
  }

  // Returns why there are no costs of collectives; nullopt when they are added.
  std::optional<Failure> add_collectives(MeasuredCosts& costs, const Calibration::Entry& near) const {
    std::vector<const Calibration::Entry*> measured;
    for (const auto* e : basis_)
      if (e->conditions.communicator == wanted_.communicator && e->conditions.ranks > 1) measured.push_back(e);
    if (!measured.empty()) {
      const Calibration::Entry& e = *nearest(measured);
      costs.collectives_ = MeasuredCosts::Collectives{e.costs, e.conditions.ranks};
      costs.extrapolated_ += fmt::format("; collectives from {} ranks, by bytes moved", e.conditions.ranks);
      return std::nullopt;
    }
    if (wanted_.communicator != "threads" || !near.costs.knows("optimizer_step"))
      return Failure{fmt::format("no collective of '{}' was measured", wanted_.communicator)};
    costs.collectives_ = MeasuredCosts::Collectives{near.costs, 0};
    costs.extrapolated_ += "; collectives at the optimizer step's memory rate";
    return std::nullopt;
  }

  Conditions wanted_;
  std::vector<const Calibration::Entry*> basis_;
};

Result<MeasuredCosts> extrapolate(const Calibration& calibration, const Conditions& wanted) {
  return Extrapolation(calibration, wanted).run();
}

}  // namespace molen::sim
