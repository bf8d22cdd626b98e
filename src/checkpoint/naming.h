// File names inside and around a checkpoint, shared by saving and loading.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace molen::checkpoint {

std::string step_name(std::int64_t step);                    // "step-000000100"
std::optional<std::int64_t> step_of(std::string_view name);  // of a final name; none for anything else
bool is_unfinished(std::string_view name);                   // "step-000000100.partial"
bool is_leftover(std::string_view name);                     // unfinished, or set aside to be removed
std::string rank_file(int rank);                             // "rank-00000.safetensors"
std::string fragment_file(int rank);                         // "rank-00000.json", until the index is written
// One plain file name: no separator, not hidden, none of the checkpoint's own.
bool is_attachment_name(std::string_view name);

}  // namespace molen::checkpoint
