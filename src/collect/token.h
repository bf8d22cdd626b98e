// The secret that the nodes of a site share with its collector.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace molen::collect {

// Reads the secret from a file: one line of 16 to 1024 printable ASCII characters without spaces. Throws UsageError for
// another content, and if any user but the owner may read or write the file.
std::string read_token(const std::filesystem::path& file);

// Returns whether two secrets are equal, in a time that does not tell where they differ.
bool same_token(std::string_view a, std::string_view b);

}  // namespace molen::collect
