// File names inside and around a checkpoint, shared by saving and loading.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace molen::checkpoint {

inline constexpr std::string_view kPartial = ".partial", kRemoving = ".removing", kReplaced = ".replaced",
                                  kDamaged = ".damaged-", kAbandoned = ".abandoned-";

std::string step_name(std::int64_t step);                         // "step-000000100"
std::string partial_name(std::int64_t step, std::int64_t token);  // "step-000000100.partial-7"
std::optional<std::int64_t> step_of(std::string_view name);       // of a final name; nullopt for any other name
bool is_unfinished(std::string_view name);  // "step-000000100.partial-7", "step-000000100.partial"
bool is_removing(std::string_view name);    // "step-000000100.removing", also of an unfinished one
std::optional<std::int64_t> damaged_step(std::string_view name);  // of "step-000000100.damaged-1"
// Returns "step-000000100" for "step-000000100.replaced"; nullopt for any other name.
std::optional<std::string> replaced_name(std::string_view name);
std::string rank_file(int rank);      // "rank-00000.safetensors"
std::string fragment_file(int rank);  // "rank-00000.json", until the index is written
// Returns whether `name` is a plain file name: no separator, not hidden, none of the checkpoint's own.
bool is_attachment_name(std::string_view name);

}  // namespace molen::checkpoint
