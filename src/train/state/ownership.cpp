#include "train/state/ownership.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/console.h"
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/folder.h"
#include "checkpoint/naming.h"
#include "store/run_directory.h"
#include "train/state/resume.h"

namespace molen::train {

// Creates the directory of a generated name. The process that succeeds owns the name.
bool Ownership::claim(const Job& job) {
  if (!job.new_name) return true;
  make_directories(run_.parent_path());
  const int code = file_system().make_directory(run_, 0777);
  if (code == -EEXIST) return false;
  if (code < 0) throw_write_error(run_, code);
  return true;
}

bool Ownership::take(const Job& job) {
  if (held()) return true;
  run_ = run_directory(job.config), checkpoints_ = checkpoint_directory(job.config);
  if (!claim(job)) return false;
  store::LeaseOptions options;
  options.period_s = job.config.run.lease.value;
  options.waiting = say;
  leases_.push_back(std::make_unique<store::Lease>(run_, options));
  options.dead = leases_.back()->outlived();  // that owner held both directories
  try {                                       // also for the default one: another run's checkpoint.dir may be this one
    leases_.push_back(std::make_unique<store::Lease>(checkpoints_, options));
  } catch (...) {
    leases_.clear();
    throw;
  }
  identity_ = store::identity_of(run_);
  if (identity_.attempts == 0) identity_.named = job.named;
  return true;
}

bool Ownership::settle(const Job& job) {
  if (path_exists(checkpoints_)) checkpoint::recover(checkpoints_);
  if (!identity_.current().settled) finish_history();
  // Begins with the oldest, so that the reported number of lost steps counts from the checkpoint that the run continues
  // from.
  for (auto it = job.damaged.rbegin(); it != job.damaged.rend(); ++it) {
    if (!path_exists(it->checkpoint.path)) continue;
    try {
      open_checkpoint(it->checkpoint);
    } catch (const DamagedError& error) {
      set_aside(it->checkpoint.path, error.what());
    }
  }
  if (job.from && !job.from->is_current()) return false;
  if (job.options.resume != "auto") return true;
  const auto steps = checkpoint::steps_in(checkpoints_);
  return job.from ? !steps.empty() && steps.back().path == job.from->path() : steps.empty();
}

void Ownership::set_aside(const fs::path& checkpoint, const std::string& why) {
  const std::int64_t step = checkpoint::step_of(checkpoint.filename().string()).value_or(0);
  const fs::path aside = checkpoint::set_aside(checkpoint);
  const auto left = checkpoint::steps_in(checkpoints_);
  const auto next = std::find_if(left.rbegin(), left.rend(), [&](const auto& s) { return s.step < step; });
  const bool some = next != left.rend();
  const std::string lost =
      some ? fmt::format("going on from step {}: steps {} to {} are lost", next->step, next->step + 1, step)
           : "no older checkpoint is left";
  say(fmt::format("{}: damaged, and set aside as {}; {}\n  {}", checkpoint.string(), aside.filename().string(), lost,
                  why));
  store::record_event(run_, "set_aside", identity_.attempts + 1,
                      {{"path", aside.string()},
                       {"checkpoint_step", step},
                       {"from_step", some ? Json(next->step) : Json()},
                       {"steps_lost", some ? Json(step - next->step) : Json()},
                       {"reason", why}});
}

bool Ownership::leaves_something(const Job& job) const {
  if (job.options.resume == "auto") return false;
  if (identity_.attempts > 0 || !checkpoint::damaged_in(checkpoints_).empty()) return true;
  const auto steps = checkpoint::steps_in(checkpoints_);
  return !steps.empty() && (!job.from || steps.back().step > job.from->step());
}

void Ownership::enter(const Job& job) {
  static const Json none = Json::object();
  const Json& state = job.from ? job.from->state() : none;
  if (!job.from) {
    identity_.from.reset();
  } else if (state.contains("run") && state.at("run").value("id", "") != identity_.id && !identity_.from) {
    const Json& whose = state.at("run");
    identity_.from = store::Fork{whose.value("id", ""), whose.value("name", ""), job.from->step()};
  }
  const bool leaves = leaves_something(job);
  if (leaves)
    identity_.histories.push_back({identity_.current().history + 1, job.from ? job.from->step() : store::kAnew, false});
  store::write_identity(run_, identity_);
  if (leaves) finish_history();
}

void Ownership::finish_history() {
  store::History& history = identity_.histories.back();
  const auto moved = checkpoint::abandon(checkpoints_, history.from_step, history.history);
  store::abandon_records(run_, history);
  const bool anew = history.from_step == store::kAnew;
  const std::string begins = anew ? "begins anew" : fmt::format("goes on from step {}", history.from_step);
  if (!moved.empty())
    say(fmt::format("history {} of this run {}; in {} the checkpoint{} of step{} {} now end{} in '.abandoned-{}'",
                    history.history, begins, checkpoints_.string(), moved.size() > 1 ? "s" : "",
                    moved.size() > 1 ? "s" : "", fmt::join(moved.rbegin(), moved.rend(), ", "),
                    moved.size() > 1 ? "" : "s", history.history));
  store::record_event(
      run_, "history", identity_.attempts + 1,
      {{"history", history.history}, {"from_step", anew ? Json() : Json(history.from_step)}, {"abandoned", moved}});
  history.settled = true;
  store::write_identity(run_, identity_);
}

std::optional<std::string> Ownership::run_name() const {
  return held() ? std::optional(run_.filename().string()) : std::nullopt;
}

void Ownership::require() const {
  for (const auto& lease : leases_) lease->require();
}

}  // namespace molen::train
