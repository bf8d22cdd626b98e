#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "comm/mpi/mpi.h"

namespace molen::comm {
namespace {

// More than any machine has; sums of such counts do not overflow.
constexpr std::int64_t kMost = std::int64_t{1} << 30;

std::optional<std::int64_t> number(std::string_view text, std::int64_t least) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > kMost) return std::nullopt;
  return value;
}

class Variables {
 public:
  explicit Variables(const ReadVariable& read) : read_(read) {}

  bool has(const char* name) const { return !text(name).empty(); }
  std::string_view text(const char* name) const {
    const char* text = read_(name);
    return text ? text : "";
  }
  // Reads a variable that is set.
  int get(const char* name, std::int64_t least) const {
    const auto value = number(text(name), least);
    if (!value) throw UsageError("{}=\"{}\": expected a number from {} on", name, text(name), least);
    return static_cast<int>(*value);
  }
  // Reads the first of the variables that is set.
  std::optional<int> first(std::initializer_list<const char*> names, std::int64_t least) const {
    for (const char* name : names)
      if (has(name)) return get(name, least);
    return std::nullopt;
  }

 private:
  const ReadVariable& read_;
};

// Numbers from Slurm's list of tasks per node, in which "4(x2),3" means 4, 4 and 3: the tasks of one node, the tasks of
// all nodes, and the number of nodes.
struct Tasks {
  std::int64_t of_node = 0, all = 0, nodes = 0;
};
std::optional<Tasks> parse_tasks(std::string_view text, std::int64_t node) {
  Tasks tasks;
  while (true) {
    const auto comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const auto bracket = part.find("(x");
    std::optional<std::int64_t> repeated = 1;
    if (bracket != std::string_view::npos) {
      if (!part.ends_with(')')) return std::nullopt;
      repeated = number(part.substr(bracket + 2, part.size() - bracket - 3), 1);
    }
    const auto count = number(part.substr(0, bracket), 0);
    if (!count || !repeated || *count * *repeated > kMost - tasks.all) return std::nullopt;
    if (node >= tasks.nodes && node < tasks.nodes + *repeated) tasks.of_node = *count;
    tasks.all += *count * *repeated;
    tasks.nodes += *repeated;
    if (comma == std::string_view::npos) return tasks;
    text.remove_prefix(comma + 1);
  }
}

// Returns the number of a Slurm step's ranks on this node. SLURM_NTASKS_PER_NODE does not say it: that is the number
// requested, and the last node may have fewer.
std::optional<int> slurm_local_size(const Variables& v, int size) {
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    if (!v.has(name)) continue;
    const int node = v.first({"SLURM_NODEID"}, 0).value_or(0);
    const auto tasks = parse_tasks(v.text(name), node);
    if (!tasks) throw UsageError("{}=\"{}\": expected tasks of each node, such as \"4(x2),3\"", name, v.text(name));
    if (!v.has("SLURM_NODEID") && tasks->nodes > 1)
      throw UsageError("{}=\"{}\": SLURM_NODEID is not set, so it is unknown which of the nodes this is", name,
                       v.text(name));
    if (tasks->all != size || tasks->of_node == 0)
      throw UsageError("{}=\"{}\": has {} tasks, {} of them on node {}; this is one of {} ranks", name, v.text(name),
                       tasks->all, tasks->of_node, node, size);
    return static_cast<int>(tasks->of_node);
  }
  return std::nullopt;
}

// Completes values that a launcher does not set: a job of one rank has one local rank, and a lone local rank is 0.
// Throws UsageError when a value stays unknown or the values contradict each other.
LaunchEnvironment checked(LaunchEnvironment e, std::optional<int> local_rank, std::optional<int> local_size,
                          const char* variables) {
  if (!local_size && e.size == 1) local_size = 1;
  if (!local_size)
    throw UsageError("{}: it is unknown how many of its {} ranks share this host, because {} is not set", e.source,
                     e.size, variables);
  if (!local_rank && *local_size == 1) local_rank = 0;
  if (!local_rank)
    throw UsageError("{}: its variables do not say which of the {} ranks of this host this process is", e.source,
                     *local_size);
  e.local_size = *local_size;
  e.local_rank = *local_rank;
  if (e.rank >= e.size || e.local_size > e.size || e.local_rank >= e.local_size)
    throw UsageError("{}: rank {} of {}, and on this host {} of {}: its variables do not go together", e.source, e.rank,
                     e.size, e.local_rank, e.local_size);
  return e;
}

LaunchEnvironment of_open_mpi(const Variables& v) {
  LaunchEnvironment e;
  e.source = "Open MPI";
  e.size = v.get("OMPI_COMM_WORLD_SIZE", 1);
  e.rank = v.get("OMPI_COMM_WORLD_RANK", 0);
  return checked(e, v.first({"OMPI_COMM_WORLD_LOCAL_RANK"}, 0), v.first({"OMPI_COMM_WORLD_LOCAL_SIZE"}, 1),
                 "OMPI_COMM_WORLD_LOCAL_SIZE");
}

// Hydra has MPI_LOCAL... variables for the ranks of a host. Under Slurm's own PMI only Slurm's variables have them.
LaunchEnvironment of_pmi(const Variables& v) {
  LaunchEnvironment e;
  e.source = "PMI";
  e.size = v.get("PMI_SIZE", 1);
  e.rank = v.get("PMI_RANK", 0);
  auto local_size = v.first({"PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"}, 1);
  if (!local_size && v.has("SLURM_STEP_ID")) local_size = slurm_local_size(v, e.size);
  return checked(e, v.first({"PMI_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}, 0), local_size, "PMI_LOCAL_SIZE");
}

LaunchEnvironment of_slurm(const Variables& v) {
  LaunchEnvironment e;
  e.source = "Slurm";
  e.size = v.get("SLURM_NTASKS", 1);
  e.rank = v.get("SLURM_PROCID", 0);
  return checked(e, v.first({"SLURM_LOCALID"}, 0), slurm_local_size(v, e.size), "SLURM_STEP_TASKS_PER_NODE");
}

}  // namespace

LaunchEnvironment launch_environment(const ReadVariable& read) {
  const Variables v(read);
  if (v.has("OMPI_COMM_WORLD_SIZE")) return of_open_mpi(v);
  if (v.has("PMI_SIZE")) return of_pmi(v);
  // A batch script has SLURM_NTASKS too, but only a step has ranks.
  if (v.has("SLURM_STEP_ID") && v.has("SLURM_PROCID") && v.has("SLURM_NTASKS")) return of_slurm(v);
  return {};
}

LaunchEnvironment launch_environment() {
  return launch_environment([](const char* name) { return std::getenv(name); });
}

}  // namespace molen::comm
