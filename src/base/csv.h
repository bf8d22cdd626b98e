// Comma-separated text (RFC 4180): cells in quotes may hold commas, line breaks and doubled quotes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace molen {

// Reads a text record by record. Lines end with a line feed, or a carriage return and a line feed. A byte-order mark
// before the first record and empty lines are skipped. Spaces belong to their cell.
class CsvReader {
 public:
  // `text` must live as long as the reader. `origin`, a file name, leads each error. `most_cells`: the largest number
  // of cells that a record may have.
  CsvReader(std::string_view text, std::string origin, std::size_t most_cells);

  // Reads the next record; returns false at the end of the text. Throws UsageError, with the line, for a quote that
  // does not end, text after a closing quote, a quote inside a cell that is not in quotes, a carriage return without a
  // line feed, and a record with too many cells.
  bool next(std::vector<std::string>& cells);

  // Returns the line on which the last record began, counted from 1.
  int line() const { return line_; }

 private:
  void read_record(std::vector<std::string>& cells);
  std::string read_quoted();
  std::string read_plain();
  bool read_line_end();

  std::string_view text_;
  std::string origin_;
  std::size_t most_cells_;
  std::size_t at_ = 0;
  int line_ = 0;          // of the last record
  int current_line_ = 1;  // of `at_`
};

// Returns the text as a cell of a file that molen writes: in quotes if it needs them.
std::string csv_cell(const std::string& text);
// Returns nine digits of a number, and an empty cell for one that is not known or not finite.
std::string csv_number(const std::optional<double>& value);

}  // namespace molen
