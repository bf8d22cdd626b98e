// The text form of a program (docs/formats/program.md): one op per line. parse(print(p)) == p. A text that is edited
// and loaded again is what runs.
#pragma once

#include <string>
#include <string_view>

#include "program/ir/program.h"
#include "program/memory/memory.h"

namespace molen::program {

std::string print(const Program& program);
// Adds comments with the place of each buffer and scratch in the arena, and the high-water mark of each op.
std::string print(const Program& program, const MemoryPlan& plan);
// Returns the text without the printer's comments. For a program printed with its plan, the result is the text printed
// without a plan, whichever version printed it.
std::string without_comments(std::string_view text);
// Returns an op without its operands: "all_reduce axis=dp".
std::string print_op(const Op& op);
// Returns the line of one op of a body, without costs: "all_reduce axis=dp updates=to:grad.embed".
std::string print_step(const Program& program, const Step& step);
// Throws UsageError with `origin`, the line and what was expected. Also refuses a text above kMaxTextBytes, and one
// that expands to more than kMaxExpanded ops and edges. Time and memory are linear in the text's size.
inline constexpr std::int64_t kMaxTextBytes = std::int64_t{1} << 25;
Program parse(std::string_view text, std::string_view origin);

}  // namespace molen::program
