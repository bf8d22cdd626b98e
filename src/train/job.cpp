// What is decided before the loop: resolution, resume, the program.
#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "program/build.h"
#include "program/text.h"
#include "program/verify.h"
#include "train/precision.h"
#include "train/together.h"
#include "train/trainer.h"

namespace molen::train {
namespace {

// What rank 0 finds, on every rank; its error is every rank's error.
template <class F>
std::string on_rank_zero(comm::Communicator& world, F&& find) {
  std::string text;
  together(world, [&] {
    if (world.rank() == 0) text = find();
  });
  return broadcast_text(text, world);
}

std::optional<fs::path> find_checkpoint(const config::Config& c, const std::string& resume) {
  if (resume == "never") return std::nullopt;
  const fs::path directory = checkpoint_directory(c);
  if (resume == "auto") return fs::exists(directory) ? checkpoint::latest(directory) : std::nullopt;
  const bool digits = !resume.empty() && resume.size() < 19 &&
                      std::all_of(resume.begin(), resume.end(), [](char ch) { return ch >= '0' && ch <= '9'; });
  if (!digits) throw UsageError("--resume {}: expected auto, never or a step", resume);
  for (const auto& listed : checkpoint::list(directory))
    if (listed.step == std::stoll(resume)) return listed.path;
  throw UsageError("--resume {}: {} holds no checkpoint of this step", resume, directory.string());
}

// Measured choices of the earlier run stand where this one leaves them open.
void keep_measured(config::Config& c, const config::Config& before) {
  const config::Origin origin{config::Origin::Kind::kOther, "as in the checkpoint"};
  if (c.precision.compute == "auto" && before.precision.compute != "auto")
    config::assign(c, "precision.compute", before.precision.compute, origin);
}

void refuse_changes(const config::Config& c, const config::Config& before, const std::vector<std::string>& allowed,
                    const std::string& path) {
  for (const auto& key : allowed) config::field(key);  // an unknown key is an error of its own
  std::string text;
  for (const auto& d : config::diff(before, c)) {
    if (d.effect != config::Effect::kNumbers || std::find(allowed.begin(), allowed.end(), d.key) != allowed.end())
      continue;
    text += fmt::format("\n  {}: {} in the checkpoint, {} now ({})", d.key, d.before, d.after, c.where(d.key));
  }
  if (!text.empty())
    throw UsageError(
        "{}: this run would not continue the same training:{}\nkeep the old values, start anew with --resume never, or "
        "name each key with --allow-change",
        path, text);
}

Bytes available_memory(int local_ranks) {
  const std::string info = read_file("/proc/meminfo");
  const auto at = info.find("MemAvailable:");
  if (at == std::string::npos) throw Error("/proc/meminfo: no MemAvailable");
  return Bytes(std::stoll(info.substr(at + 13)) * 1024 / std::max(1, local_ranks));
}

program::Program make_program(const Job& job) {
  if (!job.options.program_file) return program::build(job.arch, job.setting);
  const std::string& file = *job.options.program_file;
  program::Program p = program::parse(read_file(file), file);
  if (!(p.arch == job.arch)) throw UsageError("{}: the program's architecture is not the configuration's", file);
  if (!(p.setting == job.setting))
    throw UsageError("{}: the program was built for another layout, batch or precision than the configuration's", file);
  return p;
}

}  // namespace

fs::path run_directory(const config::Config& c) {
  return fs::path(c.run.dir) / c.run.name.value_or("run");
}

fs::path checkpoint_directory(const config::Config& c) {
  return c.checkpoint.dir ? fs::path(*c.checkpoint.dir) : run_directory(c) / "checkpoints";
}

Job prepare_job(config::Config config, const plan::Machine& machine, const std::string& communicator,
                const TrainOptions& options, comm::Communicator& world) {
  Job job;
  job.machine = machine;
  job.communicator = communicator;
  job.options = options;
  const std::string resume = on_rank_zero(world, [&] {
    const auto found = find_checkpoint(config, options.resume);
    return found ? found->string() : std::string();
  });
  if (!resume.empty()) job.resume_from = resume;

  job.arch = plan::resolve_architecture(config);
  plan::Machine measuring = machine;
  if (world.rank() == 0) measuring.measure_precision = measure_precision;
  std::optional<config::Config> before;
  if (job.resume_from) {
    const checkpoint::Checkpoint stored(*job.resume_from);
    before = config::from_json(json_member(stored.state(), "config", resume), resume);
    keep_measured(config, *before);
  }
  job.setting = plan::resolve_setting(config, job.arch, measuring);
  const std::string compute = broadcast_text(config.precision.compute, world);
  if (compute != config.precision.compute) {
    config::assign(config, "precision.compute", compute, {config::Origin::Kind::kOther, "measured on rank 0"});
    job.setting = plan::resolve_setting(config, job.arch, machine);
  }
  if (before) refuse_changes(config, *before, options.allow_change, resume);
  job.config = std::move(config);
  job.program = make_program(job);
  program::require_sound(job.program, options.program_file.value_or("the built program"),
                         available_memory(machine.local_ranks));
  if (!options.dry_run) {
    std::optional<fs::path> environment;  // of the attempt that this one continues
    if (job.resume_from) environment = run_directory(job.config) / "environment.json";
    job.peak = find_device_peak(job.setting, machine, environment, world);
  }
  return job;
}

}  // namespace molen::train
