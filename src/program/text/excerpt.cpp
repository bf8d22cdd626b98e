#include "program/text/excerpt.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/text/text.h"

namespace molen::program {
namespace {

bool there(const std::vector<Expanded>& ops, int op) {
  return op >= 0 && static_cast<std::size_t>(op) < ops.size();
}

}  // namespace

std::string op_title(const Program& program, const std::vector<Expanded>& ops, int op) {
  if (!there(ops, op)) return "";
  const Step& step = *ops[static_cast<std::size_t>(op)].step;
  std::string title = print_op(step.op);
  // The buffer that a collective writes shows to which part of the model the collective belongs.
  if (const Use* to = step.find(Arg::kTo); to && is_communication(step.op))
    title += " of " + program.buffers[static_cast<std::size_t>(to->buffer)].name;
  return title;
}

std::string excerpt(const Program& program, const std::vector<Expanded>& ops, int op) {
  if (!there(ops, op)) return "";
  constexpr int kAround = 3;
  std::string text;
  int instance = -1;
  for (int i = std::max(0, op - kAround); i <= op + kAround && there(ops, i); ++i) {
    const Expanded& e = ops[static_cast<std::size_t>(i)];
    if (e.instance != instance) {
      text += "  body " + program.bodies[static_cast<std::size_t>(e.body)].name;
      text += e.micro_batch >= 0 ? fmt::format(", micro-batch {}\n", e.micro_batch) : "\n";
      instance = e.instance;
    }
    text += fmt::format("  {:>6}  %{} {}{}\n", i, e.op, print_step(program, *e.step), i == op ? "  <-- here" : "");
  }
  return text;
}

}  // namespace molen::program
