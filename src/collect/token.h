// The secret that the nodes of a site share with its collector.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "collect/limits.h"

namespace molen::collect {

// Reads the secret from a file: one line of 16 to 1024 printable ASCII characters without spaces. Throws UsageError for
// another content, and if any user but the owner may read or write the file.
std::string read_token(const std::filesystem::path& file);

// Returns whether two secrets are equal, in a time that does not tell where they differ.
bool same_token(std::string_view a, std::string_view b);

// Returns what the hello of a node shows in place of the secret; "" without a secret. Whoever reads it can send records
// in the name of this node, but learns nothing of the secret.
std::string hello_proof(const std::string& token, const std::string& node);

// Returns what proves that whoever answers a question of a node, with its nonce, has the secret; "" without one.
std::string limits_proof(const std::string& token, const std::string& node, const std::string& nonce,
                         const LimitOrder& order);

}  // namespace molen::collect
