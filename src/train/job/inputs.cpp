#include "train/job/inputs.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json_fields.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "data/tokenizer/tokenizer.h"
#include "launch/together.h"
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

std::vector<data::DataEntry> entries(const Job& job) {
  if (job.config.data.train.empty())
    throw UsageError("data.train: at least one entry is needed, e.g. train = [{ path = \"data/train\" }]");
  std::vector<data::DataEntry> result;
  for (const auto& e : job.config.data.train) result.push_back({e.path, e.weight, e.languages});
  return result;
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

void print_data(const Job& job, const Inputs& inputs, const Course& course) {
  const std::int64_t sequences = inputs.train.sequences();
  fmt::print("data: {} sequences of {} tokens ({} tokens in the shards) in one epoch\n", sequences,
             job.setting.sequence, inputs.train.tokens());
  const auto said = [&](const char* key, std::int64_t steps) {
    const std::int64_t read = steps * job.setting.global_batch;
    fmt::print("{}: {} of {}, {} tokens, {:.4g} epochs\n", key, counted(steps, "step"),
               counted(job.setting.global_batch, "sequence"), read * job.setting.sequence,
               static_cast<double>(read) / static_cast<double>(sequences));
  };
  said("train.until", course.total_steps);
  if (course.stop_step < course.total_steps) said("train.stop_after", course.stop_step);
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
    : train(entries(job), static_cast<std::uint64_t>(job.config.data.seed), options) {
  for (const auto& e : job.config.data.validation)
    validation.push_back(std::make_unique<data::ValidationSet>(e.path, options, e.languages));
}

std::vector<std::string> Inputs::notes() const {
  std::vector<std::string> all{train.unhashed_note()};
  for (const auto& set : validation) all.push_back(set->unhashed_note());
  std::erase(all, "");
  return all;
}

Course course_of(const Job& job, const data::Dataset& data) {
  const auto& c = job.config;
  const auto sequences = static_cast<double>(data.sequences());
  const auto steps_of = [&](const config::Horizon& h, const char* key) { return plan::steps_of(c, h, key, sequences); };
  Course course;
  course.total_steps = steps_of(c.train.until, "train.until");
  if (course.total_steps < 0)
    throw UsageError("{}: the schedule needs a length in steps, tokens or epochs; train.stop_after takes a time",
                     c.where("train.until"));
  course.stop_step = course.total_steps;
  if (c.train.stop_after) {
    const std::int64_t steps = steps_of(*c.train.stop_after, "train.stop_after");
    if (steps >= 0)
      course.stop_step = std::min(steps, course.total_steps);
    else
      course.stop_seconds = c.train.stop_after->value;
  }
  course.schedule = resolve_schedule(c, course.total_steps, sequences);
  course.optimizer = resolve_optimizer(c);
  const auto period = [&](const config::Horizon& h, const char* key) {
    Period p;
    const std::int64_t steps = steps_of(h, key);
    if (steps >= 0)
      p.steps = std::max<std::int64_t>(1, steps);
    else
      p.seconds = h.value;
    return p;
  };
  course.save_every = period(c.checkpoint.every, "checkpoint.every");
  course.validate_every = period(c.train.validate_every, "train.validate_every");
  if (course.validate_every.steps == 0)
    throw UsageError("{}: give steps, tokens or epochs", c.where("train.validate_every"));
  return course;
}

std::unique_ptr<Inputs> open_inputs(const Job& job, comm::Communicator& world) {
  std::unique_ptr<Inputs> inputs;
  // Rank 0 reads the shards, once on this machine; the other ranks rely on its result.
  launch::together(world, [&] {
    if (world.rank() == 0) inputs = std::make_unique<Inputs>(job, true);
  });
  launch::together(world, [&] {
    if (world.rank() != 0) inputs = std::make_unique<Inputs>(job, false);
    if (job.from) require_same_data(job, inputs->train);
  });
  return inputs;
}

void dry_run(const Job& job, comm::Communicator& world) {
  const auto inputs = open_inputs(job, world);
  Course course;
  launch::together(world, [&] { course = course_of(job, inputs->train); });
  if (world.rank() != 0) return;
  print_program(job);
  print_data(job, *inputs, course);
}

}  // namespace molen::train
