// The description of a cluster: what its devices, nodes, networks and site can do, each figure with its source. A
// description is a TOML file (docs/formats/cluster.md); molen ships some (clusters/), which are found by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace molen::cluster {

// A figure in SI units. With a probability of 80 %, the true value is within `spread` of `value`, relative to `value`.
struct Figure {
  double value = 0.0;
  double spread = 0.0;  // 0 to 1
  std::string source;   // begins with "assumption:" if nobody published the figure
};

// One accelerator as a rank sees it. An MI250X has two of them.
struct Device {
  std::string name;  // "H100-SXM-94GB"
  // The runtime: "cuda", "rocm" (for which molen runs the same programs as for cuda), or "ipu" (no programs; the
  // description serves the compute calculus alone).
  std::string kind;
  std::string peak_note;          // how the makers count: "dense, without sparsity"
  Figure peak_fp32;               // FLOP/s of matrix products in fp32 itself, not in TF32
  Figure peak_16bit;              // FLOP/s of matrix products in bf16 and fp16
  Figure peak_fp8;                // FLOP/s of matrix products in fp8; value 0: the device has no fp8
  Figure memory;                  // bytes of memory that programs can use
  Figure bandwidth;               // bytes/s of that memory
  double multiprocessors = 0.0;   // units that share the tiles of a matrix product; 0: not described
  Figure gemm_efficiency;         // share of the peak that large matrix products reach
  Figure attention_efficiency;    // share of the peak that fused attention reaches
  Figure memory_efficiency;       // share of the bandwidth that kernels which only move memory reach
  Figure launch;                  // s that a kernel takes at least
  Figure idle_power, peak_power;  // W
};

// The links between the devices of a group, from the smallest group to the whole cluster. A group of ranks talks over
// the smallest tier that has all of its devices.
struct Tier {
  std::string name;   // "NVLink", "InfiniBand NDR"
  int devices = 0;    // in a group; of the last tier: all devices of the cluster
  Figure bandwidth;   // bytes/s of one device in one direction while all devices of the group send
  Figure efficiency;  // share of that bandwidth that large messages reach
  Figure latency;     // s of one message
};

struct Node {
  int devices = 0;
  Figure host_power;      // W of the rest of the node (processors, memory, network adapters, fans) while it trains
  Figure host_memory;     // bytes
  Figure host_bandwidth;  // bytes/s that the processors of a node reach together in their memory
  Figure host_link;       // bytes/s that copies reach between a device and that memory, in one direction
};

// The file has these figures per kWh (docs/formats/cluster.md).
struct Site {
  Figure pue;                         // energy of the site over energy of its computers
  Figure intensity;                   // kg CO2e per J of electricity
  Figure water;                       // m^3 per J of the computers' energy
  Figure price;                       // euros per J of electricity
  std::optional<Figure> device_hour;  // euros per s of one device, if the site charges its hours
  // kg CO2e per J of the electricity that the site has contracts for (market-based, GHG Protocol Scope 2)
  std::optional<Figure> market_intensity;
  // kg CO2e of making the computers, for each s of one device (its share of the node included)
  std::optional<Figure> embodied;
};

// How evenly the nodes run, and how often they fail. A file may have any of these figures; what it lacks is absent
// here, and plan::run_figures says what is assumed instead.
struct Reliability {
  std::optional<Figure> step_jitter;       // standard deviation of a device's time for a step, relative to its mean
  std::optional<Figure> slow_node_share;   // share of the nodes that are slow
  std::optional<Figure> slow_node_factor;  // time of a step on a slow node over that on another
  std::optional<Figure> node_mtbf;         // s between failures of one node that end its job
  std::optional<Figure> restart;           // s from a failure until the ranks begin to load their checkpoint
};

// The speed of the file system that holds checkpoints and data. A file may have any of these figures, as above.
struct Storage {
  std::optional<Figure> write_bandwidth, read_bandwidth;  // bytes/s of all nodes of a job together
  std::optional<Figure> node_bandwidth;                   // bytes/s of one node, in either direction
};

// The clocks that a device can be set to, and how time and power follow them (policy/clock_model.h). A file may have
// any of these figures, as above; without all of them no clocks are planned; only `change` is never needed.
struct Clocks {
  std::optional<Figure> low, high, step;  // Hz
  std::optional<Figure> knee;             // Hz; below it the voltage does not fall, so power is linear in the clock
  std::optional<Figure> exponent;         // of the power over the clock above the knee, beyond the clock's own 1
  std::optional<Figure> share;            // of the time of compute that follows the clock
  std::optional<Figure> change;           // s; from the call that sets a clock until the device has it
};

struct Cluster {
  std::string name;    // by which --cluster finds it: "snellius-h100"
  std::string title;   // "Snellius, H100 nodes of GPT-NL (SURF, Amsterdam)"
  std::string origin;  // file that it was read from, or "shipped"
  int nodes = 0;
  Device device;
  Node node;
  // At least one. The first has at least 2 devices; each group consists of whole groups of the tier before; the last
  // tier has all devices.
  std::vector<Tier> tiers;
  Site site;
  Reliability reliability;
  Storage storage;
  Clocks clocks;

  int devices() const { return nodes * node.devices; }
  // Returns the smallest tier whose groups have `devices` consecutive devices. Members of a group of ranks that are not
  // neighbours span the devices between them. Throws UsageError for more devices than the cluster has.
  const Tier& tier_of(int devices) const;
  // Throws UsageError, with the reason, when no step program can run on these devices.
  void require_programs() const;
};

// Reads a description. Throws UsageError that names file, line and key for text that is not TOML, an unknown key
// (with the nearest one), a missing figure, a figure without source, and a value outside the range that is sensible for
// its key. The error is about the first problem that is found.
Cluster parse(std::string_view text, const std::string& origin);

// Returns the names of the descriptions that molen ships, sorted.
const std::vector<std::string>& shipped();
// Returns the text of a shipped description. Throws UsageError with the nearest name when there is none.
std::string_view shipped_text(const std::string& name);

// Returns the cluster of a shipped name or of a file. A word that ends in ".toml" or has a "/" is a file. Throws the
// errors of parse, of shipped_text and of read_file.
Cluster find(const std::string& name_or_file);

}  // namespace molen::cluster
