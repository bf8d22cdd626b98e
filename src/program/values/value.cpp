#include "program/values/value.h"

namespace molen::program {

std::optional<Value> value_named(std::string_view name) {
  for (const ValueInfo& info : kValues)
    if (info.name == name) return info.value;
  return {};
}

}  // namespace molen::program
