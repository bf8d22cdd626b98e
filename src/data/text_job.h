// The text of one source while it is made: what was done is written down as it goes, so that a run that is killed, or
// ends at a damaged file, is gone on with.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/filesystem.h"
#include "data/packages.h"
#include "data/prepare.h"
#include "data/recipes.h"

namespace molen::data {

// What will become one text file (packages), or several by language (files).
struct Job {
  TextRecord record;
  std::optional<Recipe> recipe;               // of packages
  fs::path fetched;                           // the folder of the package
  fs::path root;                              // what ids of files are relative to
  std::vector<fs::path> files;                // of packages known once they are unpacked
  std::int64_t bytes = 0;                     // of what it is made from
  double begin_share = 0.0, end_share = 0.0;  // of the bytes of all jobs, before and after it
  std::string key;  // changes with anything that decides this job's text, the jobs before it included
};

// How far a job is. `files` of its files are done, and `line` lines of the next one.
struct JobState {
  std::string key;
  bool done = false;
  std::int64_t files = 0, line = 0;
  std::int64_t invalid = 0, invalid_in_file = 0;
  std::string first_invalid;  // place and reason
  std::int64_t seen = 0;      // bytes of the folder's `seen` after it
  std::vector<TextRecord> outputs;
};

// The folder that texts are made in: jobs/<n>.json, `seen` (what the cleaner has met, in order), <split>/<name>.jsonl.
class TextFolder {
 public:
  explicit TextFolder(fs::path path) : path_(std::move(path)) {}
  const fs::path& path() const { return path_; }
  fs::path text(const TextRecord& record) const { return path_ / record.split / (record.name + ".jsonl"); }

  // nullopt where there is none, or it does not belong to `key`, or the files are not what it says.
  std::optional<JobState> load(std::size_t number, const std::string& key) const;
  void save(std::size_t number, const JobState& state) const;
  // Forgets the jobs from `number` on, with their files.
  void drop(std::size_t number) const;

  std::string read_seen(std::int64_t bytes) const;
  // Makes `seen` as long as `bytes`, to which more is added.
  File open_seen(std::int64_t bytes) const;

 private:
  fs::path job_file(std::size_t number) const { return path_ / "jobs" / (std::to_string(number) + ".json"); }
  fs::path path_;
};

// The regular files below a folder whose names end so, in order; links are not followed.
std::vector<fs::path> files_below(const fs::path& folder, const std::string& ending);

// Goes on with `state`, or begins where it has no key. Throws UsageError where the source cannot be read to its end;
// what was done before stays in the folder.
JobState run_job(Job& job, std::size_t number, JobState state, const PrepareOptions& options, const TextFolder& folder,
                 Cleaner& cleaner, UnpackedPackages* packages, const ProgressLine& progress);

}  // namespace molen::data
