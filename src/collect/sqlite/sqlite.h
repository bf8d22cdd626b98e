// A database in one file, by SQLite. SQLite writes and syncs the file itself.
#pragma once

#include <filesystem>
#include <memory>

#include "collect/database.h"

namespace molen::collect {

// Opens the file, and creates it with its tables if it is absent. `busy_s`: how long a transaction waits for another
// process that writes, before it fails. Throws as open_database does.
std::unique_ptr<Database> open_sqlite(const std::filesystem::path& file, double busy_s = 5.0);

}  // namespace molen::collect
