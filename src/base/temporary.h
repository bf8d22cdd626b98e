// Temporary names of files and directories beside their target (File::temporary_beside, TemporaryDirectory). A killed
// process leaves them behind.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace molen {

// Returns "NAME.part-" and 64 random bits that nobody can guess.
std::string temporary_name(std::string_view name);
bool is_temporary_name(std::string_view name);
// Removes temporary files in the folder, not below it. Call only when no process writes there. Throws IoError.
void remove_temporaries(const std::filesystem::path& folder);

}  // namespace molen
