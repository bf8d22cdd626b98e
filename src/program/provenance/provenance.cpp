#include "program/provenance/provenance.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "program/ir/stages.h"
#include "program/values/of_setting.h"
#include "program/verify/inferred.h"

namespace molen::program {
namespace {

constexpr std::size_t kMostDifferences = 20;

std::string_view yes_or_no(bool value) {
  return value ? "yes" : "no";
}

// Compares the traits that a program shows with the traits that its setting asks for.
class Differences {
 public:
  Differences(const Program& p) : p_(p), has_(inferred_traits(p)), asked_(traits_of(p.setting)) {}

  std::vector<Finding> run() {
    if (!(has_.grid == asked_.grid))
      add("the grid of ranks", "another mesh, order or sharding than",
          fmt::format("{} ranks, {}", asked_.grid.ranks(), sharding_text(p_.setting)));
    if (!(has_.purpose == asked_.purpose))
      add("the purpose", has_.trains() ? "a training" : "an evaluation",
          asked_.trains() ? "a training" : "an evaluation");
    of_batch();
    of_parts();
    of_stage();
    if (has_.trains()) of_training();
    return std::move(findings_);
  }

 private:
  template <class A, class B>
  void add(std::string_view what, const A& has, const B& asked) {
    findings_.push_back(
        {fmt::format("{}: the program has {} where its setting says {}; build the program anew with the setting that "
                     "you want, or edit the program to match its setting",
                     what, has, asked)});
  }
  template <class T>
  void number(std::string_view what, T has, T asked) {
    if (has != asked) add(what, has, asked);
  }
  void choice(std::string_view what, bool has, bool asked) {
    if (has != asked) add(what, yes_or_no(has), yes_or_no(asked));
  }
  void type(std::string_view what, DType has, DType asked) {
    if (has != asked) add(what, name_of(has), name_of(asked));
  }

  void of_batch() {
    const auto text = [](const Rows& r) {
      return fmt::format("{}x{} in {} pieces{}{}", r.sequences, r.length, r.pieces, r.sharded ? ", sharded" : "",
                         r.expert_tiles > 1 ? fmt::format(", in {} tiles of experts", r.expert_tiles) : "");
    };
    if (!(has_.rows == asked_.rows)) add("the rows of a micro-batch", text(has_.rows), text(asked_.rows));
    if (p_.has_head()) number("the rows of a chunk of the head", has_.tile, asked_.tile);
    choice("attention within documents", has_.documents, asked_.documents);
  }

  void of_parts() {
    type("the type of the parts", has_.compute, asked_.compute);
    choice("sharded parameters", has_.sharded_parameters(), asked_.sharded_parameters());
    choice("parameters on the host", has_.offload.parameters, asked_.offload.parameters);
    if (asked_.context()) choice("a ring of context ranks", has_.ring(), asked_.ring());
  }

  void of_stage() {
    number("the stage", stage_shown(p_), asked_.pipelined() ? p_.setting.pipeline.stage : 0);
    if (!asked_.pipelined()) return;
    number("the chunks of a stage", static_cast<int>(p_.chunks.size()), p_.setting.pipeline.chunks);
    if (has_.placement != asked_.placement)
      add("the placement of chunks", name_of(has_.placement), name_of(asked_.placement));
  }

  void of_training() {
    number("the positions of the batch", has_.positions, asked_.positions);
    number("the micro-batches of a rank", has_.micro_batches, asked_.micro_batches);
    choice("a scaled loss", has_.scaled, asked_.scaled);
    choice("backwards in halves", has_.halves, asked_.halves);
    type("the type of master weights", has_.master, asked_.master);
    choice("optimizer states on the host", has_.offload.optimizer, asked_.offload.optimizer);
    choice("gradients on the host", has_.offload.gradients, asked_.offload.gradients);
    // Activations of the model's last layer always stay on the device.
    const bool some = std::ranges::any_of(p_.chunks, [](const Chunk& c) { return c.end - c.first > (c.head ? 1 : 0); });
    choice("activations on the host", has_.offload.activations, asked_.offload.activations && some);
    const auto narrow = [](const Traits& t) { return t.narrow_over(Axis::kDp); };
    if (asked_.replica_group_size() > 1 && (narrow(has_) || narrow(asked_)))
      type("the type of gradients in messages", has_.message, asked_.message);
  }

  const Program& p_;
  Traits has_, asked_;
  std::vector<Finding> findings_;
};

std::optional<std::string> op_differs(const Program& p, const Step& step) {
  if (const auto* update = std::get_if<OptimizerStep>(&step.op); update && update->kind != p.setting.optimizer)
    return fmt::format("updates by {} where the setting says {}", update->kind, p.setting.optimizer);
  return attributes_not_asked_for(p, step);
}

}  // namespace

std::vector<Finding> differs_from_setting(const Program& p) {
  std::vector<Finding> findings = Differences(p).run();
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size() && findings.size() < kMostDifferences; ++k)
      if (const auto why = op_differs(p, p.bodies[b].steps[k]))
        findings.push_back({fmt::format("{}: {}", place_of(p, b, k), *why)});
  return findings;
}

std::vector<Finding> check(const Program& program, std::optional<Bytes> device_memory) {
  std::vector<Finding> findings = verify(program, device_memory);
  for (Finding& f : differs_from_setting(program)) findings.push_back(std::move(f));
  return findings;
}

std::vector<Finding> check_world(const std::vector<Program>& stages) {
  std::vector<Finding> findings = verify_world(stages);
  for (const Program& p : stages) {
    Setting same = p.setting;
    same.pipeline.stage = stages.front().setting.pipeline.stage;
    if (!(same == stages.front().setting))
      findings.push_back({fmt::format("stage {} was built for another setting than stage {}", p.setting.pipeline.stage,
                                      stages.front().setting.pipeline.stage)});
  }
  return findings;
}

void require_sound(const Program& program, std::string_view origin, std::optional<Bytes> device_memory) {
  const auto findings = check(program, device_memory);
  if (findings.empty()) return;
  // Findings mostly follow from the first, but a text may have more than one mistake.
  constexpr std::size_t kShown = 3;
  std::string text = fmt::format("{}: the step program is refused: {}", origin, findings.front().text);
  for (std::size_t i = 1; i < std::min(kShown, findings.size()); ++i) text += "\n  " + findings[i].text;
  if (findings.size() > kShown) text += fmt::format("\n  ({} findings in all)", findings.size());
  throw UsageError(text);
}

}  // namespace molen::program
