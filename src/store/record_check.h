// The checksum of a record in a mapped file (mapped_file.h): it exposes a record of which only a part reached the disk.
// It is computed at each op, so it is a few instructions a field, and it is no protection against intent.
#pragma once

#include <bit>
#include <cstdint>

namespace molen::store {

// Takes the fields of a record one after the other.
class RecordCheck {
 public:
  RecordCheck& add(std::uint64_t field) {
    hash_ = (std::rotl(hash_, 23) ^ field) * 0xff51afd7ed558ccdULL;
    return *this;
  }
  RecordCheck& add(std::int64_t field) { return add(static_cast<std::uint64_t>(field)); }
  RecordCheck& add(double field) { return add(std::bit_cast<std::uint64_t>(field)); }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0x9e3779b97f4a7c15ULL;
};

}  // namespace molen::store
