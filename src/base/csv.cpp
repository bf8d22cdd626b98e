#include "base/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace molen {

CsvReader::CsvReader(std::string_view text, std::string origin, std::size_t most_cells)
    : text_(text), origin_(std::move(origin)), most_cells_(most_cells) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
}

bool CsvReader::next(std::vector<std::string>& cells) {
  while (at_ < text_.size()) {
    line_ = current_line_;
    read_record(cells);
    if (cells.size() > 1 || !cells.front().empty()) return true;
  }
  return false;
}

void CsvReader::read_record(std::vector<std::string>& cells) {
  cells.clear();
  while (true) {
    if (cells.size() >= most_cells_)
      throw UsageError("{}:{}: more than {} cells in a row", origin_, line_, most_cells_);
    cells.push_back(at_ < text_.size() && text_[at_] == '"' ? read_quoted() : read_plain());
    if (at_ >= text_.size() || read_line_end()) return;
    ++at_;  // a comma
  }
}

// Reads a cell in quotes. After it, `at_` is at a comma, at the end of a line or at the end of the text.
std::string CsvReader::read_quoted() {
  const int began = current_line_;
  std::string cell;
  ++at_;
  while (true) {
    const std::size_t quote = text_.find('"', at_);
    if (quote == std::string_view::npos)
      throw UsageError("{}:{}: a cell begins with a quote on this line, and the quote does not end", origin_, began);
    const std::string_view part = text_.substr(at_, quote - at_);
    current_line_ += static_cast<int>(std::count(part.begin(), part.end(), '\n'));
    cell += part;
    at_ = quote + 1;
    if (at_ >= text_.size() || text_[at_] != '"') break;
    cell += '"';
    ++at_;
  }
  if (at_ < text_.size() && std::string_view(",\r\n").find(text_[at_]) == std::string_view::npos)
    throw UsageError("{}:{}: text follows the closing quote of a cell; double each quote that is part of a text",
                     origin_, current_line_);
  return cell;
}

std::string CsvReader::read_plain() {
  const std::size_t end = std::min(text_.find_first_of(",\r\n\"", at_), text_.size());
  if (end < text_.size() && text_[end] == '"')
    throw UsageError(
        "{}:{}: a quote is inside a cell that does not begin with one; put the cell into quotes and "
        "double the quotes in it",
        origin_, current_line_);
  const std::size_t begin = std::exchange(at_, end);
  return std::string(text_.substr(begin, end - begin));
}

// Returns whether a line ended at `at_`, which it then passes.
bool CsvReader::read_line_end() {
  if (text_[at_] == ',') return false;
  if (text_[at_] == '\r') {
    if (at_ + 1 >= text_.size() || text_[at_ + 1] != '\n')
      throw UsageError(
          "{}:{}: a carriage return without a line feed; put the cell into quotes, or end lines with a "
          "line feed",
          origin_, current_line_);
    ++at_;
  }
  ++at_;
  ++current_line_;
  return true;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? fmt::format("{:.9g}", *value) : std::string();
}

}  // namespace molen
