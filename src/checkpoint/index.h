// index.json and state.json of a checkpoint (docs/formats/checkpoint.md): what is stored where, with a hash of every
// block.
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
inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 24;  // bytes of a slice under one hash
inline constexpr std::int64_t kMaxStateBytes = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxIndexBytes = std::int64_t{1} << 32;

// What one entry of one rank's file holds of a tensor: boxes, whose elements follow each other in the entry. There is
// one in format version 2; a flat slice of version 1 is a run of up to three of a matrix.
struct Slice {
  int rank = 0;  // whose file
  std::string entry;
  std::vector<Box> boxes;
  std::vector<std::string> hashes;  // XXH3-128 of each kBlockBytes of the entry
  std::int64_t elements() const;
};

struct StoredTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<Slice> slices;  // together each element once
  std::int64_t elements() const { return elements_of(shape); }
};

using Index = std::map<std::string, StoredTensor>;

// Why the slices do not hold each element of the tensor once, or "".
std::string tiling_problem(const StoredTensor& tensor);

// The name of a slice's entry in its file: the tensor's own where it is whole, so that other readers find it.
std::string entry_name(const std::string& tensor, const std::vector<std::int64_t>& shape, const Box& box);

std::string print_index(const Index& index);
// Checked: names, sizes, numbers of hashes, and that the slices tile each tensor. Throws UsageError naming `origin`,
// and VersionError. Takes memory for what it returns and for one slice more.
Index parse_index(std::string_view text, const std::string& origin);
// The same of a file, which is never in memory as a whole, and of which nothing is read beyond what has no place in an
// index. Throws DamagedError too, where its content is not the one with this SHA-256, and IoError.
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
