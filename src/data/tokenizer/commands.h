// `molen tokenizer train|encode|decode` on streams.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "data/tokenizer/train.h"

namespace molen::data {

struct EncodeCommand {
  std::filesystem::path tokenizer;
  bool jsonl = false;  // lines {"text": ...} to lines {"ids": [...]}; otherwise the whole input to one line of ids
  bool allow_special = false;
  bool add_template = false;
  int threads = 0;  // 0 = all cores
};
// Throws UsageError naming the line for malformed input. The output of earlier lines has then been written.
void encode_command(const EncodeCommand& command, std::istream& in, std::ostream& out);

struct DecodeCommand {
  std::filesystem::path tokenizer;
  bool jsonl = false;  // lines {"ids": [...]} to lines {"text": ...}; otherwise ids between white space to bytes
  bool skip_special = false;
};
// Text in JSON must be UTF-8: with `jsonl`, invalid bytes become U+FFFD.
void decode_command(const DecodeCommand& command, std::istream& in, std::ostream& out);

struct TrainCommand {
  TrainOptions options;
  std::vector<std::filesystem::path> inputs;  // *.jsonl: one document a line; others: one document a file; none: `in`
  bool jsonl = false;                         // how to read `in`
  std::filesystem::path output;               // tokenizer.json
};
// Writes the file and a line about it to `log`.
void train_command(const TrainCommand& command, std::istream& in, std::ostream& log);

}  // namespace molen::data
