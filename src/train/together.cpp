#include "train/together.h"

#include <algorithm>
#include <cstdint>

namespace molen::train {

std::string broadcast_text(std::string text, comm::Communicator& world, int root) {
  std::int64_t size = static_cast<std::int64_t>(text.size());
  world.broadcast(&size, 1, DType::kI64, root);
  text.resize(static_cast<std::size_t>(size));
  if (size > 0) world.broadcast(text.data(), size, DType::kU8, root);
  return text;
}

void together(comm::Communicator& world, const std::function<void()>& local) {
  std::string text;
  bool failed = false;
  try {
    local();
  } catch (const UsageError& error) {
    if (world.size() == 1) throw;
    failed = true;
    text = error.what();
  }
  if (world.size() == 1) return;
  // The lowest rank that failed, and whether all did.
  std::int32_t first[2] = {failed ? world.rank() : world.size(), failed ? 1 : 0};
  world.all_reduce(first, 2, DType::kI32, comm::Reduce::kMin);
  if (first[0] == world.size()) return;
  text = broadcast_text(std::move(text), world, first[0]);
  throw UsageError("{}{}", first[1] || first[0] == 0 ? "" : "rank " + std::to_string(first[0]) + ": ", text);
}

}  // namespace molen::train
