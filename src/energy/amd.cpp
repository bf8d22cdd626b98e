#include "energy/amd.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/utf8.h"
#include "energy/counter.h"
#include "energy/visible.h"

namespace molen::energy {
namespace {

// AMD states no period. A counter that stands still for longer than this is taken to be late by so much.
constexpr Seconds kAmdChangesEvery{0.1};
// The counter's rise is compared with the power over so long.
constexpr double kCompareS = 0.1;
constexpr double kMostRatio = 10.0;

// The places of what is read in one version of the table, in bytes.
struct TableLayout {
  std::size_t watts = 0, ticks = 0, time = 0;
};

// Version 1.6 was changed after its first release (Linux 6.12), without another number.
constexpr std::size_t kFirstSizeOf16 = 384;

std::optional<TableLayout> layout_of(unsigned format, unsigned content, std::size_t size) {
  if (format != 1) return std::nullopt;
  if (content >= 1 && content <= 3) return TableLayout{22, 24, 32};
  if (content == 4) return TableLayout{10, 24, 32};
  if (content == 5 || (content == 6 && size == kFirstSizeOf16)) return TableLayout{10, 88, 96};
  if (content == 6) return TableLayout{10, 16, 24};
  if (content == 7 || content == 8) return TableLayout{10, 24, 32};
  return std::nullopt;
}

// The driver fills with ones what a GPU does not have.
template <class T>
std::optional<T> member_at(std::string_view table, std::size_t at) {
  T value{};
  std::memcpy(&value, table.data() + at, sizeof value);
  if (value == static_cast<T>(-1)) return std::nullopt;
  return value;
}

// One GPU as ROCm's runtime enumerates it.
struct AmdGpu {
  std::uint64_t address = 0, unique_id = 0;  // on PCI: domain, bus, device and function
  fs::path device;                           // of the driver
  std::string model;                         // "0x7408"
  std::string failure;                       // why it cannot be read
};

std::uint64_t property(std::string_view properties, std::string_view key) {
  for (std::size_t at = 0; at < properties.size();) {
    const std::size_t end = std::min(properties.find('\n', at), properties.size());
    const std::string_view line = properties.substr(at, end - at);
    at = end + 1;
    if (line.size() <= key.size() || line.substr(0, key.size()) != key || line[key.size()] != ' ') continue;
    std::uint64_t value = 0;
    const auto parsed = std::from_chars(line.data() + key.size() + 1, line.data() + line.size(), value);
    return parsed.ec == std::errc() ? value : 0;
  }
  return 0;
}

AmdGpu gpu_of_node(const Machine& machine, std::string_view properties) {
  AmdGpu gpu;
  gpu.address = (property(properties, "domain") << 32) | property(properties, "location_id");
  gpu.unique_id = property(properties, "unique_id");
  gpu.device = machine.sys / fmt::format("class/drm/renderD{}/device", property(properties, "drm_render_minor"));
  if (const auto model = read_small(gpu.device / "device")) gpu.model = model.value();
  const auto partition = read_small(gpu.device / "current_compute_partition");
  if (partition && partition.value() != "SPX")
    gpu.failure = fmt::format("the GPU is divided into partitions ({}), which have no counters of their own",
                              printable(partition.value()));
  return gpu;
}

// Returns the GPUs in the order in which ROCm's runtime numbers them. It leaves out those whose files the job's control
// group does not let it read.
std::vector<AmdGpu> gpus_of_rocm(const Machine& machine) {
  std::vector<std::pair<int, fs::path>> nodes;
  std::error_code error;
  for (fs::directory_iterator it(machine.sys / "class/kfd/kfd/topology/nodes", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    int number = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), number).ec == std::errc())
      nodes.emplace_back(number, it->path());
  }
  std::sort(nodes.begin(), nodes.end());
  std::vector<AmdGpu> gpus;
  for (const auto& [number, node] : nodes) {
    const auto id = read_count(node / "gpu_id");
    const auto properties = read_small(node / "properties");
    if (!id || id.value() == 0 || !properties) continue;
    gpus.push_back(gpu_of_node(machine, properties.value()));
  }
  return gpus;
}

AmdGpu gpu_named(const std::vector<AmdGpu>& gpus, const std::string& word) {
  AmdGpu none;
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), index);
  if (error == std::errc() && end == word.data() + word.size()) {
    if (index < gpus.size()) return gpus[index];
    none.failure = fmt::format("no GPU {}: this job may use {}", index, gpus.size());
    return none;
  }
  for (const AmdGpu& gpu : gpus)
    if (gpu.unique_id != 0 && word == fmt::format("GPU-{:x}", gpu.unique_id)) return gpu;
  none.failure = fmt::format("no GPU is '{}'", printable(word.substr(0, 60)));
  return none;
}

std::vector<AmdGpu> gpus_of_job(const Machine& machine, const std::optional<std::string>& visible) {
  auto gpus = gpus_of_rocm(machine);
  if (!visible || gpus.empty()) return gpus;  // on a machine without AMD's, the list names another maker's GPUs
  std::vector<AmdGpu> chosen;
  for (const std::string& word : visible_words(*visible)) chosen.push_back(gpu_named(gpus, word));
  return chosen;
}

Result<GpuMetrics> metrics_of(const AmdGpu& gpu) {
  const auto table = read_bytes(gpu.device / "gpu_metrics");
  if (!table) return Failure{table.reason()};
  const auto metrics = parse_gpu_metrics(table.value());
  if (!metrics) return Failure{fmt::format("{}: {}", (gpu.device / "gpu_metrics").string(), metrics.reason())};
  return metrics;
}

bool is_half(const AmdGpu& gpu) {
  return gpu.model == "0x7408" || gpu.model == "0x740c";  // MI250X, MI250
}

class AmdMeter : public Meter {
 public:
  AmdMeter(MeterInfo info, AmdGpu gpu, std::function<double()> clock)
      : Meter(std::move(info)), gpu_(std::move(gpu)), clock_(std::move(clock)), counter_(0, 0) {}

  Result<Reading> read() override {
    const auto metrics = metrics_of(gpu_);
    if (!metrics) return Failure{metrics.reason()};
    if (!metrics.value().ticks) return Failure{"the GPU shows no energy any more"};
    return counter_.add(*metrics.value().ticks, clock_(), kAmdTick);
  }

 private:
  AmdGpu gpu_;
  std::function<double()> clock_;
  Unwrapper counter_;
};

// Returns why a counter is not to be believed; empty if nothing speaks against it.
std::string contradiction(const GpuMetrics& before, const GpuMetrics& after) {
  const double seconds = 1e-9 * static_cast<double>(after.time_ns - before.time_ns);
  if (!before.watts || !after.watts || after.time_ns <= before.time_ns || *after.ticks <= *before.ticks) return "";
  const double joules = kAmdTick * static_cast<double>(*after.ticks - *before.ticks);
  const double by_power = 0.5 * (*before.watts + *after.watts) * seconds;
  if (joules <= kMostRatio * by_power && by_power <= kMostRatio * joules) return "";
  return fmt::format("its counter rose by {:.3g} J in {:.3g} s, at a power of {:.3g} W", joules, seconds, *after.watts);
}

// Says which GPUs share a counter: on an MI250X the second one of a pair shows none, because the first one counts both.
enum class Sharing { kOwn, kBoth, kCountedByOther, kOtherIsNotOurs };

Sharing sharing_of(const std::vector<AmdGpu>& gpus, const std::vector<Result<GpuMetrics>>& metrics, std::size_t i) {
  if (!is_half(gpus[i]) || !metrics[i].ok()) return Sharing::kOwn;
  const auto counts = [&](std::size_t k) { return metrics[k].ok() && metrics[k].value().ticks.value_or(0) > 0; };
  if (!counts(i)) return Sharing::kCountedByOther;
  std::optional<std::size_t> next;  // the one behind it on the bus
  for (std::size_t k = 0; k < gpus.size(); ++k)
    if (gpus[k].address > gpus[i].address && (!next || gpus[k].address < gpus[*next].address)) next = k;
  const bool ours = next && is_half(gpus[*next]) && metrics[*next].ok() && !counts(*next);
  return ours ? Sharing::kBoth : Sharing::kOtherIsNotOurs;
}

}  // namespace

Result<GpuMetrics> parse_gpu_metrics(std::string_view table) {
  if (table.size() < 4) return Failure{fmt::format("{} bytes are no table", table.size())};
  std::uint16_t size = 0;
  std::memcpy(&size, table.data(), sizeof size);
  const auto format = static_cast<unsigned char>(table[2]), content = static_cast<unsigned char>(table[3]);
  const auto layout = layout_of(format, content, size);
  if (!layout)
    return Failure{
        fmt::format("a table of version {}.{}; molen reads 1.1 to 1.8", unsigned{format}, unsigned{content})};
  if (size > table.size() || layout->time + sizeof(std::uint64_t) > size)
    return Failure{fmt::format("a table of {} bytes that says it has {}", table.size(), size)};
  GpuMetrics metrics;
  metrics.ticks = member_at<std::uint64_t>(table, layout->ticks);
  if (const auto watts = member_at<std::uint16_t>(table, layout->watts)) metrics.watts = *watts;
  metrics.time_ns = member_at<std::uint64_t>(table, layout->time).value_or(0);
  return metrics;
}

Meters open_amd(const Machine& machine, const std::optional<std::string>& visible) {
  Meters found;
  const auto gpus = gpus_of_job(machine, visible);
  if (gpus.empty())
    found.unavailable.push_back({"amd", "gpu", "no GPU of ROCm that this job may use (in /sys/class/kfd)"});
  const auto read_all = [&] {
    std::vector<Result<GpuMetrics>> all;
    for (const AmdGpu& gpu : gpus)
      all.push_back(gpu.failure.empty() ? metrics_of(gpu) : Result<GpuMetrics>(Failure{gpu.failure}));
    return all;
  };
  const auto before = read_all();
  if (!gpus.empty()) machine.sleep(kCompareS);
  const auto after = read_all();
  int modules = 0;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    std::string scope = fmt::format("gpu{}", i);
    const auto leave = [&](const std::string& reason) { found.unavailable.push_back({"amd", scope, reason}); };
    const Sharing sharing = sharing_of(gpus, after, i);
    if (!before[i].ok() || !after[i].ok())
      leave(before[i].ok() ? after[i].reason() : before[i].reason());
    else if (sharing == Sharing::kCountedByOther)  // nothing is missing, so no scope of its own is named
      found.unavailable.push_back(
          {"amd", "gpu", fmt::format("the energy of gpu{} is counted by the other GPU of its module", i)});
    else if (sharing == Sharing::kOtherIsNotOurs)
      leave("its counter also has the energy of the other GPU of its module, which is not this job's");
    else if (!before[i].value().ticks || !after[i].value().ticks)
      leave("the GPU has no counter of energy");
    else if (const std::string why = contradiction(before[i].value(), after[i].value()); !why.empty())
      leave(why);
    else {
      const bool both = sharing == Sharing::kBoth;
      if (both) scope = fmt::format("accel{}", modules++);
      const std::string detail = (gpus[i].device / "gpu_metrics").string() + (both ? ", both GPUs of a module" : "");
      found.meters.push_back(std::make_unique<AmdMeter>(
          MeterInfo{"amd", scope, Source::kCounter, detail, Seconds(0), true, kAmdTick, kAmdChangesEvery}, gpus[i],
          machine.clock));
      (void)found.meters.back()->read();  // from here on it counts
    }
  }
  return found;
}

}  // namespace molen::energy
