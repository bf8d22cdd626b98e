// A database of a PostgreSQL server, by libpq.
#pragma once

#include <memory>
#include <string>

#include "collect/database.h"

namespace molen::collect {

// Connects and creates the tables if there are none. `uri`: "postgresql://...", as libpq takes it; what it leaves out
// comes from libpq's environment variables, service and password files. Throws as open_database does.
std::unique_ptr<Database> open_postgres(const std::string& uri);

}  // namespace molen::collect
