// Names of tables and keys, and suggestions for unknown ones.
#pragma once

#include <string>
#include <string_view>

#include "config/config.h"

namespace molen::config {

const Field* find_field(std::string_view key);  // returns nullptr if there is no such field
bool is_table(std::string_view name);
std::string table_suggestion(std::string_view table);  // returns "; did you mean 'model'?" or ""
std::string shown(std::string_view key);               // returns the key, shortened if it is long
// Throws UsageError that suggests a key; `where` is its prefix: "run.toml:3: ".
[[noreturn]] void unknown_key(std::string_view where, std::string_view key);

}  // namespace molen::config
