#include "actuate/session.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"

namespace molen::actuate {
namespace {

// Throws where the folder is another user's: its owner could plant journals.
void require_own_folder(const fs::path& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) throw_read_error(folder, -errno);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    throw UsageError(
        "{}: must be a folder of user {} into which nobody else may write; set XDG_RUNTIME_DIR to such a folder",
        folder.string(), ::geteuid());
}

void add_restoration(Restoration& all, const Restoration& one) {
  all.notes.insert(all.notes.end(), one.notes.begin(), one.notes.end());
  all.restored += one.restored;
  all.left_alone += one.left_alone;
  all.failed += one.failed;
}

// Returns whether one of a journal's settings is among those wanted; an empty list wants all.
bool is_wanted(const Journal& journal, const std::vector<std::string>& wanted) {
  return wanted.empty() || std::any_of(journal.entries.begin(), journal.entries.end(), [&](const JournalEntry& e) {
           return std::find(wanted.begin(), wanted.end(), e.id) != wanted.end();
         });
}

// Restores the settings of a journal, whose locks must be held. Those that are restored leave the journal, so that a
// device that cannot be restored holds up no other one. Returns the journal that is left.
Journal restore_locked(const fs::path& file, Actuators& here, const std::function<void(const std::string&)>& said) {
  const Journal journal = read_journal(file);
  Journal still{journal.owner, {}};
  Restoration done;
  for (const JournalEntry& entry : journal.entries) {
    const Restoration one = restore_journal({journal.owner, {entry}}, here);
    if (!one.complete()) still.entries.push_back(entry);
    add_restoration(done, one);
  }
  if (done.restored + done.left_alone + done.failed > 0)
    said(fmt::format("{} ended without restoring what it had set", journal.owner.text()));
  for (const std::string& note : done.notes) said(note);
  if (still.entries.empty()) {
    remove_journal(file);
    return still;
  }
  try {
    if (still.entries.size() < journal.entries.size()) write_file_atomic(file, journal_text(still));
  } catch (const Error& error) {  // the whole journal stays
    said(error.what());
  }
  said(fmt::format("{}: stays until all of it is restored; remove it where that is not wanted", file.string()));
  return still;
}

// Restores, removes or leaves one journal; returns false where something is left to restore.
bool recover_one(const fs::path& file, Actuators& here, const std::function<void(const std::string&)>& said,
                 Seconds patience, const std::vector<std::string>& wanted, bool own_too) {
  const store::Owner self = store::Owner::self();
  Journal journal;
  try {
    journal = read_journal(file);
  } catch (const MissingFileError&) {
    return true;  // its guardian was faster
  } catch (const IoError&) {
    throw;
  } catch (const Error& error) {
    const fs::path aside = file.string() + ".damaged";
    rename_path(file, aside);
    said(fmt::format("{}; what it held is not restored, and it is kept as {}", error.what(), aside.string()));
    return true;
  }
  const store::Owner& owner = journal.owner;
  if (owner.host != self.host) return true;
  if (owner.boot != self.boot) {
    remove_file(file);
    said(fmt::format("{}: from before this machine was started, which has reset its settings", file.string()));
    return true;
  }
  const bool known_alive =
      store::life_of(owner, self) == store::Life::kAlive && is_running(owner.pid);  // it may be a zombie
  if (known_alive && !(own_too && owner == self)) return true;
  std::vector<const Actuator*> needed;
  for (const auto& actuator : here.actuators)
    if (std::any_of(journal.entries.begin(), journal.entries.end(),
                    [&](const JournalEntry& e) { return e.id == actuator->info().id; }))
      needed.push_back(actuator.get());
  const bool matters = is_wanted(journal, wanted);
  if (needed.empty() && !matters) return true;  // settings that this job does not see say nothing of their owner's life
  // The locks are those of the owner and of its guardian, so whoever has them knows that both are dead.
  const auto locks = Locks::take(needed, patience);
  // Its owner may be alive in another process namespace; who restores its own journals knows that it is not.
  if (!locks) return !own_too || !matters;
  if (!path_exists(file)) return true;  // its guardian was faster
  const Journal still = restore_locked(file, here, said);
  return still.entries.empty() || !is_wanted(still, wanted);
}

}  // namespace

void make_own_folder(const fs::path& folder) {
  if (folder.has_parent_path()) make_directories(folder.parent_path());
  constexpr int kOwnerOnly = 0700;
  if (const int code = file_system().make_directory(folder, kOwnerOnly); code < 0 && code != -EEXIST)
    throw_write_error(folder, code);
  require_own_folder(folder);
}

fs::path default_journals() {
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && runtime[0] == '/')
    return fs::path(runtime) / "molen";
  std::error_code missing;  // TMPDIR may name a folder that is not there
  const fs::path temporary = fs::temp_directory_path(missing);
  return (missing ? fs::path("/tmp") : temporary) / fmt::format("molen-{}", ::geteuid());
}

bool recover_journals(const fs::path& folder, Actuators& here, const std::function<void(const std::string&)>& said,
                      Seconds patience, const std::vector<std::string>& wanted, bool own_too) {
  if (!path_exists(folder)) return true;
  require_own_folder(folder);
  bool complete = true;
  const store::Owner self = store::Owner::self();
  for (const DirectoryEntry& entry : list_directory(folder)) {
    if (const std::int64_t pid = unfinished_of(entry.name, self); pid > 0 && !is_running(pid))
      remove_file(folder / entry.name);
    if (!entry.is_directory && is_journal_name(entry.name))
      complete = recover_one(folder / entry.name, here, said, patience, wanted, own_too) && complete;
  }
  return complete;
}

Session::Session(std::vector<std::unique_ptr<Actuator>> used, Locks locks, SessionOptions options)
    : used_(std::move(used)),
      announced_(used_.size()),
      locks_(std::move(locks)),
      options_(std::move(options)),
      process_(::getpid()) {
  journal_.owner = store::Owner::self();
  file_ = journal_file(options_.journals, journal_.owner);
}

Result<std::unique_ptr<Session>> Session::open(Actuators here, const std::vector<std::string>& ids,
                                               SessionOptions options) {
  try {
    make_own_folder(options.journals);
    // The settings of a dead job must not be taken for those that were found.
    if (!recover_journals(options.journals, here, options.said, options.patience, ids))
      return Failure{fmt::format("nothing is set as long as {} has a journal that could not be restored",
                                 options.journals.string())};
    std::vector<std::unique_ptr<Actuator>> used;
    std::vector<const Actuator*> locked;
    for (const std::string& id : ids) {
      const auto at = std::find_if(here.actuators.begin(), here.actuators.end(),
                                   [&](const auto& a) { return a && a->info().id == id; });
      if (at == here.actuators.end()) {
        std::string why = "this machine has no such setting (molen energy list shows them)";
        for (const Unavailable& u : here.unavailable)
          if (id.rfind(u.meter, 0) == 0) why = u.reason;
        return Failure{fmt::format("{} cannot be set: {}", printable(id), why)};
      }
      locked.push_back(at->get());
      used.push_back(std::move(*at));
    }
    auto locks = Locks::take(locked, options.patience);
    if (!locks) return Failure{locks.reason()};
    auto session = std::unique_ptr<Session>(new Session(std::move(used), std::move(locks).value(), std::move(options)));
    if (const auto begun = session->begin(); !begun) return Failure{begun.reason()};
    return session;
  } catch (const Error& error) {
    return Failure{error.what()};
  }
}

Result<Done> Session::begin() {
  for (const auto& actuator : used_) {
    // A value that was read before the lock may have been another job's.
    if (auto remembered = actuator->remember(); !remembered) return remembered;
    JournalEntry entry{actuator->info().id, {}, actuator->original(), {}};
    for (const Part& part : actuator->info().parts) entry.parts.push_back(part.name);
    journal_.entries.push_back(std::move(entry));
  }
  if (path_exists(file_))
    return Failure{fmt::format("{}: a session of this process, or a journal that could not be restored, is there",
                               file_.string())};
  open_ = true;  // from here on, the destructor removes the journal
  if (auto recorded = record(); !recorded) return recorded;
  return keep_guarded();
}

Result<Done> Session::record() {
  try {
    write_file_atomic(file_, journal_text(journal_));
    return Done{};
  } catch (const Error& error) {
    return Failure{error.what()};
  }
}

Result<Done> Session::keep_guarded() {
  if (guardian_ && guardian_->alive()) return Done{};
  const bool again = guardian_ != nullptr;
  guardian_.reset();
  auto started = Guardian::start(options_.guardian, file_, locks_.descriptors(), options_.patience);
  if (!started) return Failure{fmt::format("nothing is set without a guardian: {}", started.reason())};
  guardian_ = std::move(started).value();
  if (again) options_.said("the guardian of the settings was killed; another one has taken its place");
  return Done{};
}

Result<Done> Session::set(std::size_t index, std::int64_t value) {
  Actuator& actuator = *used_.at(index);
  if (!open_) return Failure{"the session has ended"};
  auto wanted = actuator.state_for(value);
  if (!wanted) return Failure{wanted.reason()};
  if (auto guarded = keep_guarded(); !guarded) return guarded;
  const std::vector<State>& announced = announced_[index];
  if (std::ranges::find(announced, wanted.value()) != announced.end()) return actuator.set(value);
  if (auto recorded = record_also(index, {wanted.value()}); !recorded) return recorded;
  auto set = actuator.set(value);
  // From now on only the new state and those that are announced are ours; after a failure, any of them may be. The next
  // record says so.
  if (set) {
    journal_.entries[index].written = announced;
    journal_.entries[index].written.push_back(wanted.value());
  }
  return set;
}

Result<Done> Session::announce(std::size_t index, const std::vector<std::int64_t>& values) {
  if (!open_) return Failure{"the session has ended"};
  std::vector<State> states;
  for (const std::int64_t value : values) {
    auto wanted = used_.at(index)->state_for(value);
    if (!wanted) return Failure{wanted.reason()};
    states.push_back(std::move(wanted).value());
  }
  if (auto guarded = keep_guarded(); !guarded) return guarded;
  if (auto recorded = record_also(index, states); !recorded) return recorded;
  announced_[index] = std::move(states);
  return Done{};
}

// Has the states in the journal beside those that may have been written.
Result<Done> Session::record_also(std::size_t index, const std::vector<State>& states) {
  std::vector<State>& written = journal_.entries[index].written;
  const std::vector<State> before = written;
  for (const State& state : states)
    if (std::ranges::find(written, state) == written.end()) written.push_back(state);
  auto recorded = record();
  if (recorded) return recorded;
  written = before;
  return Failure{fmt::format("nothing is set that could not be restored: {}", recorded.reason())};
}

Restoration Session::end() {
  Restoration all;
  if (!open_ || process_ != ::getpid()) return all;
  open_ = false;
  for (const auto& actuator : used_) add_restoration(all, actuator->restore());
  for (const std::string& note : all.notes) options_.said(note);
  if (all.complete()) {
    try {
      remove_journal(file_);
    } catch (const Error& error) {  // the guardian removes it
      options_.said(error.what());
    }
  }
  guardian_.reset();  // tries again where something has failed
  return all;
}

Session::~Session() {
  try {
    Session::end();
  } catch (const std::exception& error) {  // no memory, say: the guardian restores
    guardian_.reset();
  }
}

}  // namespace molen::actuate
