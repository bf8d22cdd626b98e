#include "energy/amd.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>

#include "base/utf8.h"
#include "energy/counter.h"
#include "energy/visible.h"

namespace molen::energy {
namespace {

// AMD states no period; this is the least at which power is filtered on these GPUs.
constexpr Seconds kAmdChangesEvery{0.1};
// The counter's rise is compared with the power over so long, as Zeus does.
constexpr double kCompareS = 0.5;
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
  bool of_processor = false;                 // an APU, whose energy is metered with its package
};

constexpr const char* kMi300a = "0x74a0";

// MI250X, MI250: two GPUs each. The driver shows the energy of both at the first one, and 0 at the second.
bool is_half(const AmdGpu& gpu) {
  return gpu.model == "0x7408" || gpu.model == "0x740c";
}

// Tables of versions 1.1 to 1.3 also belong to GPUs whose counter has 32 bits, or another unit.
bool has_exact_counter(const AmdGpu& gpu, unsigned content) {
  return content >= 4 || is_half(gpu) || gpu.model == "0x740f";  // MI210
}

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
  gpu.of_processor = property(properties, "cpu_cores_count") > 0;
  const auto partition = read_small(gpu.device / "current_compute_partition");
  if (gpu.model == kMi300a)
    gpu.failure = "the counter of an MI300A also has its processor and memory";
  else if (partition && partition.value() != "SPX")
    gpu.failure = fmt::format("the GPU is divided into partitions ({}), which have no counters of their own",
                              printable(partition.value()));
  return gpu;
}

struct AmdGpus {
  std::vector<AmdGpu> all;  // in the order in which ROCm's runtime numbers them
  bool hidden = false;      // the job's control group hides some of the machine's
};

AmdGpus gpus_of_rocm(const Machine& machine) {
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
  AmdGpus gpus;
  for (const auto& [number, node] : nodes) {
    const auto id = read_count(node / "gpu_id");
    const auto properties = read_small(node / "properties");
    if (!id || !properties)
      gpus.hidden = true;
    else if (id.value() != 0)
      gpus.all.push_back(gpu_of_node(machine, properties.value()));
  }
  return gpus;
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
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
    if (gpu.unique_id != 0 && lower_case(word) == fmt::format("gpu-{:016x}", gpu.unique_id)) return gpu;
  none.failure = fmt::format("no GPU is '{}'", printable(word.substr(0, 60)));
  return none;
}

std::vector<AmdGpu> gpus_of_job(const std::vector<AmdGpu>& all, const std::optional<std::string>& visible) {
  if (!visible || all.empty()) return all;  // on a machine without AMD's, the list names another maker's GPUs
  std::vector<AmdGpu> chosen;
  for (const std::string& word : visible_words(*visible)) {
    AmdGpu gpu = gpu_named(all, word);
    const auto same = [&](const AmdGpu& other) { return other.device == gpu.device; };
    if (gpu.device.empty() || std::ranges::none_of(chosen, same)) chosen.push_back(std::move(gpu));
  }
  return chosen;
}

Result<GpuMetrics> metrics_of(const AmdGpu& gpu) {
  const auto table = read_bytes(gpu.device / "gpu_metrics");
  if (!table) return Failure{table.reason()};
  auto metrics = parse_gpu_metrics(table.value());
  if (!metrics) return Failure{fmt::format("{}: {}", (gpu.device / "gpu_metrics").string(), metrics.reason())};
  if (!has_exact_counter(gpu, metrics.value().version))
    return Failure{fmt::format("of GPUs of model {} it is not known that their counter has 64 bits", gpu.model)};
  return metrics;
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

// Returns why a counter is not to be believed; empty if nothing speaks against it. One that stands still is judged
// elsewhere, by whether it ever changes.
std::string contradiction(const GpuMetrics& before, const GpuMetrics& after) {
  if (*after.ticks < *before.ticks)
    return fmt::format("its counter went back from {} to {}", *before.ticks, *after.ticks);
  const double seconds = 1e-9 * static_cast<double>(after.time_ns - before.time_ns);
  const double joules = kAmdTick * static_cast<double>(*after.ticks - *before.ticks);
  const double by_power = 0.5 * (before.watts.value_or(0.0) + after.watts.value_or(0.0)) * seconds;
  if (after.time_ns <= before.time_ns || joules == 0.0 || by_power == 0.0) return "";
  if (joules <= kMostRatio * by_power && by_power <= kMostRatio * joules) return "";
  return fmt::format("its counter rose by {:.3g} J in {:.3g} s, at a power of {:.3g} W", joules, seconds, *after.watts);
}

// The GPUs of an MI250X, by their places among those of the job.
struct Module {
  std::optional<std::size_t> first, second;  // absent: not the job's
};

// Returns the modules of all GPUs of a machine: its halves in the order of their addresses are first, second, first,
// ... Returns nothing where the job does not see them all.
std::optional<std::vector<Module>> modules_of(const AmdGpus& machine, const std::vector<AmdGpu>& job) {
  std::vector<const AmdGpu*> halves;
  for (const AmdGpu& gpu : machine.all)
    if (is_half(gpu)) halves.push_back(&gpu);
  if (machine.hidden || halves.size() % 2 != 0) return std::nullopt;
  std::ranges::sort(halves, {}, &AmdGpu::address);
  const auto place = [&](const AmdGpu* gpu) -> std::optional<std::size_t> {
    for (std::size_t i = 0; i < job.size(); ++i)
      if (job[i].device == gpu->device) return i;
    return std::nullopt;
  };
  std::vector<Module> modules;
  for (std::size_t i = 0; i < halves.size(); i += 2) modules.push_back({place(halves[i]), place(halves[i + 1])});
  return modules;
}

// Reads the metrics of all GPUs of a job twice, and finds out which of them can be used.
class AmdOpening {
 public:
  AmdOpening(const Machine& machine, const std::optional<std::string>& visible)
      : machine_(machine), all_(gpus_of_rocm(machine)), job_(gpus_of_job(all_.all, visible)) {}

  Meters open() {
    if (job_.empty()) {
      leave("gpu", fmt::format("no GPU of ROCm that this job may use in {}", (machine_.sys / "class/kfd").string()));
      return std::move(found_);
    }
    before_ = read_all();
    machine_.sleep(kCompareS);
    after_ = read_all();
    open_modules();
    for (std::size_t i = 0; i < job_.size(); ++i) {
      if (job_[i].of_processor)
        leave("gpu", fmt::format("gpu{} is part of a processor, and metered with it", i));
      else if (!is_half(job_[i]))
        open_one(i, fmt::format("gpu{}", i), "");
    }
    return std::move(found_);
  }

 private:
  std::vector<Result<GpuMetrics>> read_all() const {
    std::vector<Result<GpuMetrics>> all;
    for (const AmdGpu& gpu : job_)
      all.push_back(gpu.failure.empty() ? metrics_of(gpu) : Result<GpuMetrics>(Failure{gpu.failure}));
    return all;
  }

  void leave(const std::string& scope, const std::string& reason) {
    found_.unavailable.push_back({"amd", scope, reason});
  }

  // Returns whether the GPU's counter is used.
  bool open_one(std::size_t i, const std::string& scope, const std::string& detail) {
    std::string why = before_[i].ok() ? after_[i].reason() : before_[i].reason();
    if (why.empty() && (!before_[i].value().ticks || !after_[i].value().ticks))
      why = "the GPU has no counter of energy";
    if (why.empty()) why = contradiction(before_[i].value(), after_[i].value());
    if (!why.empty()) {
      leave(fmt::format("gpu{}", i), why);
      return false;
    }
    found_.meters.push_back(std::make_unique<AmdMeter>(
        MeterInfo{"amd", scope, Source::kCounter, (job_[i].device / "gpu_metrics").string() + detail, Seconds(0), true,
                  kAmdTick, kAmdChangesEvery},
        job_[i], machine_.clock));
    (void)found_.meters.back()->read();  // from here on it counts
    return true;
  }

  void open_modules() {
    const auto modules = modules_of(all_, job_);
    if (!modules) {
      for (std::size_t i = 0; i < job_.size(); ++i)
        if (is_half(job_[i]))
          leave(fmt::format("gpu{}", i),
                "its counter is that of a module of two GPUs, and this job does not see which (it sees not all GPUs of "
                "the machine)");
      return;
    }
    for (const Module& m : *modules) {
      if (m.first && m.second) {
        const bool read = open_one(*m.first, fmt::format("gpu{}+{}", *m.first, *m.second), ", both GPUs of a module");
        leave(read ? "gpu" : fmt::format("gpu{}", *m.second),
              fmt::format("the energy of gpu{} is in the counter of gpu{}, the other GPU of its module", *m.second,
                          *m.first));
      } else if (m.first || m.second) {
        leave(fmt::format("gpu{}", m.first ? *m.first : *m.second),
              "its module's counter also has the other GPU, which is not this job's");
      }
    }
  }

  const Machine& machine_;
  AmdGpus all_;
  std::vector<AmdGpu> job_;
  std::vector<Result<GpuMetrics>> before_, after_;
  Meters found_;
};

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
  metrics.version = content;
  metrics.ticks = member_at<std::uint64_t>(table, layout->ticks);
  if (const auto watts = member_at<std::uint16_t>(table, layout->watts)) metrics.watts = *watts;
  metrics.time_ns = member_at<std::uint64_t>(table, layout->time).value_or(0);
  return metrics;
}

Meters open_amd(const Machine& machine, const std::optional<std::string>& visible) {
  return AmdOpening(machine, visible).open();
}

}  // namespace molen::energy
