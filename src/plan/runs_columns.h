// The input columns of a table of runs, and the cells of one of its rows as typed values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace molen::plan {

// An input column, as --help lists it.
struct RunColumn {
  const char* name;
  const char* values;
  const char* blank;  // what is taken for a blank
};
std::span<const RunColumn> run_columns();

// One row. Every method throws UsageError that names the column and its value for a cell that is no such value, and for
// a blank where a value is needed. A method with a fallback notes in `assumed` that it was taken for a blank.
class RunCells {
 public:
  // `columns`: position of each column by its name. All of the arguments must live as long as this object.
  RunCells(const std::map<std::string, std::size_t, std::less<>>& columns, const std::vector<std::string>& cells,
           std::map<std::string, std::string>& assumed)
      : columns_(columns), cells_(cells), assumed_(assumed) {}

  // Returns the cell without spaces around it; "" if it is blank or the table has no such column.
  std::string_view text(const char* column) const;
  bool blank(const char* column) const { return text(column).empty(); }

  std::string needed_text(const char* column) const;
  // Whole numbers from `least` to `most`. "8.0" is one: tools that write a column with blanks as numbers write it so.
  std::optional<std::int64_t> count(const char* column, std::int64_t least, std::int64_t most) const;
  std::int64_t needed_count(const char* column, std::int64_t most) const;
  std::int64_t count_or(const char* column, std::int64_t most, std::int64_t fallback);
  // Finite numbers above 0 and up to `most`.
  std::optional<double> quantity(const char* column, double most) const;
  // One of `words`.
  std::optional<std::string> word(const char* column, std::span<const std::string> words) const;
  std::string word_or(const char* column, std::span<const std::string> words, const std::string& fallback);
  bool yes_or(const char* column, bool fallback);

  // Notes that `value` was taken for a blank column.
  void assume(const char* column, const std::string& value) { assumed_[column] = value; }

 private:
  const std::map<std::string, std::size_t, std::less<>>& columns_;
  const std::vector<std::string>& cells_;
  std::map<std::string, std::string>& assumed_;
};

// Returns the text without spaces and line ends around it.
std::string_view without_spaces(std::string_view text);

// Returns a text of a file for a message: in quotes, and shortened if it is long.
std::string in_quotes(std::string_view text);

}  // namespace molen::plan
