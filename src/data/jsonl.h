// Reads and writes lines of JSON objects with a "text" member, the text form of corpora.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace molen::data {

struct JsonlRecord {
  std::string text;
  std::string id;        // "" when the line has none
  std::string language;  // from "language" or "lang"; "" when the line has none
};

class JsonlParser {
 public:
  JsonlParser();
  ~JsonlParser();
  // Parses one line. Throws UsageError naming `origin` when the line is not exactly one JSON object, has no string
  // "text" or has it twice, or is not UTF-8.
  JsonlRecord parse(std::string_view line, std::string_view origin);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns one line with its newline.
std::string format_jsonl(const JsonlRecord& record);

}  // namespace molen::data
