#include "train/state/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "store/history.h"
#include "train/trainer.h"

namespace molen::train {
namespace {

std::int64_t step_number(const std::string& resume) {
  const bool digits = !resume.empty() && resume.size() < 19 &&
                      std::all_of(resume.begin(), resume.end(), [](char ch) { return ch >= '0' && ch <= '9'; });
  if (!digits) throw UsageError("--resume {}: expected auto, never or a step", resume);
  return std::stoll(resume);
}

// Refuses a checkpoint that another run saved in the same directory. Otherwise chance would decide which of the two
// runs continues. A directory that holds no run yet may begin from any checkpoint.
void refuse_other_run(const checkpoint::Checkpoint& found, const std::optional<store::RunIdentity>& identity,
                      const fs::path& run) {
  if (!identity || !found.state().contains("run")) return;  // imported, or written by an older version of molen
  const Json& whose = found.state().at("run");
  const std::string id = whose.value("id", ""), name = whose.value("name", "");
  if (id == identity->id) return;
  if (identity->from && identity->from->id == id && found.step() <= identity->from->step) return;
  throw UsageError(
      "{}: saved by the run '{}' (id {}), and {} is another run (id {}): continue that one in its own directory, give "
      "this one a checkpoint.dir of its own, or begin a new run from the checkpoint under a new run.name",
      found.path().string(), name, id, run.string(), identity->id);
}

std::vector<checkpoint::Step> up_to(std::vector<checkpoint::Step> steps, std::int64_t last) {
  std::erase_if(steps, [&](const checkpoint::Step& s) { return s.step > last; });
  return steps;
}

[[noreturn]] void refuse_unusable(const fs::path& directory, const std::vector<Damaged>& damaged,
                                  const std::vector<checkpoint::Step>& aside) {
  std::string all;
  for (const Damaged& d : damaged) all += "\n  " + d.why;
  for (const checkpoint::Step& s : aside) all += fmt::format("\n  {}: set aside as damaged", s.path.string());
  throw DamagedError(
      "{}: holds checkpoints, and none can be used:{}\nrestore one under its name without '.damaged-', or begin anew "
      "with --resume never",
      directory.string(), all);
}

}  // namespace

std::shared_ptr<const checkpoint::Checkpoint> open_checkpoint(const checkpoint::Step& step) {
  auto opened = checkpoint::Checkpoint::open(step.path);
  if (opened->step() != step.step)
    throw DamagedError("{}: holds step {}, which its name does not say", step.path.string(), opened->step());
  return opened;
}

Found find_checkpoint(const config::Config& config, const std::string& resume) {
  if (resume == "never") return {};
  const std::int64_t wanted = resume == "auto" ? -1 : step_number(resume);
  const fs::path run = run_directory(config), directory = checkpoint_directory(config);
  const auto identity = store::read_identity(run);
  const bool moving = identity && !identity->current().settled;
  const std::int64_t last = moving ? identity->current().from_step : INT64_MAX;
  const auto steps = up_to(checkpoint::steps_in(directory), last),
             aside = up_to(checkpoint::damaged_in(directory), last);
  Found found;
  for (auto it = steps.rbegin(); it != steps.rend() && !found.checkpoint; ++it) {
    if (wanted >= 0 && it->step != wanted) continue;
    try {
      found.checkpoint = open_checkpoint(*it);
    } catch (const DamagedError& error) {
      if (wanted >= 0) throw;
      found.damaged.push_back({*it, error.what()});
    }
  }
  if (found.checkpoint) {
    refuse_other_run(*found.checkpoint, identity, run);
  } else if (wanted >= 0) {
    const bool damaged = std::any_of(aside.begin(), aside.end(), [&](const auto& s) { return s.step == wanted; });
    throw UsageError("--resume {}: {} holds no checkpoint of this step{}", resume, directory.string(),
                     damaged ? "; one was set aside as damaged" : "");
  } else if (!steps.empty() || !aside.empty()) {
    refuse_unusable(directory, found.damaged, aside);
  }
  return found;
}

}  // namespace molen::train
