// What this machine has verified of a data set, so that it is read once and not at each start of a run.
//
// A file in the user's cache names the shards of one folder that were found to be what their manifest says, each with
// the size, time of change and inode that both its files had then. A shard for which any of these differs is verified
// again. Where there is no cache to write to, nothing is remembered.
#pragma once

#include <string>
#include <unordered_map>

#include "data/manifest.h"

namespace molen::data {

enum class Verified { kNo, kSampled, kHashed };  // its sizes and some tokens; every byte

class VerifiedShards {
 public:
  explicit VerifiedShards(const fs::path& folder);

  Verified state(const ShardRecord& shard) const;
  // `stamp` is what stamp(shard) was before the shard was read.
  void add(const ShardRecord& shard, const std::string& stamp, Verified state);
  // Size, time of change and inode of both files and the hashes that the manifest gives; "" where a file is missing, or
  // so new that a change within the clock's tick would not show.
  std::string stamp(const ShardRecord& shard) const;
  // Writes what was added. Failures are no errors: the next start verifies again.
  void save() const;

  // $XDG_CACHE_HOME/molen/verified or ~/.cache/molen/verified; "" where neither variable is set.
  static fs::path cache_folder();

 private:
  fs::path folder_, file_;
  std::unordered_map<std::string, std::pair<std::string, Verified>> known_;  // by name
  bool changed_ = false;
};

}  // namespace molen::data
