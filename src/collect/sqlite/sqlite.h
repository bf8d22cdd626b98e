// A database in one file, by SQLite. SQLite writes and syncs the file itself.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "collect/database.h"

namespace molen::collect {

// Opens the file, and creates it with its tables if it is absent. `busy_s`: how long a transaction waits for another
// process that writes, before it fails. Throws as open_database does.
std::unique_ptr<Database> open_sqlite(const std::filesystem::path& file, double busy_s = 5.0);

// Runs a query on the tables in the file and changes nothing. Throws UsageError if there are none, VersionError if they
// are those of another version, and Error if the file cannot be read.
DatabaseRows sqlite_rows(const std::filesystem::path& file, const std::string& sql);

}  // namespace molen::collect
