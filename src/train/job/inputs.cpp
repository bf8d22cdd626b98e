#include "train/job/inputs.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json_fields.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "data/tokenizer/tokenizer.h"
#include "launch/throw_on_all_ranks.h"
#include "plan/documents.h"
#include "program/memory/memory.h"
#include "train/job/optimizer_config.h"

namespace molen::train {
namespace {

data::OpenOptions open_options(const Job& job, bool verify) {
  data::OpenOptions o;
  o.verify = verify;
  o.remember = true;
  o.sequence_length = job.setting.sequence;
  o.vocabulary = job.arch.vocabulary;
  if (job.config.data.tokenizer)
    o.tokenizer_fingerprint = data::Tokenizer::load(*job.config.data.tokenizer).fingerprint();
  return o;
}

void require_same_data(const Job& job, const data::Dataset& data) {
  const checkpoint::Checkpoint& from = *job.from;
  if (!from.state().contains("step_done")) return;  // an imported checkpoint has only weights
  const std::string path = from.path().string();
  const std::string digest = JsonFields(from.state(), path + "/state.json").text("data_digest");
  const auto& allowed = job.options.allow_change;
  if (digest == data.digest() || std::find(allowed.begin(), allowed.end(), "data.train") != allowed.end()) return;
  throw UsageError(
      "{}: the training data is not what this run was trained on so far (digest {} then, {} now); --allow-change "
      "data.train continues anyway",
      path, digest, data.digest());
}

void print_program(const Job& job) {
  const auto memory = program::plan_memory(job.program);
  const auto s = program::summarize(job.program, memory);
  fmt::print("{}: {} parameters, {} rank{} ({}), {}, {} micro-batch{} of {} x {} tokens a rank and step, {}\n",
             job.arch.name, arch::num_parameters(job.arch), job.machine.ranks, job.machine.ranks == 1 ? "" : "s",
             job.communicator, program::sharding_text(job.setting), job.setting.micro_batches(),
             job.setting.micro_batches() == 1 ? "" : "es", job.setting.micro_batch, job.setting.sequence,
             name_of(job.setting.compute));
  fmt::print(
      "the program{} is sound: {} ops in {} bodies; memory a rank: parameters {}, gradients {}, optimizer {}, for a "
      "time "
      "{} (activations, gathered parameters, gradients on their way, scratch), peak {}{}\n",
      job.setting.pipelined() ? " of stage 0" : "", job.program.num_ops(), job.program.bodies.size(),
      human(s.parameters), human(s.gradients), human(s.optimizer), human(s.transient), human(s.peak),
      s.host.value > 0 ? fmt::format("; on the host {}", human(s.host)) : "");
}

void print_data(const Job& job, const Inputs& inputs, const RunLength& run_length) {
  const std::int64_t sequences = inputs.train.sequences();
  fmt::print("data: {} sequences of {} tokens ({} tokens in the shards) in one epoch\n", sequences,
             job.setting.sequence, inputs.train.tokens());
  const auto said = [&](const char* key, std::int64_t steps) {
    const std::int64_t read = steps * job.setting.global_batch;
    fmt::print("{}: {} of {}, {} tokens, {:.4g} epochs\n", key, counted(steps, "step"),
               counted(job.setting.global_batch, "sequence"), read * job.setting.sequence,
               static_cast<double>(read) / static_cast<double>(sequences));
  };
  said("train.until", run_length.total_steps);
  if (run_length.stop_step < run_length.total_steps) said("train.stop_after", run_length.stop_step);
  for (std::size_t i = 0; i < inputs.validation.size(); ++i)
    for (const auto& language : inputs.validation[i]->languages())
      fmt::print("validation: {} tokens of {} in {}\n", language.tokens, language.name,
                 job.config.data.validation[i].path);
  for (const auto& note : inputs.notes()) fmt::print("note: {}\n", note);
  for (const Damaged& d : job.damaged) fmt::print("damaged, and to be set aside: {}\n", d.why);
  if (job.resume_from) fmt::print("continues from {}\n", *job.resume_from);
}

}  // namespace

Inputs::Inputs(const Job& job, bool verify) : Inputs(job, open_options(job, verify)) {}

Inputs::Inputs(const Job& job, const data::OpenOptions& options)
    : train(plan::training_data(job.config), static_cast<std::uint64_t>(job.config.data.seed), options) {
  for (const auto& e : job.config.data.validation)
    validation.push_back(std::make_unique<data::ValidationSet>(e.path, options, e.languages));
}

std::vector<std::string> Inputs::notes() const {
  std::vector<std::string> all{train.unhashed_note()};
  for (const auto& set : validation) all.push_back(set->unhashed_note());
  std::erase(all, "");
  return all;
}

RunLength run_length_of(const Job& job, const data::Dataset& data) {
  const auto& c = job.config;
  const auto sequences = static_cast<double>(data.sequences());
  const auto steps_of = [&](const config::Horizon& h, const char* key) { return plan::steps_of(c, h, key, sequences); };
  RunLength run_length;
  run_length.total_steps = steps_of(c.train.until, "train.until");
  if (run_length.total_steps < 0)
    throw UsageError("{}: the schedule needs a length in steps, tokens or epochs; train.stop_after takes a time",
                     c.where("train.until"));
  run_length.stop_step = run_length.total_steps;
  if (c.train.stop_after) {
    const std::int64_t steps = steps_of(*c.train.stop_after, "train.stop_after");
    if (steps >= 0)
      run_length.stop_step = std::min(steps, run_length.total_steps);
    else
      run_length.stop_seconds = c.train.stop_after->value;
  }
  run_length.schedule = resolve_schedule(c, run_length.total_steps, sequences);
  run_length.optimizer = resolve_optimizer(c);
  const auto period = [&](const config::Horizon& h, const char* key) {
    Period p;
    const std::int64_t steps = steps_of(h, key);
    if (steps >= 0)
      p.steps = std::max<std::int64_t>(1, steps);
    else
      p.seconds = h.value;
    return p;
  };
  run_length.save_every = period(c.checkpoint.every, "checkpoint.every");
  run_length.validate_every = period(c.train.validate_every, "train.validate_every");
  if (run_length.validate_every.steps == 0)
    throw UsageError("{}: give steps, tokens or epochs", c.where("train.validate_every"));
  if (c.train.noise_scale_every > 0 && job.setting.global_batch < 2)
    throw UsageError(
        "{}: the gradient of a part of the batch is compared with that of the whole, and batch.global is 1",
        c.where("train.noise_scale_every"));
  return run_length;
}

std::unique_ptr<Inputs> open_inputs(const Job& job, comm::Communicator& world) {
  std::unique_ptr<Inputs> inputs;
  // Rank 0 reads the shards, once on this machine; the other ranks rely on its result.
  launch::throw_on_all_ranks(world, [&] {
    if (world.rank() == 0) inputs = std::make_unique<Inputs>(job, true);
  });
  launch::throw_on_all_ranks(world, [&] {
    if (world.rank() != 0) inputs = std::make_unique<Inputs>(job, false);
    if (job.from) require_same_data(job, inputs->train);
  });
  return inputs;
}

void dry_run(const Job& job, comm::Communicator& world) {
  const auto inputs = open_inputs(job, world);
  RunLength run_length;
  launch::throw_on_all_ranks(world, [&] { run_length = run_length_of(job, inputs->train); });
  if (world.rank() != 0) return;
  print_program(job);
  print_data(job, *inputs, run_length);
}

}  // namespace molen::train
