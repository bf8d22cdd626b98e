// Entry points of `molen data fetch|prepare|inspect|verify`. Each takes its options and the stream for its table or
// JSON, and returns the exit status: 0, or 2 when shards differ from their manifest. They throw UsageError (exit 2) and
// Error (exit 1). `progress` receives lines for a human and may be empty.
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
// Reports the finished share (0 to 1) of a stage ("text", "tokens") and the next item. Called often.
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
// Sources and shards whose inputs have not changed are not read again. Unfinished text is kept in text.part: the next
// run continues from it after a run was killed or stopped at an unreadable source. An invalid JSON line, or a line
// without text, is reported and skipped; more than one such line in a hundred ends the run. One process at a time may
// write to `output`.
struct PrepareOptions {
  std::vector<fs::path>
      sources;  // folders made by `fetch`; .jsonl, .jsonl.gz, .jsonl.zst; plain text files, folders of them
  fs::path output;
  std::string language;         // language of files; "" = the line's own, else detected
  std::string licence;          // SPDX expression (data/spdx.h), compulsory for files
  std::string split = "train";  // split of files; a package has its own
  fs::path tokenizer;           // "" = text only
  int threads = 0;              // 0 = all cores
  bool json = false;
  ProgressShare at;  // may be empty
};
int prepare_command(const PrepareOptions& options, std::ostream& out, const ProgressLine& progress);

struct InspectOptions {
  fs::path path;  // a folder with a manifest.json, that file, or the output of `prepare` (all splits)
  bool json = false;
};
int inspect_command(const InspectOptions& options, std::ostream& out);

// Checks every hash and every count, that every token is below the vocabulary, and that every document ends with the
// end-of-text token; given a tokenizer, its fingerprint too. Before it returns 2, the command lists all findings on
// `err` (with `json` on `out` too).
struct VerifyOptions {
  fs::path path;
  fs::path tokenizer;  // "" = not compared
  bool json = false;
};
int verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& err);

}  // namespace molen::data
