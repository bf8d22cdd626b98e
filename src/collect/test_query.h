// Reads what a database of either kind holds, past the code that is tested.
#pragma once

#include <string>
#include <vector>

namespace molen::collect {

// Rows of columns; "null" for a null.
using QueryRows = std::vector<std::vector<std::string>>;

// Runs SQL in a file of SQLite, or in the database of a URI. Throws Error.
QueryRows query_sqlite(const std::string& file, const std::string& sql);
QueryRows query_postgres(const std::string& uri, const std::string& sql);

}  // namespace molen::collect
