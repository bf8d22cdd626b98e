#include "launch/throw_on_all_ranks.h"

#include <algorithm>
#include <cstdint>

namespace molen::launch {

std::string broadcast_text(std::string text, comm::Communicator& world, int root) {
  std::int64_t size = static_cast<std::int64_t>(text.size());
  world.broadcast(&size, 1, DType::kI64, root);
  text.resize(static_cast<std::size_t>(size));
  if (size > 0) world.broadcast(text.data(), size, DType::kU8, root);
  return text;
}

namespace {

// The kinds of failures that all ranks raise alike; the kind determines which error each rank throws.
enum class Kind : std::int32_t { kUsage, kDamaged, kIo, kVersion };

[[noreturn]] void throw_as(Kind kind, int code, const std::string& text) {
  switch (kind) {
    case Kind::kDamaged:
      throw DamagedError(text);
    case Kind::kIo:
      throw IoError(code, "{}", text);
    case Kind::kVersion:
      throw VersionError(text);
    default:
      throw UsageError(text);
  }
}

}  // namespace

void throw_on_all_ranks(comm::Communicator& world, const std::function<void()>& local) {
  if (world.size() == 1) return local();
  std::string text;
  std::int32_t met[2] = {-1, 0};  // kind of failure, and its errno
  const auto fail = [&](Kind kind, int code, const std::exception& error) {
    met[0] = static_cast<std::int32_t>(kind), met[1] = code, text = error.what();
  };
  try {
    local();
  } catch (const UsageError& error) {
    fail(Kind::kUsage, 0, error);
  } catch (const DamagedError& error) {
    fail(Kind::kDamaged, 0, error);
  } catch (const VersionError& error) {
    fail(Kind::kVersion, 0, error);
  } catch (const IoError& error) {
    fail(Kind::kIo, error.code(), error);
  }
  const bool failed = met[0] >= 0;
  // After the reduction: the lowest rank that failed, and whether all ranks failed.
  std::int32_t first[2] = {failed ? world.rank() : world.size(), failed ? 1 : 0};
  world.all_reduce(first, 2, DType::kI32, comm::Reduce::kMin);
  if (first[0] == world.size()) return;
  text = broadcast_text(std::move(text), world, first[0]);
  world.broadcast(met, 2, DType::kI32, first[0]);
  throw_as(static_cast<Kind>(met[0]), met[1],
           (first[1] || first[0] == 0 ? "" : "rank " + std::to_string(first[0]) + ": ") + text);
}

}  // namespace molen::launch
