// Rows of a table of training runs (docs/formats/runs.md), which `molen plan --runs` predicts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "sim/intervals.h"

namespace molen::plan {

// One run: what a prediction may read of its row. A default that depends on the row's other columns alone has been
// filled in already; an optional field without a value is chosen by the prediction, because it depends on what fits.
struct Run {
  std::string id;
  // The model.
  std::int64_t layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, vocabulary = 0, sequence = 0;
  std::string mlp;  // "gelu" and "relu2": two matrices; "swiglu": three
  bool tied = false;
  // The machine.
  std::string gpu;  // as the row names the type: "A100-SXM-80GB"
  int gpus = 0, gpus_per_node = 8;
  std::optional<double> network_bytes_per_s;   // of one GPU in one direction, between nodes
  std::optional<double> peak_16bit, peak_fp8;  // FLOP/s
  // The layout. A row without tp, pp and dp has none, and the prediction chooses it, with the row's cp if has_cp. The
  // sizes are then 1 and say nothing.
  bool has_layout = true, has_cp = true;
  int tp = 1, pp = 1, dp = 1, cp = 1;
  std::optional<int> chunks;          // virtual stages of a pipeline rank
  std::string schedule;               // "1f1b", "interleaved_1f1b"; "" where it follows from `chunks`, which is chosen
  bool ends_count_as_layers = false;  // pp_split = embedding_and_head_as_layers
  bool sequence_parallel = false;     // has no effect where tp is 1
  std::optional<int> zero;            // 0 to 3
  int shard_group = 0;                // ranks that share one sharded copy; 0: all of dp x cp
  std::optional<std::int64_t> micro_batch;  // sequences
  std::int64_t global_batch = 0;            // sequences
  // How it computes.
  std::optional<std::string> recompute;  // "none", "selective_attention", "selective_op", "selective_layer", "full"
  std::string precision;                 // "fp16", "bf16", "fp8"
  std::string grad_dtype;                // "fp32", "fp16", "bf16"
  bool flash_attention = true, compiled = false;
  std::set<std::string> overlap;  // "tp", "pp", "dp"
  // Each column that was blank and the value that was taken for it. A row with these values gives the same run.
  std::map<std::string, std::string> assumed;

  bool operator==(const Run&) const = default;
};

// A row of the file: its id, and the run or the reason why it cannot be simulated, which names column and value.
struct RunRow {
  std::string id;
  Result<Run> run;
};

// Reads a table in the order of its rows. Columns may stand in any order; unknown ones and those with measurements are
// ignored, and so is every column that no field of Run comes from. Throws UsageError, with `origin` and the line, for a
// text that is not such a table: not UTF-8, a NUL byte, no column run_id or a column that an input shares its name
// with, a quote that does not end, a row without id, more than 4096 columns or 100000 rows.
std::vector<RunRow> read_runs(std::string_view csv, const std::string& origin);

// Returns a table for --help: each input column, its values, and what is taken for it where it is blank.
std::string columns_help();

// The prediction for a run.
struct RunPrediction {
  double step_s = 0.0;
  sim::Errors errors;            // of step_s, by their sources
  double model_flops = 0.0;      // of one step on all GPUs; attention counted as causal
  double memory_bytes = 0.0;     // in use on the fullest GPU, as its driver shows it
  double allocator_bytes = 0.0;  // the part that the training program's own buffers take
  bool fits = false;
  double memory_spread = 0.0;                 // relative, of both bytes: sim::ends_of says what it means
  double device_bytes = 0.0;                  // that the GPU has
  double bubble_s = 0.0;                      // of the stage that is idle for the longest time
  std::map<std::string, double> exposed_s;    // communication over each axis in which the stage computes nothing
  std::map<std::string, double> kinds_s;      // by kind of op: the work of the stage that computes for the longest time
  std::map<std::string, std::string> chosen;  // what the prediction chose for columns that were blank
};

// Returns the line that --output gets for a row: a JSON object with run_id and the figures, or run_id and error.
// `assumed` has the columns of run.assumed and of prediction.chosen, which wins. Throws Error, with the figure's name,
// for one that is negative or not finite, and for a time or rate of 0.
Json to_json(const Run& run, const RunPrediction& prediction);
Json to_json(const std::string& id, const std::string& error);

}  // namespace molen::plan
