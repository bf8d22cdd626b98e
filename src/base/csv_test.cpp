#include "base/csv.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "base/error.h"

namespace molen {
namespace {

using CsvRecords = std::vector<std::vector<std::string>>;

CsvRecords records_of(std::string_view text, std::size_t most = 8) {
  CsvReader reader(text, "t.csv", most);
  CsvRecords records;
  std::vector<std::string> cells;
  while (reader.next(cells)) records.push_back(cells);
  return records;
}

std::string csv_refusal(std::string_view text, std::size_t most = 8) {
  try {
    records_of(text, most);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Csv, CellsAndLines) {
  const CsvRecords two = {{"a", "b"}, {"1", "2"}};
  EXPECT_EQ(records_of("a,b\n1,2\n"), two);
  EXPECT_EQ(records_of("a,b\r\n1,2\r\n"), two);
  EXPECT_EQ(records_of("a,b\n1,2"), two);
  EXPECT_EQ(records_of("\n\r\na,b\n\n1,2\n\r\n\n"), two);
  EXPECT_EQ(records_of(""), CsvRecords{});
  EXPECT_EQ(records_of(",\n,,"), (CsvRecords{{"", ""}, {"", "", ""}}));
  EXPECT_EQ(records_of(" a , b\n"), (CsvRecords{{" a ", " b"}}));
}

TEST(Csv, ByteOrderMarkOnlyAtTheBeginning) {
  EXPECT_EQ(records_of("\xEF\xBB\xBF"
                       "a,b\n\xEF\xBB\xBF"
                       "1,2\n"),
            (CsvRecords{{"a", "b"},
                        {"\xEF\xBB\xBF"
                         "1",
                         "2"}}));
}

TEST(Csv, Quotes) {
  EXPECT_EQ(records_of("\"a,b\",c\n"), (CsvRecords{{"a,b", "c"}}));
  EXPECT_EQ(records_of("\"he said \"\"no\"\"\",\"\"\n"), (CsvRecords{{"he said \"no\"", ""}}));
  EXPECT_EQ(records_of("\"two\r\nlines\n\",x\r\ny,z"), (CsvRecords{{"two\r\nlines\n", "x"}, {"y", "z"}}));
  EXPECT_EQ(records_of("\"\"\"\",\"\"\"\"\"\""), (CsvRecords{{"\"", "\"\""}}));
}

// A record is named by its first line, also after cells with line breaks.
TEST(Csv, LineOfARecord) {
  CsvReader reader("a,b\n\n\"1\n\n\",2\r\n3,4\n", "t.csv", 2);
  std::vector<std::string> cells;
  std::vector<int> lines;
  while (reader.next(cells)) lines.push_back(reader.line());
  EXPECT_EQ(lines, (std::vector<int>{1, 3, 6}));
}

TEST(Csv, Refusals) {
  EXPECT_EQ(csv_refusal("a,b\n1,\"x\ny\n"),
            "t.csv:2: a cell begins with a quote on this line, and the quote does not end");
  EXPECT_EQ(csv_refusal("\"a\"b,c\n"),
            "t.csv:1: text follows the closing quote of a cell; double each quote that is part of a text");
  EXPECT_EQ(csv_refusal("\"a\n\" ,c\n"),
            "t.csv:2: text follows the closing quote of a cell; double each quote that is part of a text");
  EXPECT_EQ(csv_refusal("a\n5\" pipe\n"),
            "t.csv:2: a quote is inside a cell that does not begin with one; put the cell into quotes and double the "
            "quotes in it");
  const std::string lone =
      "t.csv:1: a carriage return without a line feed; put the cell into quotes, or end lines with a line feed";
  EXPECT_EQ(csv_refusal("a\rb"), lone);
  EXPECT_EQ(csv_refusal("a\r"), lone);
  EXPECT_EQ(csv_refusal("a,b\n1,2,3\n", 2), "t.csv:2: more than 2 cells in a row");
  EXPECT_EQ(csv_refusal("a,b\n1,2\n", 2), "accepted");
}

// Returns the cell in quotes; without them if it may be and `bare`.
std::string written_cell(const std::string& cell, bool bare) {
  if (bare && cell.find_first_of(",\r\n\"") == std::string::npos) return cell;
  std::string text = "\"";
  for (const char c : cell) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

RC_GTEST_PROP(Csv, WrittenRecordsReadBackTheSame, ()) {
  const auto cell = rc::gen::container<std::string>(rc::gen::element('a', ' ', ',', '"', '\n', '\r', '\xC3', '\0'));
  const auto records = *rc::gen::container<CsvRecords>(
      rc::gen::resize(6, rc::gen::nonEmpty(rc::gen::container<std::vector<std::string>>(cell))));
  std::string text;
  CsvRecords kept;
  for (const auto& record : records) {
    std::string line;
    for (std::size_t i = 0; i < record.size(); ++i)
      line += (i == 0 ? "" : ",") + written_cell(record[i], *rc::gen::arbitrary<bool>());
    text += line + (*rc::gen::arbitrary<bool>() ? "\n" : "\r\n");
    if (record != std::vector<std::string>{""}) kept.push_back(record);
  }
  RC_LOG(text);
  RC_ASSERT(records_of(text, 100) == kept);
}

RC_GTEST_PROP(CsvLaws, CellsAreReadAsTheyWereWritten, ()) {
  const auto cells = *rc::gen::container<std::vector<std::string>>(
      3, rc::gen::container<std::string>(rc::gen::element('a', ' ', ',', '"', '\n', '\r', '\x01')));
  const std::string line = csv_cell(cells[0]) + "," + csv_cell(cells[1]) + "," + csv_cell(cells[2]) + "\n";
  RC_ASSERT(records_of(line) == CsvRecords{cells});
}

TEST(Csv, NumbersAndUnknownOnes) {
  EXPECT_EQ(csv_number(0.1), "0.1");
  EXPECT_EQ(csv_number(std::nullopt), "");
  EXPECT_EQ(csv_number(std::nan("")), "");
}

}  // namespace
}  // namespace molen
