#include "train/observe/flight_recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/console.h"
#include "base/error.h"
#include "launch/throw_on_all_ranks.h"
#include "program/text/excerpt.h"
#include "program/text/text.h"
#include "store/watch.h"

namespace molen::train {
// The streams of a flight record are those of a program, in its order (store/flight.h knows no programs).
static_assert(store::kFlightStreams == program::kNumStreams);
static_assert(store::kFirstCommStream == static_cast<int>(program::Stream::kDpComm));
static_assert(store::kLastCommStream == static_cast<int>(program::Stream::kPpComm));

// Not in an anonymous namespace, because FlightRecorder::Open, which is in none, has members of this type.
struct ListedProgram {
  program::Program program;
  std::vector<program::Expanded> ops;
};

namespace {

// Removes what an earlier attempt left: marks of its alarms, and records of ranks that this attempt does not have.
void remove_stale(const fs::path& directory, int ranks) {
  if (!path_exists(directory)) return;
  for (const auto& [name, is_directory] : list_directory(directory)) {
    bool stale = name.starts_with("alarm-");
    if (name.starts_with("rank-") && name.ends_with(".bin"))
      stale = std::strtol(name.c_str() + 5, nullptr, 10) >= ranks;
    if (stale && !is_directory) remove_file(directory / name);
  }
}

// Ends the job. Other threads may hang in a collective meanwhile, so nothing is unwound.
[[noreturn]] void end_job(const store::Alarm& alarm, comm::Communicator& world) {
  if (alarm.writer) {
    say(fmt::format("{}\n  report: {}", alarm.summary, alarm.file.string()));
  } else {
    // The rank that wrote the report prints it and ends all ranks.
    std::this_thread::sleep_for(std::chrono::seconds(3));
  }
  // Aborting goes through the communication library, which may itself hang.
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    ::_exit(1);
  }).detach();
  if (world.name() != "threads") world.abort(alarm.summary);  // threads end with their process
  ::_exit(1);
}

// Returns the programs of a pipeline's other stages, by their digests.
std::map<std::string, std::unique_ptr<ListedProgram>> other_stages(const Job& job) {
  std::map<std::string, std::unique_ptr<ListedProgram>> programs;
  for (int stage = 0; stage < job.setting.stages(); ++stage) {
    if (stage == job.setting.pipeline.stage) continue;
    auto listed = std::make_unique<ListedProgram>();
    listed->program = job.program_of(stage);
    listed->ops = program::expand(listed->program);
    programs[sha256_hex(program::print(listed->program))] = std::move(listed);
  }
  return programs;
}

// Returns how many streams, counted from the first, cover all of a program's ops; at least two, compute and
// communication.
int streams_of(const program::Program& p) {
  int streams = 2;
  for (const auto& body : p.bodies)
    for (const auto& step : body.steps) streams = std::max(streams, 1 + static_cast<int>(step.stream));
  return streams;
}

}  // namespace

struct FlightRecorder::Open {
  Open(const fs::path& file, store::FlightIdentity who, int streams)
      : identity(std::move(who)), writer(file, identity, streams) {}

  store::FlightIdentity identity;
  store::FlightWriter writer;
  std::vector<program::Expanded> ops;
  std::vector<std::int64_t> bytes;  // payload per op
  std::int64_t step = 0;
  std::vector<double> last_steps;
  int exceptions = std::uncaught_exceptions();
  // Makes the programs of a pipeline's other stages when a report first names one of their ops.
  std::function<std::map<std::string, std::unique_ptr<ListedProgram>>()> other_stages;
  std::optional<std::map<std::string, std::unique_ptr<ListedProgram>>> others;
  std::optional<store::Watch> watch;  // last member: it uses the others

  // Catches every exception, because only the watch calls this, and it must write its report whatever happens here.
  store::OpText text_of_other(const std::string& digest, int op) {
    try {
      if (!others) others = other_stages();
    } catch (const std::exception&) {
      others.emplace();
    }
    const auto found = others->find(digest);
    if (found == others->end()) return {};
    const ListedProgram& listed = *found->second;
    return {program::op_title(listed.program, listed.ops, op), program::excerpt(listed.program, listed.ops, op)};
  }
};

FlightRecorder::FlightRecorder() = default;

FlightRecorder::~FlightRecorder() {
  if (!open_) return;
  open_->writer.leave(std::uncaught_exceptions() > open_->exceptions ? store::FlightEnd::kFailed
                                                                     : store::FlightEnd::kEnded);
}

std::string FlightRecorder::open(const Job& job, std::int64_t attempt, comm::Communicator& world) {
  const fs::path directory = run_directory(job.config) / "flight";
  store::FlightIdentity identity = store::identify_process({});
  // All ranks take rank 0's attempt and job id. Each rank has a key of its host.
  std::int64_t common[2] = {attempt, now_ns() ^ (identity.pid << 40)};
  world.broadcast(common, 2, DType::kI64, 0);
  const auto ranks = static_cast<std::size_t>(world.size());
  std::int64_t host = static_cast<std::int64_t>(std::hash<std::string>{}(identity.boot + identity.host));
  std::vector<std::uint64_t> hosts(ranks);
  const std::vector<std::int64_t> ones(ranks, 1);
  world.all_gather(&host, hosts.data(), ones, DType::kI64);
  identity.rank = world.rank();
  identity.ranks = world.size();
  identity.attempt = common[0];
  identity.job = static_cast<std::uint64_t>(common[1]);
  identity.program_digest = sha256_hex(program::print(job.program));
  std::string failure;
  std::unique_ptr<Open> made;
  try {
    if (world.rank() == 0) remove_stale(directory, world.size());
    made = std::make_unique<Open>(store::flight_file(directory, world.rank()), identity, streams_of(job.program));
  } catch (const std::exception& error) {
    failure = error.what();
  }
  std::int32_t failed = failure.empty() ? 0 : 1;
  world.all_reduce(&failed, 1, DType::kI32, comm::Reduce::kMax);  // after this all files exist
  if (failed) return failure.empty() ? "another rank cannot open its flight recorder" : failure;
  made->ops = program::expand(job.program);
  for (const auto& op : made->ops)
    made->bytes.push_back(program::is_communication(op.step->op) ? op.step->moved.value : 0);
  open_ = std::move(made);
  store::WatchOptions options;
  options.hang_timeout = job.config.train.hang_timeout;
  options.peers = store::peers_of(world.rank(), hosts);
  options.several_hosts = store::several_hosts(hosts);
  open_->other_stages = [&job] { return other_stages(job); };
  const auto texts = [&program = job.program, &open = *open_](const std::string& digest, int op) -> store::OpText {
    if (digest == open.identity.program_digest)
      return {program::op_title(program, open.ops, op), program::excerpt(program, open.ops, op)};
    return open.text_of_other(digest, op);
  };
  open_->watch.emplace(directory, open_->writer, open_->identity, std::move(options), texts,
                       [&world](const store::Alarm& alarm) { end_job(alarm, world); });
  return "";
}

void FlightRecorder::phase(store::FlightPhase phase, std::int64_t step) noexcept {
  if (!open_) return;
  open_->step = step;
  open_->writer.phase(phase, step);
}

void FlightRecorder::step_took(double seconds) {
  if (!open_) return;
  constexpr std::size_t kKept = 51;
  auto& last = open_->last_steps;
  last.push_back(seconds);
  if (last.size() > kKept) last.erase(last.begin());
  std::vector<double> sorted = last;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  open_->writer.median_step(std::max<std::int64_t>(1, static_cast<std::int64_t>(*middle * 1e9)));
}

void FlightRecorder::begin(program::Stream stream, std::size_t op, std::int64_t ns) noexcept {
  if (open_)
    open_->writer.record(static_cast<int>(stream), false, open_->step, static_cast<int>(op), open_->bytes[op], ns);
}

void FlightRecorder::end(program::Stream stream, std::size_t op, std::int64_t ns) noexcept {
  if (open_)
    open_->writer.record(static_cast<int>(stream), true, open_->step, static_cast<int>(op), open_->bytes[op], ns);
}

}  // namespace molen::train
