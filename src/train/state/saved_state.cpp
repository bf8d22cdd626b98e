#include "train/state/saved_state.h"

#include "base/error.h"
#include "launch/checkpointing.h"
#include "launch/init.h"
#include "launch/throw_on_all_ranks.h"
#include "train/signals.h"

namespace molen::train {

bool weights_only(const checkpoint::Checkpoint& from) {
  return !from.state().contains("step_done");
}

SavedState::SavedState(Job& job, exec::Executor& executor, comm::Communicator& world, Ownership& ownership)
    : job_(job), executor_(executor), world_(world), ownership_(ownership) {}

bool SavedState::rank_zero_says(const std::function<bool()>& question) {
  std::int32_t yes = 0;
  launch::throw_on_all_ranks(world_, [&] { yes = world_.rank() == 0 && question() ? 1 : 0; });
  world_.broadcast(&yes, 1, DType::kI32, 0);
  return yes == 1;
}

bool SavedState::open() {
  if (!rank_zero_says([&] { return ownership_.take(job_) && ownership_.settle(job_); }) || !load()) return false;
  token_ = ownership_.token();
  world_.broadcast(&token_, 1, DType::kI64, 0);
  return true;
}

bool SavedState::load() {
  if (!job_.from) {
    launch::initialize_parameters(executor_, static_cast<std::uint64_t>(job_.config.train.seed), job_.setting.threads);
    return true;
  }
  try {
    launch::load_state(*job_.from, executor_, world_, weights_only(*job_.from));
    return true;
  } catch (const DamagedError& error) {  // the same on every rank
    if (job_.options.resume != "auto") throw;
    return rank_zero_says([&] {
      ownership_.set_aside(job_.from->path(), error.what());
      return false;
    });
  }
}

void SavedState::enter() {
  ownership_.enter(job_);
  if (job_.config.data.tokenizer) tokenizer_ = read_file(*job_.config.data.tokenizer);
}

fs::path SavedState::save(std::int64_t step, Json state) {
  checkpoint::SaveOptions o;
  o.directory = checkpoint_directory(job_.config);
  o.step = step;
  o.rank = world_.rank();
  o.ranks = world_.size();
  if (world_.size() > 1) o.agree = launch::agree_over(world_);
  o.keep = static_cast<int>(job_.config.checkpoint.keep);
  o.token = token_;
  if (world_.rank() == 0) {
    o.state = std::move(state);
    o.still_owner = [this] { ownership_.require(); };
    if (job_.config.data.tokenizer) o.attachments["tokenizer.json"] = tokenizer_;
    o.attachments["config.toml"] = config::to_toml(job_.config);
  }
  const SavingGuard saving;
  return checkpoint::save(launch::spans_of(executor_), o);
}

}  // namespace molen::train
