// Lines of JSON objects with a "text": the text form of corpora, read and written.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace molen::data {

struct JsonlRecord {
  std::string text;
  std::string id;        // "" where the line has none
  std::string language;  // from "language" or "lang"; "" where the line has none
};

class JsonlParser {
 public:
  JsonlParser();
  ~JsonlParser();
  // Throws UsageError naming `origin`: not one JSON object, no string "text", "text" twice, invalid UTF-8.
  JsonlRecord parse(std::string_view line, std::string_view origin);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One line, with its newline.
std::string format_jsonl(const JsonlRecord& record);

}  // namespace molen::data
