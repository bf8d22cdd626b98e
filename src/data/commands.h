// `molen data fetch|prepare|inspect|verify`: what the command line calls. Each takes its options and the stream for its
// table or JSON, and returns the exit status: 0, or 2 where shards are not what their manifest says. They throw
// UsageError (exit 2) and Error (exit 1). `progress` gets lines for a human and may be empty.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace molen::data {

namespace fs = std::filesystem;

using ProgressLine = std::function<void(const std::string&)>;
// So much of a stage ("text", "tokens") is done, 0 to 1, and what is next. Called often.
using ProgressShare = std::function<void(std::string_view stage, double share, std::string_view doing)>;

struct FetchOptions {
  std::string set;    // "demo"
  fs::path folder;    // where to put it
  bool list = false;  // show the known sets instead
  bool json = false;
};
int fetch_command(const FetchOptions& options, std::ostream& out, const ProgressLine& progress);

// Writes below `output`:
//   text/text.json                     sources, licences, counts, what was dropped and why
//   text/<split>/<name>.jsonl          one document a line: id, language, text
// and, given a tokenizer,
//   <split>/<name>.idx, .bin, <split>/manifest.json      token shards; <split> is "train" or "heldout"
// Sources and shards whose inputs have not changed are not read again. Text that is not finished stands in text.part:
// a run that was killed, or ended at a source that cannot be read, is gone on with. A line of JSON that is none, or has
// no text, is named and left out; more than one in a hundred end the run. One process at a time may write to `output`.
struct PrepareOptions {
  std::vector<fs::path>
      sources;  // folders made by `fetch`; .jsonl, .jsonl.gz, .jsonl.zst; plain text files, folders of them
  fs::path output;
  std::string language;         // of files; "" = the line's own, else detected
  std::string licence;          // SPDX expression (data/spdx.h), compulsory for files
  std::string split = "train";  // of files; packages have theirs
  fs::path tokenizer;           // "" = text only
  int threads = 0;              // 0 = all cores
  bool json = false;
  ProgressShare at;  // may be empty
};
int prepare_command(const PrepareOptions& options, std::ostream& out, const ProgressLine& progress);

struct InspectOptions {
  fs::path path;  // a folder with a manifest.json, that file, or what `prepare` wrote (all splits)
  bool json = false;
};
int inspect_command(const InspectOptions& options, std::ostream& out);

// Every hash, every count, every token below the vocabulary, the end-of-text token at the end of every document; with a
// tokenizer, its fingerprint too. All findings are listed on `err` (with `json` on `out` too) before it
// returns 2.
struct VerifyOptions {
  fs::path path;
  fs::path tokenizer;  // "" = not compared
  bool json = false;
};
int verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& err);

}  // namespace molen::data
