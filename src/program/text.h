// The text form of a program (docs/formats/program.md): one op a line. parse(print(p)) == p, and what is edited there
// and loaded again is what runs.
#pragma once

#include <string>
#include <string_view>

#include "program/memory.h"
#include "program/program.h"

namespace molen::program {

std::string print(const Program& program);
// With each buffer's and scratch's place in the arena and each op's high-water mark, as comments.
std::string print(const Program& program, const MemoryPlan& plan);
// The text without the printer's comments: of a printed program with its plan, that of the program alone, whichever
// version printed it.
std::string without_comments(std::string_view text);
// One op of a body as its line, without costs: "all_reduce axis=dp reads=... writes=...".
std::string print_step(const Program& program, const Step& step);
// Throws UsageError with `origin`, the line and what was expected; for a text above kMaxTextBytes, and for one that
// stands for more than kMaxExpanded ops and edges. Time and memory are linear in the text's size.
inline constexpr std::int64_t kMaxTextBytes = std::int64_t{1} << 25;
Program parse(std::string_view text, std::string_view origin);

}  // namespace molen::program
