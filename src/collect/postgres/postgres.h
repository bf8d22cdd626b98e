// A database of a PostgreSQL server, by libpq.
#pragma once

#include <memory>
#include <string>

#include "collect/database.h"

namespace molen::collect {

// Connects and creates the tables if there are none. `uri`: "postgresql://...", as libpq takes it; what it leaves out
// comes from libpq's environment variables, service and password files. Throws as open_database does.
std::unique_ptr<Database> open_postgres(const std::string& uri);

// Runs a query on the tables of the database and changes nothing. Throws UsageError if there are none, VersionError if
// they are those of another version, and Error if the server does not answer.
DatabaseRows postgres_rows(const std::string& uri, const std::string& sql);

}  // namespace molen::collect
