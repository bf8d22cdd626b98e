// Rows of a table of runs, and such tables as text, for tests.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "plan/runs.h"

namespace molen::plan {

using CellsByName = std::map<std::string, std::string>;

// A row in which no input is blank.
inline CellsByName full_row() {
  return {{"run_id", "r"},
          {"layers", "24"},
          {"hidden", "2048"},
          {"ffn", "5632"},
          {"mlp", "swiglu"},
          {"heads", "16"},
          {"kv_heads", "8"},
          {"vocab", "32000"},
          {"tied_embeddings", "no"},
          {"seq", "4096"},
          {"gpu", "B9"},
          {"gpus", "64"},
          {"gpus_per_node", "4"},
          {"network_gbps_per_gpu", "200"},
          {"peak_16bit_tflops", "312.5"},
          {"peak_fp8_tflops", "625"},
          {"tp", "2"},
          {"pp", "4"},
          {"vpp", "3"},
          {"schedule", "interleaved_1f1b"},
          {"pp_split", "layers"},
          {"dp", "4"},
          {"cp", "2"},
          {"sequence_parallel", "yes"},
          {"zero_stage", "2"},
          {"shard_group", "4"},
          {"mbs", "2"},
          {"gbs", "64"},
          {"recompute", "full"},
          {"precision", "fp8"},
          {"grad_dtype", "bf16"},
          {"flash_attention", "no"},
          {"overlap", "tp+dp"},
          {"compile", "yes"}};
}

// A row with the columns that have no default.
inline CellsByName bare_row() {
  return {{"run_id", "r"}, {"layers", "24"}, {"hidden", "2048"}, {"heads", "16"},
          {"seq", "1024"}, {"gpu", "B9"},    {"gpus", "16"},     {"gbs", "64"}};
}

inline std::string quoted_cell(const std::string& cell) {
  std::string text = "\"";
  for (const char c : cell) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

// Returns a table whose columns are in the given order.
inline std::string table_of(const std::vector<CellsByName>& rows, const std::vector<std::string>& columns) {
  std::string text;
  for (std::size_t i = 0; i < columns.size(); ++i) text += (i == 0 ? "" : ",") + quoted_cell(columns[i]);
  text += "\n";
  for (const CellsByName& row : rows) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const auto cell = row.find(columns[i]);
      text += (i == 0 ? "" : ",") + (cell == row.end() ? "" : quoted_cell(cell->second));
    }
    text += "\n";
  }
  return text;
}

inline std::vector<std::string> columns_of(const std::vector<CellsByName>& rows) {
  std::set<std::string> names;
  for (const CellsByName& row : rows)
    for (const auto& [name, cell] : row) names.insert(name);
  return {names.begin(), names.end()};
}

inline RunRow only_row(const CellsByName& row) {
  return read_runs(table_of({row}, columns_of({row})), "t.csv").at(0);
}

inline Run read_row(const CellsByName& row) {
  const RunRow read = only_row(row);
  EXPECT_EQ(read.run.reason(), "");
  return read.run.value();
}

}  // namespace molen::plan
