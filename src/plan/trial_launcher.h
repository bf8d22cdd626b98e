// The command that starts the ranks of a measured trial, and the nodes on which trials run.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace molen::plan {

// The values that a launcher's places stand for. A number is 0 where nothing says it.
struct LaunchPlaces {
  int ranks = 0, nodes = 0;      // of the trial
  int first_node = 0;            // of the trial, counted from 0 within the allocation
  std::filesystem::path config;  // the trial's configuration
  std::filesystem::path run;     // the trial's run directory
};

// --launch: a command line with places, as "srun -N {nodes} -n {ranks}". The places are {ranks}, {nodes}, {first_node},
// {config} and {run}. Other text in braces is left as it is, unless it is a word of small letters, which may be a
// misspelt place.
class Launcher {
 public:
  // Throws UsageError, which begins with --launch, for a line without words, a quote that does not end, and a place
  // that there is not (with the nearest one).
  explicit Launcher(std::string line);

  bool has(std::string_view place) const;  // "nodes"
  const std::string& line() const { return line_; }
  // Returns the words of the command. A place whose number is not known must not be there.
  std::vector<std::string> words(const LaunchPlaces& places) const;

 private:
  std::string line_;
  std::vector<std::string> words_;
};

using ReadEnvironment = std::function<const char*(const char* name)>;

// Returns the number of nodes of the Slurm allocation in which this process runs (SLURM_JOB_NUM_NODES); absent outside
// of one. Throws UsageError when the variable has no number.
std::optional<int> allocated_nodes(const ReadEnvironment& read);
std::optional<int> allocated_nodes();

// The nodes of an allocation, which trials divide that run at the same time.
class NodePool {
 public:
  // Nodes that belong to one trial until this object ends.
  class Taken {
   public:
    Taken(NodePool& pool, int first, int nodes) : pool_(&pool), first_(first), nodes_(nodes) {}
    ~Taken();
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;
    int first() const { return first_; }  // the others follow it

   private:
    NodePool* pool_;
    int first_, nodes_;
  };

  explicit NodePool(int nodes) : used_(static_cast<std::size_t>(nodes), false) {}
  int nodes() const { return static_cast<int>(used_.size()); }
  // Waits until `nodes` neighbours are free, from 1 to all of the pool, and takes the first such.
  Taken take(int nodes);

 private:
  std::optional<int> free_run(int nodes) const;

  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<bool> used_;
};

}  // namespace molen::plan
