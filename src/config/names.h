// Names of tables and keys, and what to write in the place of one that is unknown.
#pragma once

#include <string>
#include <string_view>

#include "config/config.h"

namespace molen::config {

const Field* find_field(std::string_view key);  // nullptr where there is none
bool is_table(std::string_view name);
std::string table_suggestion(std::string_view table);  // "; did you mean 'model'?" or ""
std::string shown(std::string_view key);               // cut where it is long
// Throws UsageError with the key that may have been meant; `where` stands before it: "run.toml:3: ".
[[noreturn]] void unknown_key(std::string_view where, std::string_view key);

}  // namespace molen::config
