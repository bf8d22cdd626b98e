// The lines of a run's events.jsonl and energy.jsonl, with those that later histories left behind
// (docs/formats/run.md).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace molen::serve {

// Returns the file, and those that histories renamed: "energy.jsonl.abandoned-2".
std::vector<fs::path> with_abandoned(const fs::path& run, const std::string& name);

// Calls `take` with the name of the event and the line, for each line that is an object. Left out are lines that a
// crash tore, those of more than a megabyte, and those that hold the text `without` (empty: none), which are not
// parsed.
void each_event(const fs::path& file, const std::string& without,
                const std::function<void(const std::string& name, const Json& event)>& take);

// Returns a member that is a whole number, such as a step; 0 where it is none.
std::int64_t whole(const Json& event, const char* key);

}  // namespace molen::serve
