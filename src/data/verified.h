// A record of the shards that this machine has verified. With it a data set is read once, and not at each start of a
// run.
//
// A file in the user's cache names the shards of one folder that matched their manifest, each with the size, time of
// change and inode of both its files at that time. A shard is verified again when any of these differs. Without a
// writable cache nothing is remembered.
#pragma once

#include <string>
#include <unordered_map>

#include "data/manifest.h"

namespace molen::data {

enum class Verified { kNo, kSampled, kHashed };  // not; its sizes and some tokens; every byte

class VerifiedShards {
 public:
  explicit VerifiedShards(const fs::path& folder);

  Verified state(const ShardRecord& shard) const;
  // `stamp` is the value of stamp(shard) before the shard was read.
  void add(const ShardRecord& shard, const std::string& stamp, Verified state);
  // Returns a text of the size, time of change and inode of both files, and the manifest's hashes. Returns "" when a
  // file is missing, or so new that another change within the same clock tick would not show.
  std::string stamp(const ShardRecord& shard) const;
  // Writes the added shards. Failures are not errors: the next start verifies again.
  void save() const;

  // Returns $XDG_CACHE_HOME/molen/verified, or else $HOME/.cache/molen/verified; "" when neither variable is set.
  static fs::path cache_folder();

 private:
  fs::path folder_, file_;
  std::unordered_map<std::string, std::pair<std::string, Verified>> known_;  // by name
  bool changed_ = false;
};

}  // namespace molen::data
