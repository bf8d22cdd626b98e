#include "launch/gather_texts.h"

#include <cstdint>
#include <numeric>

namespace molen::launch {
namespace {

std::vector<std::int64_t> sizes_of_texts(comm::Communicator& world, const std::string& own) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::int64_t size = static_cast<std::int64_t>(own.size());
  std::vector<std::int64_t> sizes(ranks);
  world.all_gather(&size, sizes.data(), std::vector<std::int64_t>(ranks, 1), DType::kI64);
  return sizes;
}

std::vector<std::string> split_texts(const std::string& all, const std::vector<std::int64_t>& sizes) {
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::int64_t n : sizes) {
    texts.push_back(all.substr(at, static_cast<std::size_t>(n)));
    at += static_cast<std::size_t>(n);
  }
  return texts;
}

}  // namespace

std::vector<std::string> gather_texts(comm::Communicator& world, const std::string& own) {
  const std::vector<std::int64_t> sizes = sizes_of_texts(world, own);
  std::string all(static_cast<std::size_t>(std::reduce(sizes.begin(), sizes.end())), '\0');
  world.all_gather(own.data(), all.data(), sizes, DType::kU8);
  return split_texts(all, sizes);
}

std::vector<std::string> texts_at_root(comm::Communicator& world, const std::string& own) {
  const std::vector<std::int64_t> sizes = sizes_of_texts(world, own);
  std::vector<std::int64_t> sent(sizes.size(), 0), received(sizes.size(), 0);
  sent[0] = static_cast<std::int64_t>(own.size());
  if (world.rank() == 0) received = sizes;
  std::string all(static_cast<std::size_t>(std::reduce(received.begin(), received.end())), '\0');
  world.all_to_all(own.data(), sent, all.data(), received, DType::kU8);
  return world.rank() == 0 ? split_texts(all, sizes) : std::vector<std::string>();
}

}  // namespace molen::launch
