// The text form of a program (docs/formats/program.md), with one op on each line. parse(print(p)) == p. When a user
// edits a text and loads it again, the edited program runs.
#pragma once

#include <string>
#include <string_view>

#include "program/ir/program.h"
#include "program/memory/memory.h"

namespace molen::program {

std::string print(const Program& program);
// Adds comments with the place of each buffer and scratch in the arena, and the high-water mark of each op.
std::string print(const Program& program, const MemoryPlan& plan);
// Returns the text without the printer's comments. For a program printed with its plan, by any version, the result is
// the text printed without a plan.
std::string without_comments(std::string_view text);
// Returns an op without its operands: "all_reduce axis=dp".
std::string print_op(const Op& op);
// Returns the line of one op of a body, without costs: "all_reduce axis=dp updates=to:grad.embed".
std::string print_step(const Program& program, const Step& step);
// Returns the program of a text. Throws UsageError with `origin`, the line and the expected text. Also refuses a text
// above kMaxTextBytes, and a text that expands to more than kMaxExpanded ops and edges. Time and memory are linear in
// the size of the text.
inline constexpr std::int64_t kMaxTextBytes = std::int64_t{1} << 25;
Program parse(std::string_view text, std::string_view origin);

}  // namespace molen::program
