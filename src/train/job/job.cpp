// The decisions before the loop: resolution, resume, the program.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "launch/require_memory.h"
#include "launch/throw_on_all_ranks.h"
#include "measure/rates.h"
#include "plan/complete.h"
#include "plan/nearest.h"
#include "program/build/build.h"
#include "program/provenance/provenance.h"
#include "program/text/text.h"
#include "program/values/attributes.h"
#include "sim/described_power.h"
#include "store/history.h"
#include "store/run_directory.h"
#include "train/policy/energy_budget.h"
#include "train/policy/energy_policy.h"
#include "train/trainer.h"

namespace molen::train {
namespace {

// Returns on every rank the text that rank 0 finds. When rank 0 fails, every rank throws its error.
template <class F>
std::string on_rank_zero(comm::Communicator& world, F&& find) {
  std::string text;
  launch::throw_on_all_ranks(world, [&] {
    if (world.rank() == 0) text = find();
  });
  return launch::broadcast_text(text, world);
}

std::vector<std::string> names_of(const std::vector<fs::path>& paths) {
  std::vector<std::string> names;
  for (const fs::path& path : paths) names.push_back(path.filename().string());
  return names;
}

// Returns a new name: "llama-60m-20260102T030405Z". A directory that exists belongs to another run.
std::string new_run_name(const config::Config& c, const std::string& model) {
  std::string name, time = utc_timestamp(wall_time());
  for (const char ch : model)  // a changed preset's name ends in '*'
    if (std::isalnum(static_cast<unsigned char>(ch)) || ch == '-' || ch == '.' || ch == '_') name += ch;
  std::erase_if(time, [](char ch) { return ch == '-' || ch == ':'; });
  name += "-" + time;
  std::string free = name;
  for (int i = 2; fs::exists(fs::path(c.run.dir) / free); ++i) free = fmt::format("{}-{}", name, i);
  return free;
}

// Chooses the name when run.name is not set: the name of the run that this job began before Slurm requeued it, or a new
// one.
std::string find_run_name(const config::Config& c, const std::string& model, bool& is_new) {
  const auto begun = store::requeued_runs(c.run.dir);
  if (begun.size() > 1)
    throw UsageError(
        "{}: this job was requeued, and began several runs that have no run.name ({}): set run.name to say which one "
        "goes on",
        c.run.dir, fmt::join(names_of(begun), ", "));
  is_new = begun.empty();
  return is_new ? new_run_name(c, model) : begun[0].filename().string();
}

// Takes over what the earlier run measured or derived for keys that this configuration leaves open, because such keys
// (the number of threads, say) decide bits. When the number of ranks differs, the cores are divided anew. Returns a
// note for the user.
std::string keep_measured(config::Config& c, const config::Config& before, bool same_ranks,
                          const plan::Machine& machine) {
  const config::Origin origin{config::Origin::Kind::kOther, "as in the checkpoint"};
  if (c.precision.compute == "auto" && before.precision.compute != "auto")
    config::assign(c, "precision.compute", before.precision.compute, origin);
  if (const auto of = c.origins.find("schedule.warmup");
      before.schedule.warmup && of != c.origins.end() && of->second.kind == config::Origin::Kind::kOther)
    config::assign(c, "schedule.warmup", config::field("schedule.warmup").write(before), origin);
  if (c.math.threads != 0 || before.math.threads == 0 || !same_ranks) return "";
  config::assign(c, "math.threads", before.math.threads, origin);
  const int here = plan::auto_threads(machine.local_ranks);
  if (here >= before.math.threads) return "";
  return fmt::format("math.threads stays {} as in the checkpoint, with cores for {} here; set it to change it",
                     before.math.threads, here);
}

// Takes over the end that a budget has given the schedule, unless --allow-change train.until asks for another one.
// Returns a note for the user.
std::string keep_shrunk(config::Config& c, const config::Config& before, const Json& state,
                        const std::vector<std::string>& allowed, const std::string& origin) {
  const auto shrunk = shrunk_of(state, origin);
  if (!shrunk || config::print(c.train.until) != shrunk->from || before.train.until != config::steps(shrunk->to) ||
      std::find(allowed.begin(), allowed.end(), "train.until") != allowed.end())
    return "";
  config::assign(
      c, "train.until", fmt::format("{} steps", shrunk->to),
      {config::Origin::Kind::kOther, fmt::format("energy.on_budget = \"shrink\" after step {}", shrunk->after_step)});
  return fmt::format(
      "train.until is {} steps instead of {}, as energy.on_budget = \"shrink\" has set it after step {}; "
      "--allow-change "
      "train.until goes back to {}",
      shrunk->to, shrunk->from, shrunk->after_step, shrunk->from);
}

// Returns the keys that rank 0 measures or chooses for the other ranks, and those that a variable may set: a launcher
// need not pass variables on to other hosts, and ranks with different policies would wait for each other for ever.
std::vector<std::string> decided_keys() {
  std::vector<std::string> keys{"precision.compute", "parallel.recompute"};
  for (const config::EnvironmentKey& known : config::environment_keys()) keys.emplace_back(known.key);
  return keys;
}

std::string decided_text(const config::Config& c) {
  Json decided = Json::object();
  for (const std::string& key : decided_keys()) {
    const auto origin = c.origins.find(key);
    const std::string from = origin == c.origins.end() ? "default" : origin->second.describe();
    decided[key] = {{"value", config::field(key).write(c)}, {"origin", from}};
  }
  return decided.dump();
}

void take_decided(config::Config& c, const std::string& text) {
  const Json decided = Json::parse(text);
  for (const std::string& key : decided_keys()) {
    const Json& value = decided.at(key).at("value");
    if (value == config::field(key).write(c)) continue;
    const auto from = fmt::format("{} on rank 0", decided.at(key).at("origin").get<std::string>());
    config::assign(c, key, value.is_null() ? Json("none") : value, {config::Origin::Kind::kOther, from});
  }
}

void refuse_changes(const config::Config& c, const config::Config& before, const std::vector<std::string>& allowed,
                    const std::string& path) {
  for (const auto& key : allowed) config::field(key);  // throws for an unknown key
  std::string text, flags;
  bool horizon = false;
  for (const auto& d : config::diff(before, c)) {
    if (d.effect != config::Effect::kNumbers || std::find(allowed.begin(), allowed.end(), d.key) != allowed.end())
      continue;
    text += fmt::format("\n  {}: {} in the checkpoint, {} now ({})", d.key, d.before, d.after, c.where(d.key));
    flags += " --allow-change " + d.key;
    horizon = horizon || d.key == "train.until";
  }
  if (text.empty()) return;
  if (horizon)
    text +=
        "\ntrain.until is the horizon of the learning rate too: from the next step on the rate follows the course of "
        "the new length, with the warm-up that was";
  throw UsageError(
      "{}: this run would not continue the same training:{}\nto go on all the same, add to the command:{}\notherwise "
      "keep the old values, or start anew with --resume never",
      path, text, flags);
}

// The file that has the program of a stage: the one that is given or, in a folder, such as that of a run, the stage's.
fs::path program_file(const Job& job, int stage) {
  fs::path given = *job.options.program_file;
  if (fs::is_directory(given)) return given / store::program_name(stage);
  if (job.setting.pipelined())
    throw UsageError(
        "--program {}: a file has the program of one stage, and the pipeline has {}; give a folder with {}",
        given.string(), job.setting.stages(),
        job.setting.stages() == 2
            ? "program.txt and program-stage-1.txt"
            : fmt::format("program.txt and program-stage-1.txt to program-stage-{}.txt", job.setting.stages() - 1));
  return given;
}

// A program text does not say on which device it runs.
void require_kernels_on_device(const Job& job, const program::Program& p, const std::string& file) {
  if (!job.machine.cuda) return;
  for (const program::Body& body : p.bodies)
    for (const program::Step& step : body.steps)
      if (const auto why = program::kernel_refused(p, step, true))
        throw UsageError("{}: {}: {}", file, program::kind_of(step.op), *why);
}

program::Program read_program(const Job& job, const program::Setting& setting) {
  const std::string file = program_file(job, setting.pipeline.stage).string();
  program::Program p = program::parse(read_file(file, program::kMaxTextBytes), file);
  if (!(p.arch == job.arch)) throw UsageError("{}: the program's architecture is not the configuration's", file);
  program::Setting same = p.setting;
  same.pipeline.stage = setting.pipeline.stage;
  if (!(same == setting))
    throw UsageError(
        "{}: the program was built for another layout, batch, precision or kernels than the configuration's", file);
  if (!(p.setting == setting))
    throw UsageError("{}: the program is of stage {} of the pipeline, not of stage {}", file, p.setting.pipeline.stage,
                     setting.pipeline.stage);
  require_kernels_on_device(job, p, file);
  return p;
}

plan::MemoryNeed need_of(const Job& job) {
  const auto training = program::plan_memory(job.program);
  if (job.config.data.validation.empty()) return {training.peak, training.host};
  return plan::with_evaluation(training, program::plan_memory(job.evaluation()));
}

// Checks that the messages of the pipeline's stages match, because no rank can see that from its own program.
void require_stages(const Job& job, comm::Communicator& world) {
  launch::throw_on_all_ranks(world, [&] {
    if (world.rank() != 0) return;
    const auto stages = job.programs();
    if (const auto findings = program::check_world(stages); !findings.empty())
      throw UsageError("the pipeline's programs are refused: {}", findings.front().text);
  });
}

}  // namespace

program::Program Job::program_of(int stage) const {
  program::Setting s = setting;
  s.pipeline.stage = stage;
  if (options.program_file) return read_program(*this, s);
  return program::build(arch, s, schedule ? &*schedule : nullptr);
}

std::vector<program::Program> Job::programs() const {
  if (!options.program_file) return program::build_stages(arch, setting, schedule ? &*schedule : nullptr);
  std::vector<program::Program> stages;
  for (int stage = 0; stage < setting.stages(); ++stage) stages.push_back(program_of(stage));
  return stages;
}

program::Program Job::evaluation() const {
  return program::build(arch, plan::evaluation_setting(setting));
}

fs::path run_directory(const config::Config& c) {
  return fs::path(c.run.dir) / c.run.name.value_or("run");
}

fs::path checkpoint_directory(const config::Config& c) {
  return c.checkpoint.dir ? fs::path(*c.checkpoint.dir) : run_directory(c) / "checkpoints";
}

Job prepare_job(config::Config config, const plan::Machine& machine, const std::string& communicator,
                const TrainOptions& options, comm::Communicator& world, const std::optional<std::string>& held_name) {
  Job job;
  job.machine = machine;
  job.communicator = communicator;
  job.options = options;
  on_rank_zero(world, [&] {  // first, so that a wrong path is reported as such whatever the checkpoint contains
    config::Problems problems;
    plan::require_training(config, problems);
    problems.raise();
    require_intensity(config, options.cluster);
    return std::string();
  });
  launch::throw_on_all_ranks(world, [&] {
    job.power_figures = sim::power_figures(config.energy.model, options.cluster, config.where("energy.model"));
  });
  job.arch = plan::resolve_architecture(config);
  job.named = config.run.name.has_value();
  if (!job.named)
    config::assign(
        config, "run.name",
        on_rank_zero(world,
                     [&] { return held_name ? *held_name : find_run_name(config, job.arch.name, job.new_name); }),
        {config::Origin::Kind::kOther, "model and time"});
  const std::string resume = on_rank_zero(world, [&] {
    Found found = find_checkpoint(config, options.resume);
    job.from = std::move(found.checkpoint);
    job.damaged = std::move(found.damaged);
    return job.from ? job.from->path().string() : std::string();
  });
  if (!resume.empty()) job.resume_from = resume;
  launch::throw_on_all_ranks(world, [&] {
    if (job.resume_from && !job.from) job.from = checkpoint::Checkpoint::open(*job.resume_from);
  });

  plan::Machine measuring = machine;
  measuring.measure_precision = [&](int threads) {
    return measure::precision_rates(threads, machine.cuda ? machine.device : -1);
  };
  std::optional<config::Config> before;
  if (job.from) {
    const Json& state = job.from->state();
    before = config::from_json(json_member(state, "config", resume), resume);
    const Json ranks = state.value("ranks", Json(world.size()));
    const bool same_ranks = ranks == world.size();
    job.note = keep_measured(config, *before, same_ranks, machine);
    const std::string shorter = keep_shrunk(config, *before, state, options.allow_change, resume);
    if (!shorter.empty()) job.note += (job.note.empty() ? "" : "; ") + shorter;
  }
  // Rank 0 decides the open keys for all, because what is measured, or fits into a budget, could differ from host to
  // host.
  const std::string decided = on_rank_zero(world, [&] {
    job.setting = plan::resolve_setting(config, job.arch, measuring);
    return decided_text(config);
  });
  if (world.rank() != 0) {
    take_decided(config, decided);
    job.setting = plan::resolve_setting(config, job.arch, machine);
  }
  job.setting = program::at_rank(job.setting, world.rank());
  if (before) refuse_changes(config, *before, options.allow_change, resume);
  job.config = std::move(config);
  if (job.setting.pipelined()) job.schedule = plan::read_schedule(job.config);
  const int stage = job.setting.pipeline.stage;
  job.program = job.program_of(stage);
  program::require_sound(job.program, options.program_file ? program_file(job, stage).string() : "the built program");
  launch::require_memory({need_of(job), "the step program", 1,
                          [&](const plan::MemoryRoom& room) {
                            return plan::nearest_text(job.arch, job.setting, machine.local_ranks, room);
                          }},
                         machine, world);
  if (job.setting.pipelined()) require_stages(job, world);
  require_clocks_agree(world, job.config, program::clocks_set_by(job.program));
  if (!options.dry_run) {
    std::optional<fs::path> environment;  // environment.json of the attempt that this one continues
    if (job.resume_from) environment = run_directory(job.config) / "environment.json";
    job.peak = measure::find_device_peak(job.setting, machine, environment, world);
  }
  return job;
}

}  // namespace molen::train
