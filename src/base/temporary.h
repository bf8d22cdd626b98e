// Names of what is written beside a file before it gets the file's name (File::temporary_beside, TemporaryDirectory).
// A process that is killed leaves them behind.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace molen {

// "NAME.part-", and 64 random bits that nobody can guess.
std::string temporary_name(std::string_view name);
bool is_temporary_name(std::string_view name);
// Removes those in the folder; not below it. Only for who knows that no process writes there. Throws IoError.
void remove_temporaries(const std::filesystem::path& folder);

}  // namespace molen
