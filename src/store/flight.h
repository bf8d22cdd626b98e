// The flight recorder: one memory-mapped ring file per rank, runs/NAME/flight/rank-%05d.bin (docs/formats/flight.md).
// Writing a record takes a few stores into shared pages and no system call, so written records survive SIGKILL. The
// file's head carries the rank's heartbeat, which other ranks read (store/watch.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "store/mapped_file.h"

namespace molen::store {

// The streams: compute; communication over data-parallel, tensor, context and expert ranks and between stages; copies
// to the host and to the device; the host's cores. One thread writes each stream. A file has a ring for each stream up
// to the last one that its program uses.
inline constexpr int kFlightStreams = 9;
inline constexpr int kFirstCommStream = 1, kLastCommStream = 5;
// The names that the program's text uses.
inline constexpr std::array<std::string_view, kFlightStreams> kFlightStreamNames{
    "compute", "dp_comm", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "copy.out", "copy.in", "host"};

// The phase of the training loop. A rank counts as hung only in kTrain, because only there must ops advance.
enum class FlightPhase : std::uint32_t { kStart, kTrain, kValidate, kCheckpoint, kFinish };
// How the rank left, as it recorded itself. kAlarmed: it ended the job because of another rank.
enum class FlightEnd : std::uint32_t { kRunning, kEnded, kFailed, kAlarmed };
std::string_view name_of(FlightPhase phase);

struct FlightIdentity {
  int rank = 0, ranks = 1;
  std::int64_t attempt = 1;
  std::uint64_t job = 0;   // the same on all ranks of an attempt, different between attempts
  std::string host, boot;  // name; boot id of the kernel: ranks that share it share a host
  std::int64_t pid = 0;
  std::uint64_t pid_start = 0;      // in clock ticks after boot; differs when a pid is used again
  std::uint64_t pid_namespace = 0;  // pids are unique only within one namespace
  std::string program_digest;       // SHA-256 of the program's text, hexadecimal
  std::int64_t start_wall_ns = 0;
};
// Fills in host, boot, pid and start of this process and the time now; leaves the other fields unchanged.
FlightIdentity identify_process(FlightIdentity identity);

// Writes one rank's file. One thread per stream may call `record`; any thread may call the other functions.
class FlightWriter {
 public:
  static constexpr int kRecords = 1024;  // per stream

  // Creates a new file; a process that still has an earlier attempt's file open keeps that file. Throws Error (disk
  // full, ...). `streams`: number of streams with a ring, 2 to kFlightStreams; other streams are not recorded.
  FlightWriter(const fs::path& file, const FlightIdentity& identity, int streams = 2);
  ~FlightWriter() = default;
  FlightWriter(const FlightWriter&) = delete;
  FlightWriter& operator=(const FlightWriter&) = delete;

  // `op`: index in the expanded program; `bytes`: payload of a collective; `ns`: steady clock.
  void record(int stream, bool end, std::int64_t step, int op, std::int64_t bytes, std::int64_t ns) noexcept;
  // Records the phase and its step. This counts as progress, as a record does.
  void phase(FlightPhase phase, std::int64_t step) noexcept;
  void median_step(std::int64_t ns) noexcept;
  // `idle_ns`: time since the last progress, on a clock that stops while the process is stopped.
  void beat(std::int64_t idle_ns, std::int64_t ns, std::int64_t wall_ns) noexcept;
  void saw_dead(int rank) noexcept;
  void leave(FlightEnd end) noexcept;
  // Returns a number that changes with every record and phase.
  std::uint64_t progress() const noexcept;
  FlightPhase phase() const noexcept;
  std::int64_t median_step() const noexcept;
  // Hands the head to the file system, for readers on other hosts. May block.
  void sync() noexcept;

 private:
  struct Head;
  MappedFile file_;
  Head* head_ = nullptr;
  std::array<std::uint64_t, kFlightStreams> sequence_{};
};

struct FlightRecord {
  std::uint64_t sequence = 0;  // from 1, without gaps among written records
  std::int64_t ns = 0, step = 0, bytes = 0;
  int op = 0;
  bool end = false;
};

struct FlightStream {
  bool any = false;       // false: no op has begun yet
  std::int64_t step = 0;  // of the last record
  int op = 0;
  bool inside = false;  // begun and not ended
  std::uint64_t written = 0;
  std::vector<FlightRecord> records;  // whole ones, oldest first
  int torn = 0;                       // slots that hold half a record
};

struct FlightState {
  FlightIdentity identity;
  std::uint64_t beat = 0;
  std::int64_t beat_wall_ns = 0, idle_ns = 0, median_step_ns = 0, step = 0;
  FlightPhase phase{};
  FlightEnd end{};
  int saw_dead = -1;  // a rank whose process this rank found dead; with kAlarmed: the rank to blame
  std::array<FlightStream, kFlightStreams> streams;
};

// Parses a whole file, or its head alone (then `records` stay empty). Throws UsageError naming `origin` for any other
// bytes. Text in the result is printable.
FlightState parse_flight(std::string_view bytes, std::string_view origin);
// Reads the head only; returns a failure when the file is absent or is being created.
Result<FlightState> read_flight_head(const fs::path& file);
FlightState read_flight(const fs::path& file);

fs::path flight_file(const fs::path& directory, int rank);
// Reads the files of the newest attempt in the directory, by rank, and ignores earlier attempts. Throws UsageError when
// there is none, and when the files claim more ranks than 64 times the number of files plus 1,024.
std::vector<FlightState> read_flights(const fs::path& directory);

// State of a rank's process as far as this machine knows it.
enum class ProcessState { kUnknown, kAlive, kStopped, kDead };
ProcessState process_of(const FlightIdentity& identity, const FlightIdentity& here);

}  // namespace molen::store
