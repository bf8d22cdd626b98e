// The fields of a buffer in the text form: "role=param unit=embed", "role=mid slot=fwd piece=2 copy=1".
#pragma once

#include <map>
#include <string>

#include "program/ir/program.h"

namespace molen::program::detail {

std::string fields_text(const Program& program, const Buffer& buffer);

// Sets the fields of a buffer that `fields` gives. Throws UsageError without the place in the text.
void set_fields(const Program& program, std::map<std::string, std::string> fields, Buffer& buffer);

}  // namespace molen::program::detail
