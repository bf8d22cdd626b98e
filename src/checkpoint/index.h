// index.json and state.json of a checkpoint (docs/formats/checkpoint.md). The index has the place of each slice and a
// hash of every block.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/box.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/json.h"

namespace molen::checkpoint {

inline constexpr int kFormatVersion = 2;                            // written; 1 (flat slices) is read too
inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 24;  // bytes of a slice per hash
inline constexpr std::int64_t kMaxStateBytes = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxIndexBytes = std::int64_t{1} << 32;

// The part of a tensor in one entry of one rank's file. It consists of boxes, whose elements follow each other in the
// entry. Format version 2 has one box per entry; a flat slice of version 1 is a run of up to three boxes of a matrix.
struct Slice {
  int rank = 0;  // the rank whose file holds it
  std::string entry;
  std::vector<Box> boxes;
  std::vector<std::string> hashes;  // XXH3-128 of each kBlockBytes of the entry
  std::int64_t elements() const;
};

struct StoredTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<Slice> slices;  // together they hold each element once
  std::int64_t elements() const { return elements_of(shape); }
};

using Index = std::map<std::string, StoredTensor>;

// Returns the reason why the slices do not hold each element of the tensor exactly once, or "".
std::string tiling_problem(const StoredTensor& tensor);

// Returns the name of a slice's entry in its file: the tensor's own name for a whole tensor, so that other readers find
// it.
std::string entry_name(const std::string& tensor, const std::vector<std::int64_t>& shape, const Box& box);

std::string print_index(const Index& index);
// Parses an index. Checks names, sizes, numbers of hashes, and that the slices tile each tensor. Throws UsageError
// naming `origin`, and VersionError. Needs no more memory than the result and one more slice.
Index parse_index(std::string_view text, const std::string& origin);
// Parses a file in the same way, without holding it in memory as a whole, and stops reading at the first part that has
// no place in an index. Also throws DamagedError when the content does not have this SHA-256, and IoError.
Index read_index(const File& file, const std::string& sha256);

struct StoredState {
  std::int64_t step = 0;
  Json state;                                      // the caller's own
  std::map<std::string, std::string> attachments;  // name -> SHA-256
  std::string index_sha256;
};
// Throws UsageError naming `origin`, and VersionError.
StoredState parse_state(std::string_view text, const std::string& origin);

}  // namespace molen::checkpoint
