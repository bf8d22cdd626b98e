#include "data/jsonl.h"

#include <simdjson.h>

#include "base/error.h"
#include "base/json.h"

namespace molen::data {

namespace {
constexpr std::size_t kMostBytes = 8 << 20;
}

struct JsonlParser::State {
  simdjson::dom::parser parser;
};

JsonlParser::JsonlParser() : state_(std::make_unique<State>()) {}
JsonlParser::~JsonlParser() = default;

JsonlRecord JsonlParser::parse(std::string_view line, std::string_view origin) {
  // simdjson would copy from a null pointer.
  if (line.empty()) throw UsageError("{}: not valid JSON: an empty line", origin);
  // The parser takes up to 20 bytes of memory for each byte of the line.
  if (line.size() > kMostBytes) throw UsageError("{}: a line of more than {} bytes", origin, kMostBytes);
  simdjson::dom::element document;
  if (const auto error = state_->parser.parse(line.data(), line.size()).get(document))
    throw UsageError("{}: not valid JSON: {}", origin, simdjson::error_message(error));
  simdjson::dom::object object;
  if (document.get(object)) throw UsageError("{}: not a JSON object", origin);
  JsonlRecord record;
  bool found = false;
  for (const auto& [key, value] : object) {
    const bool language = key == "language" || key == "lang";
    if (key == "text") {
      std::string_view text;
      if (value.get(text)) throw UsageError("{}: 'text' is not a string", origin);
      if (found) throw UsageError("{}: 'text' appears twice", origin);
      record.text = text;
      found = true;
    } else if (key == "id" || language) {
      std::string_view text;
      if (!value.get(text)) (language ? record.language : record.id) = text;
    }
  }
  if (!found) throw UsageError("{}: no 'text'", origin);
  return record;
}

std::string format_jsonl(const JsonlRecord& record) {
  Json json;
  if (!record.id.empty()) json["id"] = record.id;
  if (!record.language.empty()) json["language"] = record.language;
  json["text"] = record.text;
  return json.dump() + "\n";
}

}  // namespace molen::data
