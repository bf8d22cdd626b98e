#include "program/values/operands.h"

#include <fmt/format.h>

#include <string_view>

namespace molen::program {
namespace {

template <class O>
std::string accesses_text(const std::vector<O>& operands) {
  std::string text;
  for (const Access access : kAllAccesses) {
    std::vector<std::string_view> names;
    for (const O& o : operands)
      if (o.access == access) names.push_back(name_of(o.arg));
    if (!names.empty())
      text += fmt::format("{}{} {}", text.empty() ? "" : "; ", name_of(access), fmt::join(names, ", "));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

std::string text_of(const std::vector<Operand>& operands) {
  return accesses_text(operands);
}
std::string text_of(const std::vector<Use>& operands) {
  return accesses_text(operands);
}

Operand Operand::as_found() const {
  if (!before) return *this;
  Operand found = *this;
  found.value = before->value;
  found.layer = before->layer;
  found.step = before->step;
  return found;
}

}  // namespace molen::program
