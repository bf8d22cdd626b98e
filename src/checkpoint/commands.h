// `molen checkpoint list|verify|export|import`, apart from reading the command line. Results go to `out`, notes to
// `err`.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "base/file.h"

namespace molen::checkpoint {

struct ListOptions {
  fs::path path;  // a run directory, or a directory of checkpoints
  bool json = false;
};
void list_command(const ListOptions& options, std::ostream& out, std::ostream& err);

struct VerifyOptions {
  fs::path path;  // a checkpoint; or the newest of a run or a directory of checkpoints
  bool json = false;
  bool digest = false;  // also print the layout-independent digest of all tensors
};
void verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& err);

struct ExportOptions {
  fs::path source;       // a run, a checkpoint, or a directory of checkpoints
  fs::path destination;  // absent or empty
  std::string dtype;     // "fp32", "bf16", "fp16", "fp64"; empty: as stored
  std::int64_t max_shard_bytes = 5'000'000'000;
  std::optional<fs::path> tokenizer;  // tokenizer.json; absent: the one attached to the checkpoint, if any
  bool json = false;
};
void export_command(const ExportOptions& options, std::ostream& out, std::ostream& err);

struct ImportOptions {
  fs::path source;       // a Hugging Face directory
  fs::path destination;  // gets step-000000000/; must hold no checkpoint yet
  bool json = false;
};
void import_command(const ImportOptions& options, std::ostream& out, std::ostream& err);

}  // namespace molen::checkpoint
