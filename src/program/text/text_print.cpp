#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "arch/json.h"
#include "base/json.h"
#include "base/match.h"
#include "program/ir/slots.h"
#include "program/text/text.h"
#include "program/text/text_buffers.h"
#include "program/text/text_detail.h"
#include "program/values/attributes.h"
#include "program/values/of_op.h"

namespace molen::program {
namespace {

std::string uses_text(const Program& p, const std::vector<Use>& uses, Access access) {
  std::string text;
  for (const Use& use : uses) {
    if (use.access != access) continue;
    if (!text.empty()) text += ',';
    text += fmt::format("{}:{}", name_of(use.arg), p.buffers.at(static_cast<std::size_t>(use.buffer)).name);
    if (use.range != Range::kAll) text += fmt::format("[{}]", name_of(use.range));
    if (const std::string type = text_of(use.type, p.grid.sizes); !type.empty()) text += fmt::format("{{{}}}", type);
  }
  return text;
}

// Prints the value that a collective moves, unless the value belongs to a unit.
template <class O>
std::string moves_text(const O& o) {
  std::string text =
      o.payload == Payload::kUnit ? "" : fmt::format(" payload={} layer={}", name_of(o.payload), o.layer);
  if constexpr (requires { o.portion; })
    if (o.portion >= 0) text += fmt::format(" {}={}", portion_word(o), o.portion);
  return text;
}

std::string step_text(const Program& p, const Step& step, std::size_t index) {
  std::string text = fmt::format("  %{} {}", index, print_step(p, step));
  if (!step.after.empty()) {
    text += " after=";
    for (std::size_t i = 0; i < step.after.size(); ++i) {
      const OpRef& ref = step.after[i];
      if (i > 0) text += ',';
      if (ref.body >= 0) text += p.bodies.at(static_cast<std::size_t>(ref.body)).name + ".";
      text += fmt::format("%{}", ref.op);
    }
  }
  text += fmt::format(" stream={} phase={}", name_of(step.stream), name_of(step.phase));
  if (step.unless) text += fmt::format(" unless={}", name_of(*step.unless));
  if (const std::string attributes = text_of(step.attributes); !attributes.empty()) text += " " + attributes;
  text += fmt::format(" scratch={} model_flops={:.17g} hardware_flops={:.17g} moved={}", step.scratch.value,
                      step.model_flops.value, step.hardware_flops.value, step.moved.value);
  if (!step.epilogues.empty()) text += " epilogues=" + text_of(step.epilogues);
  return text;
}

// Returns the memory summary, which comes first because readers look for it first.
std::string memory_text(const Program& p, const MemoryPlan& plan) {
  const MemorySummary m = summarize(p, plan);
  std::string text = fmt::format(
      "# planned peak {} bytes ({}), of which persistent {}: parameters {}, gradients {}, optimizer {}\n"
      "# the rest is transient: activations, gathered parameters, gradients on their way, scratch: {}\n",
      plan.peak.value, human(plan.peak), human(plan.persistent), human(m.parameters), human(m.gradients),
      human(m.optimizer), human(m.transient));
  if (plan.host.value > 0) text += fmt::format("# on the host {} bytes ({})\n", plan.host.value, human(plan.host));
  return text;
}

std::string print_all(const Program& p, const MemoryPlan* plan) {
  MOLEN_CHECK(p.states_types, "a program that states no types has no text");
  std::string text = "molen-program 16\n";
  if (plan) text += memory_text(p, *plan);
  text += "arch " + arch::to_json(p.arch).dump() + "\n";
  text += "setting " + detail::setting_to_text(p.setting) + "\n";
  const std::optional<Slots> slots = plan ? std::optional<Slots>(p) : std::nullopt;
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    const Buffer& b = p.buffers[i];
    text += fmt::format("buffer {} {} {} {}{}{}", b.name, name_of(b.dtype), b.elements, name_of(b.lifetime),
                        b.place == Place::kHost ? " host" : "", detail::fields_text(p, b));
    if (plan && b.lifetime != Lifetime::kExternal)
      text += fmt::format(
          "  # at {}, {}{}", plan->buffer_offset[i],
          b.lifetime == Lifetime::kMicroBatch ? fmt::format("{} x ", slots->count(static_cast<int>(i))) : "",
          human(b.bytes()));
    text += '\n';
  }
  for (std::size_t b = 0; b < p.bodies.size(); ++b) {
    text += "body " + p.bodies[b].name + "\n";
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      text += step_text(p, p.bodies[b].steps[k], k);
      if (plan) text += fmt::format("  # memory {}", plan->high_water[b][k]);
      text += '\n';
    }
  }
  text += "schedule";
  for (const Instance& i : p.schedule) {
    text += " " + p.bodies.at(static_cast<std::size_t>(i.body)).name;
    if (i.micro_batch >= 0) text += fmt::format(":{}", i.micro_batch);
  }
  text += '\n';
  return text;
}

}  // namespace

std::string print_op(const Op& op) {
  return std::visit(
      Match{
          [](const Compute& c) {
            std::string text = fmt::format("{} part={}", name_of(c.pass), arch::name_of(c.part));
            if (c.layer >= 0) text += fmt::format(" layer={}", c.layer);
            if (c.portion >= 0) text += fmt::format(" {}={}", portion_word(c), c.portion);
            return text;
          },
          [](const LoadBatch& o) { return std::string(o.counts_tokens ? "load_batch" : "load_batch counts_tokens=0"); },
          [](const ZeroFill& z) { return std::string(z.padding ? "zero_fill padding=1" : "zero_fill"); },
          [](const SumSquares&) { return std::string("sum_squares"); },
          [](const ClipScale&) { return std::string("clip_scale"); },
          [](const OptimizerStep& o) {
            std::string text = "optimizer_step";
            if (o.kind != OptimizerStep{}.kind) text += " kind=" + o.kind;
            if (o.stage != UpdateStage::kWhole) text += fmt::format(" stage={}", name_of(o.stage));
            return text;
          },
          [](const AllReduce& o) { return fmt::format("all_reduce axis={}{}", name_of(o.axis), moves_text(o)); },
          [](const ReduceScatter& o) {
            return fmt::format("reduce_scatter axis={}{}", name_of(o.axis), moves_text(o));
          },
          [](const AllGather& o) { return fmt::format("all_gather axis={}{}", name_of(o.axis), moves_text(o)); },
          [](const AllToAll& o) { return fmt::format("all_to_all axis={}{}", name_of(o.axis), moves_text(o)); },
          [](const Send& o) { return fmt::format("send peer={}{}", o.peer, moves_text(o)); },
          [](const Receive& o) { return fmt::format("receive peer={}{}", o.peer, moves_text(o)); },
          [](const CopyToHost& o) { return fmt::format("copy_to_host{}", moves_text(o)); },
          [](const CopyToDevice& o) { return fmt::format("copy_to_device{}", moves_text(o)); },
          [](const RingExchange& o) {
            return fmt::format("ring_exchange axis={}{} step={}", name_of(o.axis), moves_text(o), o.step);
          },
          [](const Cast& o) { return fmt::format("cast over={}{}", name_of(o.over), o.back ? " back=1" : ""); },
          [](const ReduceScalars& o) {
            return fmt::format("reduce_scalars axis={} first={} count={}", name_of(o.axis), o.first, o.count);
          },
          [](const SetFlag& o) { return fmt::format("set_flag flag={}", name_of(o.flag)); },
          [](const SetClock& o) { return fmt::format("set_clock khz={}", o.khz); },
      },
      op);
}

std::string print_step(const Program& p, const Step& step) {
  std::string text = print_op(step.op);
  for (const Access access : kAllAccesses)
    if (const std::string uses = uses_text(p, step.operands, access); !uses.empty())
      text += fmt::format(" {}={}", name_of(access), uses);
  return text;
}
std::string print(const Program& program) {
  return print_all(program, nullptr);
}
std::string print(const Program& program, const MemoryPlan& plan) {
  return print_all(program, &plan);
}

std::string without_comments(std::string_view text) {
  std::string bare;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with('#')) bare += fmt::format("{}\n", line.substr(0, line.find("  # ")));
  }
  return bare;
}

}  // namespace molen::program
