#include "checkpoint/folder.h"

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "checkpoint/index.h"
#include "checkpoint/naming.h"

namespace molen::checkpoint {
namespace {

std::vector<DirectoryEntry> entries_of(const fs::path& directory) {
  try {
    return list_directory(directory);
  } catch (const MissingFileError&) {
    return {};
  }
}

// Renames the checkpoint durably before it removes the files, so that an interrupted removal leaves nothing that looks
// like a checkpoint.
void remove_checkpoint(const fs::path& checkpoint) {
  const fs::path aside = checkpoint.string() + std::string(kRemoving);
  remove_tree(aside);
  rename_path(checkpoint, aside);
  sync_directory(checkpoint.parent_path());
  remove_tree(aside);
}

// Returns whether state and index exist and belong together.
bool is_whole(const fs::path& checkpoint) {
  try {
    const StoredState state = parse_state(read_file(checkpoint / "state.json", kMaxStateBytes), "state.json");
    return sha256_file(checkpoint / "index.json") == state.index_sha256;
  } catch (const UsageError&) {
    return false;
  } catch (const VersionError&) {
    return false;
  }
}

}  // namespace

std::vector<Step> steps_in(const fs::path& directory) {
  std::vector<Step> steps;
  for (const DirectoryEntry& entry : entries_of(directory))
    if (const auto step = step_of(entry.name); step && entry.is_directory)
      steps.push_back({directory / entry.name, *step});
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.step < b.step; });
  return steps;
}

std::vector<fs::path> unfinished_in(const fs::path& directory) {
  std::vector<fs::path> paths;
  for (const DirectoryEntry& entry : entries_of(directory))
    if (is_unfinished(entry.name)) paths.push_back(directory / entry.name);
  return paths;
}

std::vector<Step> damaged_in(const fs::path& directory) {
  std::vector<Step> steps;
  for (const DirectoryEntry& entry : entries_of(directory))
    if (const auto step = damaged_step(entry.name)) steps.push_back({directory / entry.name, *step});
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.step < b.step; });
  return steps;
}

void recover(const fs::path& directory) {
  for (const DirectoryEntry& entry : entries_of(directory)) {
    const fs::path path = directory / entry.name;
    if (is_unfinished(entry.name)) {
      // The rename comes first: after it, an owner that lost its lease no longer finds its directory.
      fs::path gone = path;
      gone += kRemoving;
      remove_tree(gone);
      if (file_system().rename(path, gone) == 0) remove_tree(gone);
    } else if (const auto original = replaced_name(entry.name)) {
      if (path_exists(directory / *original))
        remove_checkpoint(path);
      else
        rename_path(path, directory / *original);
    }
  }
  if (path_exists(directory)) sync_directory(directory);
}

fs::path set_aside(const fs::path& checkpoint) {
  for (int number = 1;; ++number) {
    fs::path aside = checkpoint.string() + fmt::format("{}{}", kDamaged, number);
    if (path_exists(aside)) continue;
    rename_path(checkpoint, aside);
    sync_directory(checkpoint.parent_path());
    return aside;
  }
}

std::vector<std::int64_t> abandon(const fs::path& directory, std::int64_t beyond, std::int64_t history) {
  const auto move_aside = [&](const fs::path& path) {
    const std::string aside = path.string() + fmt::format("{}{}", kAbandoned, history);
    fs::path to = aside;
    for (int number = 2; path_exists(to); ++number) to = fmt::format("{}.{}", aside, number);
    rename_path(path, to);
  };
  std::vector<std::int64_t> moved;
  const std::vector<Step> steps = steps_in(directory), damaged = damaged_in(directory);
  for (auto it = steps.rbegin(); it != steps.rend() && it->step > beyond; ++it) {
    move_aside(it->path);
    moved.push_back(it->step);
  }
  for (const Step& one : damaged)
    if (one.step > beyond) move_aside(one.path);
  if (path_exists(directory)) sync_directory(directory);  // also for a move that was cut short
  return moved;
}

void prune(const fs::path& directory, const fs::path& saved, int keep, const std::function<void()>& before_each) {
  const auto check = [&] {
    if (before_each) before_each();
  };
  for (const DirectoryEntry& entry : entries_of(directory))
    if (is_removing(entry.name)) {
      check();
      remove_tree(directory / entry.name);
    }
  if (keep <= 0) return;
  // The checkpoint just saved is complete and counts. Later ones are not counted: they do not belong to the owner that
  // saves now.
  std::vector<fs::path> complete;
  for (const Step& step : steps_in(directory))
    if (step.step < step_of(saved.filename().string()).value_or(0) && is_whole(step.path))
      complete.push_back(step.path);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) <= complete.size(); ++i) {
    check();
    remove_checkpoint(complete[i]);
  }
}

void publish(const fs::path& from, const fs::path& to) {
  const fs::path parent = to.parent_path();
  if (!path_exists(to)) {
    rename_path(from, to);
    sync_directory(parent);
    return;
  }
  const fs::path before = to.string() + std::string(kReplaced);
  remove_tree(before);
  if (file_system().exchange(from, to) == 0) {
    // The replaced checkpoint now has the name of an unfinished save; it is removed here, or by the next recovery.
    sync_directory(parent);
    remove_tree(from);
    return;
  }
  // A file system without exchange: between the two renames the old checkpoint has the name that recover() knows.
  rename_path(to, before);
  rename_path(from, to);
  sync_directory(parent);
  remove_checkpoint(before);
}

}  // namespace molen::checkpoint
