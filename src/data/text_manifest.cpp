// The manifest of text files, as JSON.
#include "base/error.h"
#include "base/json.h"
#include "data/json_fields.h"
#include "data/prepare.h"

namespace molen::data {

Json to_json(const TextRecord& t) {
  Json dropped = Json::object();
  for (const auto& [reason, count] : t.counts.dropped) dropped[reason] = count;
  return Json{{"name", t.name},
              {"split", t.split},
              {"source", t.source},
              {"package", t.package},
              {"version", t.version},
              {"licence", to_json(t.licence)},
              {"language", t.language},
              {"documents", t.counts.documents},
              {"text_bytes", t.counts.bytes},
              {"blocks_repeated", t.counts.blocks_repeated},
              {"blocks_foreign", t.counts.blocks_foreign},
              {"addresses", t.counts.addresses},
              {"dropped", dropped},
              {"file", {{"path", t.file.path}, {"bytes", t.file.bytes}, {"sha256", t.file.sha256}}}};
}

TextRecord text_record_from_json(const Json& json, const std::string& at) {
  known_fields(json,
               {"name", "split", "source", "package", "version", "licence", "language", "documents", "text_bytes",
                "blocks_repeated", "blocks_foreign", "addresses", "dropped", "file"},
               at);
  TextRecord t;
  t.name = string_field(json, "name", at);
  t.split = string_field(json, "split", at);
  if (t.split != "train" && t.split != "heldout") throw UsageError("{}: split '{}'", at, t.split);
  t.source = string_field(json, "source", at);
  t.package = string_field(json, "package", at);
  t.version = string_field(json, "version", at);
  t.licence = licence_from_json(json_member(json, "licence", at), at + ": licence");
  t.language = string_field(json, "language", at);
  t.counts.documents = count_field(json, "documents", at);
  t.counts.bytes = count_field(json, "text_bytes", at);
  t.counts.blocks_repeated = count_field(json, "blocks_repeated", at);
  t.counts.blocks_foreign = count_field(json, "blocks_foreign", at);
  t.counts.addresses = count_field(json, "addresses", at);
  const Json& dropped = json_member(json, "dropped", at);
  known_fields(dropped, {"not UTF-8", "invalid line", "unreadable markup", "other language", "short", "repeated"},
               at + ": dropped");
  for (const auto& [reason, count] : dropped.items()) t.counts.dropped[reason] = count_field(dropped, reason, at);
  const Json& file = json_member(json, "file", at);
  t.file = {string_field(file, "path", at), count_field(file, "bytes", at), string_field(file, "sha256", at)};
  if (t.file.path != t.name + ".jsonl" || t.name.empty() || t.name.find('/') != std::string::npos || t.name[0] == '.')
    throw UsageError("{}: '{}' is not the name of its file", at, t.file.path);
  return t;
}

TextManifest read_text_manifest(const fs::path& text_folder) {
  const fs::path file = text_folder / "text.json";
  const std::string at = file.string();
  const Json json = read_json(file);
  known_fields(json, {"format", "version", "inputs", "texts"}, at);
  if (string_field(json, "format", at) != "molen-text" || count_field(json, "version", at) != 1)
    throw UsageError("{}: not a molen-text manifest of version 1", at);
  TextManifest manifest{string_field(json, "inputs", at), {}};
  const Json& texts = json_member(json, "texts", at);
  if (!texts.is_array()) throw UsageError("{}: 'texts' is not a list", at);
  for (std::size_t i = 0; i < texts.size(); ++i)
    manifest.texts.push_back(text_record_from_json(texts[i], fmt::format("{}: texts[{}]", at, i)));
  return manifest;
}

std::string format_text_manifest(const TextManifest& manifest) {
  Json texts = Json::array();
  for (const TextRecord& text : manifest.texts) texts.push_back(to_json(text));
  return Json{{"format", "molen-text"}, {"version", 1}, {"inputs", manifest.inputs}, {"texts", texts}}.dump(1) + "\n";
}

}  // namespace molen::data
