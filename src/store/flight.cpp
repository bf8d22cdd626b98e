#include "store/flight.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/host_name.h"
#include "store/record_check.h"

namespace molen::store {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian, as every host we know of");

constexpr char kMagic[8] = {'M', 'O', 'L', 'E', 'N', 'F', 'L', 'T'};
constexpr std::uint32_t kFlightVersion = 4;
constexpr std::size_t kHeadBytes = 4096;
constexpr std::uint32_t kMostRecords = 1 << 14;
constexpr std::int32_t kMostRanks = 1 << 24;
constexpr std::int64_t kMostRanksAFile = 64, kMostRanksMissing = 1024;  // limits of plausible rank counts in reports

// Other processes may read fields while they are written: all accesses go through atomic_ref.
struct Record {
  std::uint64_t sequence;  // 0 while the rest is being written
  std::int64_t ns, step, bytes;
  std::int32_t op;
  std::uint32_t end;
  std::uint64_t check;  // checksum of the fields above: it exposes half a record on the disk of a lost host
};

struct alignas(64) Slot {
  Record record;
};
static_assert(sizeof(Slot) == 64);

template <class T>
void write_field(T& field, T value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref<T>(field).store(value, order);
}
template <class T>
T read_field(const T& field, std::memory_order order = std::memory_order_relaxed) {
  return std::atomic_ref<T>(const_cast<T&>(field)).load(order);
}

std::uint64_t check_of(const Record& r, std::uint64_t sequence) {
  const std::uint64_t op_and_end = static_cast<std::uint64_t>(static_cast<std::uint32_t>(r.op)) << 32 | r.end;
  return RecordCheck().add(sequence).add(r.ns).add(r.step).add(r.bytes).add(op_and_end).value();
}

constexpr int kOpBits = 26;  // bits of the op and of `inside`

}  // namespace

// Not in an anonymous namespace, because FlightWriter::Head, which is in none, has members of this type.
struct StreamHead {
  std::uint64_t position;  // step << 26 | op << 1 | inside
  std::uint64_t written;
};

// The first page of the file; docs/formats/flight.md lists the offsets.
struct FlightWriter::Head {
  char magic[8];  // written last, after the rest
  std::uint32_t version, head_bytes, slot_bytes, records, streams;
  std::int32_t rank, ranks;
  std::uint32_t phase;
  std::int64_t attempt;
  std::uint64_t job;
  std::int64_t pid;
  std::uint64_t pid_start, pid_namespace;
  std::int64_t start_wall_ns;
  char host[64], boot[64], digest[72];
  // Fields that change during the run.
  std::uint64_t beat;
  std::int64_t beat_ns, beat_wall_ns, idle_ns, median_step_ns, step;
  std::uint64_t phases;  // number of phase changes
  std::uint32_t end;
  std::int32_t saw_dead;
  StreamHead stream[kFlightStreams];
  char unused[3600];

  Slot* ring(int s) {
    return reinterpret_cast<Slot*>(reinterpret_cast<char*>(this) + kHeadBytes) +
           std::ptrdiff_t{s} * FlightWriter::kRecords;
  }
};

namespace {

template <std::size_t N>
void put_text(char (&field)[N], const std::string& text) {
  std::memset(field, 0, N);
  std::memcpy(field, text.data(), std::min(text.size(), N - 1));
}

// Reads a text file in /proc, whose size the system does not tell. Returns an empty string when the process is gone.
std::string read_proc(const std::string& path) {
  try {
    return read_file(path, 1 << 16);
  } catch (const UsageError&) {  // its process is gone
    return "";
  } catch (const IoError& error) {
    if (error.code() != ESRCH) throw;  // no descriptor left, ...: no information about the process
    return "";
  }
}

// The state letter and the start time in /proc/PID/stat. The command in parentheses before them may contain any
// characters.
struct Stat {
  char state;
  std::uint64_t start;
};
std::optional<Stat> stat_of(std::int64_t pid) {
  const std::string text = read_proc(fmt::format("/proc/{}/stat", pid));
  const std::size_t close = text.rfind(')');
  if (close == std::string::npos || close + 2 >= text.size()) return std::nullopt;
  Stat stat{text[close + 2], 0};
  std::size_t at = close + 2;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) {  // proc(5): start time is field 22
    at = text.find(' ', at);
    if (at != std::string::npos) ++at;
  }
  if (at == std::string::npos) return std::nullopt;
  std::from_chars(text.data() + at, text.data() + text.size(), stat.start);
  return stat;
}

}  // namespace

std::string_view name_of(FlightPhase phase) {
  constexpr std::array<std::string_view, 5> names{"start", "train", "validation", "checkpoint", "finish"};
  return names.at(static_cast<std::size_t>(phase));
}

FlightIdentity identify_process(FlightIdentity identity) {
  identity.host = host_name();
  identity.boot = read_proc("/proc/sys/kernel/random/boot_id");
  while (!identity.boot.empty() && identity.boot.back() == '\n') identity.boot.pop_back();
  identity.pid = ::getpid();
  if (const auto stat = stat_of(identity.pid)) identity.pid_start = stat->start;
  struct ::stat space {};
  if (::stat("/proc/self/ns/pid", &space) == 0) identity.pid_namespace = space.st_ino;
  identity.start_wall_ns = static_cast<std::int64_t>(wall_time() * 1e9);
  return identity;
}

namespace {

std::size_t bytes_of_flight(int streams) {
  MOLEN_CHECK(streams >= 2 && streams <= kFlightStreams, "a flight recorder of {} streams", streams);
  return kHeadBytes + sizeof(Slot) * FlightWriter::kRecords * static_cast<std::size_t>(streams);
}

}  // namespace

FlightWriter::FlightWriter(const fs::path& file, const FlightIdentity& identity, int streams)
    : file_(file, bytes_of_flight(streams), "the flight recorder") {
  static_assert(sizeof(Head) == kHeadBytes);
  head_ = new (file_.data()) Head{};
  head_->version = kFlightVersion;
  head_->head_bytes = kHeadBytes;
  head_->slot_bytes = sizeof(Slot);
  head_->records = kRecords;
  head_->streams = static_cast<std::uint32_t>(streams);
  head_->rank = identity.rank;
  head_->ranks = identity.ranks;
  head_->attempt = identity.attempt;
  head_->job = identity.job;
  head_->pid = identity.pid;
  head_->pid_start = identity.pid_start;
  head_->pid_namespace = identity.pid_namespace;
  head_->start_wall_ns = identity.start_wall_ns;
  put_text(head_->host, identity.host);
  put_text(head_->boot, identity.boot);
  put_text(head_->digest, identity.program_digest);
  head_->saw_dead = -1;
  beat(0, now_ns(), identity.start_wall_ns);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(head_->magic, kMagic, sizeof kMagic);
}

void FlightWriter::record(int stream, bool end, std::int64_t step, int op, std::int64_t bytes,
                          std::int64_t ns) noexcept {
  const auto s = static_cast<std::size_t>(stream);
  if (s >= head_->streams) return;
  const std::uint64_t sequence = ++sequence_[s];
  Record& r = head_->ring(stream)[(sequence - 1) % kRecords].record;
  write_field(r.sequence, std::uint64_t{0});
  std::atomic_thread_fence(std::memory_order_release);
  const Record next{sequence, ns, step, bytes, op, end ? 1U : 0U, 0};
  write_field(r.ns, next.ns);
  write_field(r.step, next.step);
  write_field(r.bytes, next.bytes);
  write_field(r.op, next.op);
  write_field(r.end, next.end);
  write_field(r.check, check_of(next, sequence));
  write_field(r.sequence, sequence, std::memory_order_release);
  StreamHead& h = head_->stream[s];
  write_field(h.position,
              static_cast<std::uint64_t>(step) << kOpBits | static_cast<std::uint64_t>(op) << 1 | (end ? 0U : 1U));
  write_field(h.written, sequence, std::memory_order_release);
}

void FlightWriter::phase(FlightPhase phase, std::int64_t step) noexcept {
  write_field(head_->step, step);
  write_field(head_->phase, static_cast<std::uint32_t>(phase));
  std::atomic_ref<std::uint64_t>(head_->phases).fetch_add(1, std::memory_order_release);
}
void FlightWriter::median_step(std::int64_t ns) noexcept {
  write_field(head_->median_step_ns, ns);
}
void FlightWriter::beat(std::int64_t idle_ns, std::int64_t ns, std::int64_t wall_ns) noexcept {
  write_field(head_->idle_ns, idle_ns);
  write_field(head_->beat_ns, ns);
  write_field(head_->beat_wall_ns, wall_ns);
  std::atomic_ref<std::uint64_t>(head_->beat).fetch_add(1, std::memory_order_release);
}
void FlightWriter::saw_dead(int rank) noexcept {
  write_field(head_->saw_dead, static_cast<std::int32_t>(rank));
}
void FlightWriter::leave(FlightEnd end) noexcept {
  write_field(head_->end, static_cast<std::uint32_t>(end));
}
std::uint64_t FlightWriter::progress() const noexcept {
  std::uint64_t all = read_field(head_->phases);
  for (StreamHead& stream : head_->stream) all += read_field(stream.written);
  return all;
}
FlightPhase FlightWriter::phase() const noexcept {
  return static_cast<FlightPhase>(read_field(head_->phase));
}
std::int64_t FlightWriter::median_step() const noexcept {
  return read_field(head_->median_step_ns);
}
void FlightWriter::sync() noexcept {
  file_.sync(kHeadBytes);
}

namespace {

// Reads fields from untrusted bytes.
class Reader {
 public:
  Reader(std::string_view bytes, std::string_view origin) : bytes_(bytes), origin_(origin) {}

  template <class T>
  T at(std::size_t offset) const {
    T value;
    MOLEN_CHECK(offset + sizeof(T) <= bytes_.size(), "a field behind the end");
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }
  template <class T>
  T within(std::size_t offset, T least, T most, const char* what) const {
    const T value = at<T>(offset);
    if (value < least || value > most) wrong(fmt::format("{} is {}", what, value));
    return value;
  }
  std::string text(std::size_t offset, std::size_t size) const {
    std::string value(bytes_.substr(offset, size));
    value.resize(std::min(value.size(), value.find('\0')));
    for (char& c : value)
      if (c < ' ' || c > '~') c = '?';
    return value;
  }
  [[noreturn]] void wrong(const std::string& why) const {
    throw UsageError("{}: not a flight record of molen: {}", origin_, why);
  }
  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_, origin_;
};

void read_ring(const Reader& in, std::size_t start, std::uint32_t slots, FlightStream& stream) {
  for (std::uint32_t i = 0; i < slots; ++i) {
    const Record r = in.at<Record>(start + i * sizeof(Slot));
    if (r.sequence == 0 && r.check == 0) continue;  // never written
    if (r.sequence == 0 || (r.sequence - 1) % slots != i || r.check != check_of(r, r.sequence) || r.end > 1 ||
        r.op < 0) {
      ++stream.torn;
      continue;
    }
    stream.records.push_back({r.sequence, r.ns, r.step, r.bytes, r.op, r.end == 1});
  }
  std::sort(stream.records.begin(), stream.records.end(),
            [](const FlightRecord& a, const FlightRecord& b) { return a.sequence < b.sequence; });
}

}  // namespace

FlightState parse_flight(std::string_view bytes, std::string_view origin) {
  const Reader in(bytes, origin);
  if (bytes.size() < kHeadBytes) in.wrong(fmt::format("{} bytes, its head has {}", bytes.size(), kHeadBytes));
  if (bytes.substr(0, sizeof kMagic) != std::string_view(kMagic, sizeof kMagic))
    in.wrong("its first bytes are not MOLENFLT");
  if (const auto version = in.at<std::uint32_t>(8); version != kFlightVersion)
    throw UsageError(
        "{}: a flight record of version {}; this molen reads {}. The molen that wrote it reads it; once the run has "
        "ended, "
        "its flight/ folder may be deleted",
        origin, version, kFlightVersion);
  if (in.at<std::uint32_t>(12) != kHeadBytes || in.at<std::uint32_t>(16) != sizeof(Slot))
    in.wrong("sizes of its parts");
  const auto slots = in.within<std::uint32_t>(20, 1, kMostRecords, "its number of records");
  const auto streams = in.within<std::uint32_t>(24, 2, kFlightStreams, "its number of streams");
  FlightState s;
  FlightIdentity& id = s.identity;
  id.ranks = in.within<std::int32_t>(32, 1, kMostRanks, "the number of ranks");
  id.rank = in.within<std::int32_t>(28, 0, id.ranks - 1, "the rank");
  s.phase = static_cast<FlightPhase>(
      in.within<std::uint32_t>(36, 0, static_cast<std::uint32_t>(FlightPhase::kFinish), "the phase"));
  id.attempt = in.within<std::int64_t>(40, 0, INT64_MAX, "the attempt");
  id.job = in.at<std::uint64_t>(48);
  id.pid = in.within<std::int64_t>(56, 0, INT32_MAX, "the pid");
  id.pid_start = in.at<std::uint64_t>(64);
  id.pid_namespace = in.at<std::uint64_t>(72);
  id.start_wall_ns = in.within<std::int64_t>(80, 0, INT64_MAX, "the start");
  id.host = in.text(88, 64);
  id.boot = in.text(152, 64);
  id.program_digest = in.text(216, 72);
  s.beat = in.at<std::uint64_t>(288);
  s.beat_wall_ns = in.within<std::int64_t>(304, 0, INT64_MAX, "the time of the beat");
  s.idle_ns = in.within<std::int64_t>(312, 0, INT64_MAX, "the idle time");
  s.median_step_ns = in.within<std::int64_t>(320, 0, INT64_MAX, "the median step");
  s.step = in.within<std::int64_t>(328, 0, INT64_MAX, "the step");
  s.end = static_cast<FlightEnd>(
      in.within<std::uint32_t>(344, 0, static_cast<std::uint32_t>(FlightEnd::kAlarmed), "the end"));
  s.saw_dead = in.within<std::int32_t>(348, -1, id.ranks - 1, "the dead rank");
  const bool whole = bytes.size() > kHeadBytes;
  if (whole && bytes.size() != kHeadBytes + sizeof(Slot) * slots * streams)
    in.wrong(fmt::format("{} bytes with {} records a stream", bytes.size(), slots));
  for (std::size_t i = 0; i < streams; ++i) {
    FlightStream& stream = s.streams[i];
    const auto position = in.at<std::uint64_t>(352 + 16 * i);
    stream.written = in.at<std::uint64_t>(360 + 16 * i);
    stream.any = stream.written > 0;
    stream.step = static_cast<std::int64_t>(position >> kOpBits);
    stream.op = static_cast<int>(position >> 1 & ((1U << (kOpBits - 1)) - 1));
    stream.inside = stream.any && (position & 1) != 0;
    if (whole) read_ring(in, kHeadBytes + sizeof(Slot) * slots * i, slots, stream);
  }
  return s;
}

Result<FlightState> read_flight_head(const fs::path& file) {
  char head[kHeadBytes];
  try {
    if (File::open(file).read_some(head, sizeof head, 0) < sizeof head)
      return Failure{fmt::format("{}: is being created", file.string())};
  } catch (const Error& error) {
    return Failure{error.what()};
  }
  try {
    return parse_flight(std::string_view(head, sizeof head), file.string());
  } catch (const UsageError& error) {
    return Failure{error.what()};
  }
}

FlightState read_flight(const fs::path& file) {
  constexpr std::int64_t kLimit = kHeadBytes + sizeof(Slot) * kMostRecords * kFlightStreams;
  return parse_flight(read_file(file, kLimit), file.string());
}

fs::path flight_file(const fs::path& directory, int rank) {
  return directory / fmt::format("rank-{:05}.bin", rank);
}

namespace {

// For each rank that a file claims, a report opens a file and prints a line. A few files may be missing (ranks of lost
// hosts), but thousands beside one file are not plausible.
void require_plausible_ranks(const std::vector<FlightState>& all, const fs::path& directory) {
  const auto most = static_cast<std::int64_t>(all.size()) * kMostRanksAFile + kMostRanksMissing;
  for (const FlightState& s : all)
    if (s.identity.ranks > most)
      throw UsageError(
          "{}: speaks of {} ranks, but {} of their files are in this folder: it is damaged, or the others were not "
          "copied; restore the whole folder",
          flight_file(directory, s.identity.rank).string(), s.identity.ranks, all.size());
}

}  // namespace

std::vector<FlightState> read_flights(const fs::path& directory) {
  if (!fs::is_directory(directory))
    throw UsageError("{}: no flight records here; is it the flight/ folder of a run?", directory.string());
  std::vector<FlightState> all;
  for (const DirectoryEntry& entry : list_directory(directory))
    if (entry.name.starts_with("rank-") && entry.name.ends_with(".bin"))
      all.push_back(read_flight(directory / entry.name));
  if (all.empty()) throw UsageError("{}: holds no rank-*.bin", directory.string());
  const auto newest = std::max_element(all.begin(), all.end(), [](const FlightState& a, const FlightState& b) {
    return a.identity.start_wall_ns < b.identity.start_wall_ns;
  });
  const std::uint64_t job = newest->identity.job;
  std::erase_if(all, [job](const FlightState& s) { return s.identity.job != job; });
  require_plausible_ranks(all, directory);
  std::sort(all.begin(), all.end(),
            [](const FlightState& a, const FlightState& b) { return a.identity.rank < b.identity.rank; });
  return all;
}

ProcessState process_of(const FlightIdentity& identity, const FlightIdentity& here) {
  if (identity.boot.empty() || identity.boot != here.boot || identity.pid_namespace != here.pid_namespace)
    return ProcessState::kUnknown;
  const auto stat = stat_of(identity.pid);
  if (!stat || stat->start != identity.pid_start || stat->state == 'Z' || stat->state == 'X')
    return ProcessState::kDead;
  return stat->state == 'T' || stat->state == 't' ? ProcessState::kStopped : ProcessState::kAlive;
}

}  // namespace molen::store
