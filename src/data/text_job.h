// The text of one source under construction. Progress is recorded as it is made, so that the next run continues after a
// run that was killed or stopped at a damaged file.
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

// The job that makes one text file (from a package), or one per language (from files).
struct Job {
  TextRecord record;
  std::optional<Recipe> recipe;               // for a package
  fs::path fetched;                           // the folder of the package
  fs::path root;                              // base of the files' ids
  std::vector<fs::path> files;                // for packages, known once they are unpacked
  std::int64_t bytes = 0;                     // size of the sources
  double begin_share = 0.0, end_share = 0.0;  // share of the bytes of all jobs, before and after this job
  std::string key;  // changes with every input of this job's text, including the jobs before it
};

// The progress of a job: the first `files` of its files are done, and `line` lines of the next file.
struct JobState {
  std::string key;
  bool done = false;
  std::int64_t files = 0, line = 0;
  std::int64_t invalid = 0, invalid_in_file = 0;
  std::string first_invalid;  // place and reason
  std::int64_t seen = 0;      // bytes of the folder's `seen` after this job
  std::vector<TextRecord> outputs;
};

// The folder of texts under construction: jobs/<n>.json, `seen` (hashes of the cleaner, in order),
// <split>/<name>.jsonl.
class TextFolder {
 public:
  explicit TextFolder(fs::path path) : path_(std::move(path)) {}
  const fs::path& path() const { return path_; }
  fs::path text(const TextRecord& record) const { return path_ / record.split / (record.name + ".jsonl"); }

  // Returns nullopt when there is no record, when it does not belong to `key`, or when the files differ from it.
  std::optional<JobState> load(std::size_t number, const std::string& key) const;
  void save(std::size_t number, const JobState& state) const;
  // Forgets the jobs from `number` on and removes their files.
  void drop(std::size_t number) const;

  std::string read_seen(std::int64_t bytes) const;
  // Cuts `seen` to `bytes` and opens it for appending.
  File open_seen(std::int64_t bytes) const;

 private:
  fs::path job_file(std::size_t number) const { return path_ / "jobs" / (std::to_string(number) + ".json"); }
  fs::path path_;
};

// Returns the regular files below a folder whose names end in `ending`, in order. Does not follow links.
std::vector<fs::path> files_below(const fs::path& folder, const std::string& ending);

// Does the rest of a job: continues from `state`, or begins when `state` has no key. Throws UsageError when the source
// cannot be read to its end; finished work stays in the folder.
JobState run_job(Job& job, std::size_t number, JobState state, const PrepareOptions& options, const TextFolder& folder,
                 Cleaner& cleaner, UnpackedPackages* packages, const ProgressLine& progress);

}  // namespace molen::data
