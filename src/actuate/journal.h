// The journal of a job that changes settings: what was found, and what the job may have written. It exists as long as
// any of its settings may differ from what was found, so whoever reads it after the job's death can restore them.
//
// A journal names settings and holds numbers; it names no files. So a forged one can at most set what molen can set,
// to values that the device permits.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "actuate/actuator.h"
#include "store/lease.h"

namespace molen::actuate {

struct JournalEntry {
  std::string id;                  // of the actuator
  std::vector<std::string> parts;  // their names, in the order of the states
  State original;
  std::vector<State> written;  // what the job may have written; empty: nothing yet
};

struct Journal {
  store::Owner owner;
  std::vector<JournalEntry> entries;
};

std::string journal_text(const Journal& journal);
// Parses it; throws UsageError that names `origin` for anything else.
Journal parse_journal(std::string_view text, const std::string& origin);

// Returns the journal's path of an owner; the host is part of its name, because hosts may share the folder.
fs::path journal_file(const fs::path& folder, const store::Owner& owner);
// Returns whether a file's name is that of a journal.
bool is_journal_name(std::string_view name);
// Reads the journal of a file that this user owns; throws as read_file and parse_journal do.
Journal read_journal(const fs::path& file);

// Removes a journal, with what a process that was killed while writing it has left beside it.
void remove_journal(const fs::path& file);
// Returns the number of the process whose unfinished journal a file of this name is; 0 for another name.
std::int64_t unfinished_of(std::string_view name, const store::Owner& self);

// Puts back what a journal holds, by the actuators of this machine. The notes say what was restored, what another
// program has set since, and what cannot be restored and why.
Restoration restore_journal(const Journal& journal, Actuators& here);

}  // namespace molen::actuate
