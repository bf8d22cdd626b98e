#include <array>

#include "base/error.h"
#include "policy/step_graph.h"

namespace molen::policy {
namespace {

using program::Pass;

const std::vector<Choice>& choices_of(const ActionChoices& all, Pass kind, int global_stage) {
  const std::vector<std::vector<Choice>>* of = nullptr;
  if (kind == Pass::kForward) of = &all.forward;
  if (kind == Pass::kBackward) of = &all.backward;
  if (kind == Pass::kBackwardInput) of = &all.backward_input;
  if (kind == Pass::kBackwardWeights) of = &all.backward_weights;
  MOLEN_CHECK(of, "a recomputation is no action of a schedule");
  const auto g = static_cast<std::size_t>(global_stage);
  if (g >= of->size() || (*of)[g].empty())
    throw UsageError("global stage {} has no choice of a clock for {}", global_stage, program::name_of(kind));
  return (*of)[g];
}

// The tasks that begin and end the forward and the backward of a micro-batch on a global stage.
struct Ends {
  int forward = -1, backward = -1;
};

}  // namespace

StepGraph graph_of(const program::Schedule& schedule, const ActionChoices& choices, double wait_watts) {
  program::check(schedule);
  StepGraph step;
  step.graph.devices = schedule.stages;
  step.graph.wait_watts = wait_watts;
  const auto m = static_cast<std::size_t>(schedule.micro_batches);
  std::vector<Ends> ends(static_cast<std::size_t>(schedule.global_stages()) * m);
  const auto at = [&](int g, int micro_batch) -> Ends& {
    return ends[static_cast<std::size_t>(g) * m + static_cast<std::size_t>(micro_batch)];
  };
  for (int stage = 0; stage < schedule.stages; ++stage) {
    int before = -1;
    for (const program::Action& a : schedule.order[static_cast<std::size_t>(stage)]) {
      const int g = schedule.global_stage(stage, a.chunk), task = static_cast<int>(step.graph.tasks.size());
      step.graph.tasks.push_back({choices_of(choices, a.kind, g)});
      step.activities.push_back({stage, std::string(program::name_of(a.kind)), a.micro_batch});
      if (before >= 0) step.graph.edges.push_back({before, task, 0.0});
      before = task;
      if (a.kind == Pass::kForward) at(g, a.micro_batch).forward = task;
      if (a.kind == Pass::kBackward || a.kind == Pass::kBackwardInput) at(g, a.micro_batch).backward = task;
    }
  }
  for (int g = 0; g + 1 < schedule.global_stages(); ++g)
    for (int i = 0; i < schedule.micro_batches; ++i) {
      const bool same = schedule.stage_of(g) == schedule.stage_of(g + 1);
      const double lag = same ? 0.0 : choices.transfer_s;
      step.graph.edges.push_back({at(g, i).forward, at(g + 1, i).forward, lag});
      step.graph.edges.push_back({at(g + 1, i).backward, at(g, i).backward, lag});
    }
  return step;
}

}  // namespace molen::policy
