#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "plan/runs_columns.h"
#include "plan/test_runs.h"

namespace molen::plan {
namespace {

// Returns the reason why the row with these cells in place of its own cannot be simulated.
std::string reason_of(CellsByName row, const CellsByName& changed) {
  for (const auto& [name, cell] : changed) row[name] = cell;
  return only_row(row).run.reason();
}

std::string full_reason(const CellsByName& changed) {
  return reason_of(full_row(), changed);
}

// Returns what is assumed for a column when the bare row has these cells as well; "-" for nothing.
std::string assumed_for(const std::string& column, const CellsByName& more) {
  CellsByName row = bare_row();
  for (const auto& [name, cell] : more) row[name] = cell;
  const plan::Run run = read_row(row);
  const auto found = run.assumed.find(column);
  return found == run.assumed.end() ? "-" : found->second;
}

std::string table_refusal(std::string_view csv) {
  try {
    read_runs(csv, "t.csv");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RunsTable, EveryColumnIsRead) {
  plan::Run r;
  r.id = "r";
  r.layers = 24, r.hidden = 2048, r.ffn = 5632, r.heads = 16, r.kv_heads = 8, r.vocabulary = 32000, r.sequence = 4096;
  r.mlp = "swiglu", r.tied = false;
  r.gpu = "B9", r.gpus = 64, r.gpus_per_node = 4;
  r.network_bytes_per_s = 25e9, r.peak_16bit = 312.5e12, r.peak_fp8 = 625e12;
  r.tp = 2, r.pp = 4, r.chunks = 3, r.dp = 4, r.cp = 2, r.schedule = "interleaved_1f1b";
  r.sequence_parallel = true, r.zero = 2, r.shard_group = 4, r.micro_batch = 2, r.global_batch = 64;
  r.recompute = "full", r.precision = "fp8", r.grad_dtype = "bf16", r.flash_attention = false, r.compiled = true;
  r.overlap = {"dp", "tp"};
  EXPECT_EQ(read_row(full_row()), r);
}

TEST(RunsTable, OtherWordsAreRead) {
  CellsByName row = full_row();
  row["pp_split"] = "embedding_and_head_as_layers";
  row["tied_embeddings"] = "yes", row["overlap"] = "none", row["mlp"] = "relu2", row["vpp"] = "1";
  row["schedule"] = "1f1b", row["sequence_parallel"] = "no", row["compile"] = "no", row["flash_attention"] = "yes";
  const plan::Run run = read_row(row);
  EXPECT_TRUE(run.ends_count_as_layers && run.tied && run.flash_attention);
  EXPECT_FALSE(run.sequence_parallel || run.compiled);
  EXPECT_EQ(run.overlap, std::set<std::string>{});
  EXPECT_EQ(run.schedule, "1f1b");
  EXPECT_EQ(run.mlp, "relu2");
  row["overlap"] = "tp+pp+dp+dp";
  EXPECT_EQ(read_row(row).overlap, (std::set<std::string>{"tp", "pp", "dp"}));
  // Fully sharded parameters are gathered ahead by whoever hides anything.
  row["overlap"] = "tp";
  EXPECT_EQ(read_row(row).overlap, std::set<std::string>{"tp"});
  row["zero_stage"] = "3";
  EXPECT_EQ(read_row(row).overlap, (std::set<std::string>{"tp", "dp"}));
  row["overlap"] = "none";
  EXPECT_EQ(read_row(row).overlap, std::set<std::string>{});
}

// A blank stays open where the default depends on what fits or on the machine; every other one is noted.
TEST(RunsTable, DefaultsOfABareRow) {
  const plan::Run run = read_row(bare_row());
  EXPECT_FALSE(run.has_layout || run.has_cp);
  EXPECT_EQ(run.schedule, "");
  EXPECT_FALSE(run.zero || run.micro_batch || run.recompute);
  EXPECT_FALSE(run.network_bytes_per_s || run.peak_16bit || run.peak_fp8);
  EXPECT_EQ(run.shard_group, 0);
  const CellsByName expected = {{"ffn", "8192"},
                                {"kv_heads", "16"},
                                {"mlp", "gelu"},
                                {"vocab", "51200"},
                                {"overlap", "none"},
                                {"grad_dtype", "fp32"},
                                {"precision", "bf16"},
                                {"tied_embeddings", "yes"},
                                {"compile", "no"},
                                {"pp_split", "layers"},
                                {"gpus_per_node", "8"},
                                {"flash_attention", "yes"},
                                {"sequence_parallel", "yes"}};
  EXPECT_EQ(run.assumed, expected);
  EXPECT_EQ(run.ffn, 8192);
  EXPECT_EQ(run.kv_heads, 16);
  EXPECT_EQ(run.vocabulary, 51200);
  EXPECT_TRUE(run.tied && run.flash_attention && run.sequence_parallel);
}

TEST(RunsTable, DefaultsOfTheModel) {
  EXPECT_EQ(assumed_for("ffn", {{"mlp", "relu2"}}), "8192");
  EXPECT_EQ(assumed_for("ffn", {{"mlp", "swiglu"}}), "5632");  // 5461.3 rounded up
  EXPECT_EQ(assumed_for("ffn", {{"mlp", "swiglu"}, {"hidden", "4096"}}), "11008");
  EXPECT_EQ(assumed_for("ffn", {{"mlp", "swiglu"}, {"hidden", "3072"}}), "8192");  // 8/3 hidden is a multiple already
  EXPECT_EQ(assumed_for("ffn", {{"ffn", "100"}}), "-");
  EXPECT_EQ(assumed_for("tied_embeddings", {{"mlp", "relu2"}}), "no");
  EXPECT_EQ(assumed_for("tied_embeddings", {{"mlp", "swiglu"}}), "no");
  EXPECT_EQ(assumed_for("kv_heads", {{"heads", "32"}}), "32");
}

TEST(RunsTable, DefaultsOfTheLayout) {
  const CellsByName tp = {{"tp", "4"}};
  EXPECT_EQ(assumed_for("dp", tp), "4");
  EXPECT_EQ(assumed_for("pp", tp), "1");
  EXPECT_EQ(assumed_for("cp", tp), "1");
  EXPECT_EQ(assumed_for("tp", {{"dp", "8"}, {"cp", "2"}}), "1");
  EXPECT_EQ(assumed_for("dp", {{"cp", "2"}}), "-");
  EXPECT_EQ(assumed_for("tp", {{"cp", "1"}}), "-");
  EXPECT_EQ(assumed_for("dp", {{"pp", "8"}}), "2");
  EXPECT_EQ(assumed_for("dp", {}), "-");
  EXPECT_EQ(assumed_for("vpp", {}), "-");
  EXPECT_EQ(assumed_for("gpus", {{"dp", "8"}, {"tp", "4"}, {"gpus", ""}}), "32");
  const plan::Run run = read_row([] {
    CellsByName row = bare_row();
    row["tp"] = "4", row["cp"] = "2";
    return row;
  }());
  EXPECT_TRUE(run.has_layout && run.has_cp);
  EXPECT_EQ(run.dp, 2);
}

// A search keeps the context ranks that a row states.
TEST(RunsTable, ContextRanksAloneAreNoLayout) {
  CellsByName row = bare_row();
  row["cp"] = "4";
  const plan::Run run = read_row(row);
  EXPECT_FALSE(run.has_layout);
  EXPECT_TRUE(run.has_cp);
  EXPECT_EQ(run.cp, 4);
  EXPECT_EQ(reason_of(row, {{"cp", "3"}}), "gpus: 16 is not a multiple of cp = 3");
  EXPECT_EQ(reason_of(row, {{"seq", "1022"}}), "seq: 1022 is not a multiple of cp = 4");
}

TEST(RunsTable, DefaultsOfThePipeline) {
  EXPECT_EQ(assumed_for("schedule", {{"pp", "1"}}), "1f1b");
  EXPECT_EQ(assumed_for("vpp", {{"pp", "1"}}), "1");
  EXPECT_EQ(assumed_for("schedule", {{"pp", "4"}}), "-");  // the prediction chooses it with vpp
  EXPECT_EQ(assumed_for("vpp", {{"pp", "4"}}), "-");
  EXPECT_EQ(assumed_for("schedule", {{"pp", "4"}, {"vpp", "2"}}), "interleaved_1f1b");
  EXPECT_EQ(assumed_for("schedule", {{"vpp", "2"}}), "interleaved_1f1b");
  EXPECT_EQ(assumed_for("vpp", {{"pp", "4"}, {"schedule", "interleaved_1f1b"}}), "-");
  EXPECT_EQ(assumed_for("vpp", {{"pp", "4"}, {"schedule", "1f1b"}}), "1");
}

TEST(RunsTable, DefaultsOfSequenceParallelismAndOverlap) {
  EXPECT_EQ(assumed_for("sequence_parallel", {{"tp", "2"}}), "yes");
  EXPECT_EQ(assumed_for("sequence_parallel", {{"pp", "2"}}), "no");
  EXPECT_EQ(assumed_for("sequence_parallel", {{"tp", "2"}, {"seq", "1023"}}), "no");
  EXPECT_EQ(assumed_for("sequence_parallel", {{"tp", "2"}, {"cp", "2"}, {"seq", "1022"}}), "no");
  EXPECT_EQ(assumed_for("overlap", {{"zero_stage", "3"}}), "dp");
  EXPECT_EQ(assumed_for("overlap", {{"zero_stage", "3"}, {"precision", "fp16"}}), "dp");
  EXPECT_EQ(assumed_for("overlap", {{"zero_stage", "3"}, {"flash_attention", "no"}}), "dp");
  EXPECT_EQ(assumed_for("overlap", {{"zero_stage", "3"}, {"precision", "fp16"}, {"flash_attention", "no"}}), "none");
  EXPECT_EQ(assumed_for("overlap", {{"zero_stage", "2"}}), "none");
  EXPECT_EQ(assumed_for("overlap", {{"zero_stage", "3"}, {"overlap", "none"}}), "-");
}

TEST(RunsTable, NeededColumns) {
  for (const char* column : {"layers", "hidden", "heads", "seq", "gpu", "gpus", "gbs"}) {
    const std::string reason = fmt::format("{}: '' (blank); a prediction needs this column", column);
    EXPECT_EQ(reason_of(bare_row(), {{column, ""}}), reason);
    EXPECT_EQ(reason_of(bare_row(), {{column, " \t"}}), reason);
    CellsByName row = bare_row();
    row.erase(column);
    EXPECT_EQ(only_row(row).run.reason(), reason);
  }
  EXPECT_EQ(reason_of(bare_row(), {{"gpus", ""}, {"tp", "2"}}), "gpus: '' (blank); a prediction needs this column");
}

TEST(RunsTable, CountsAreWholeAndWithinLimits) {
  const std::map<std::string, std::int64_t> limits = {
      {"layers", 10000},  {"hidden", 1 << 20}, {"ffn", 1 << 24},  {"heads", 1 << 16},      {"kv_heads", 1 << 16},
      {"vocab", 1 << 24}, {"seq", 1 << 24},    {"gpus", 1000000}, {"gpus_per_node", 1024}, {"tp", 1000000},
      {"pp", 1000000},    {"dp", 1000000},     {"cp", 1000000},   {"vpp", 10000},          {"shard_group", 1000000},
      {"mbs", 10000000},  {"gbs", 10000000}};
  for (const auto& [column, most] : limits) {
    const std::string above = std::to_string(most + 1);
    for (const std::string& bad : {std::string("0"), std::string("-8"), std::string("2.5"), std::string("nan"),
                                   std::string("inf"), std::string("1e999"), std::string("0x10"), std::string("8 8"),
                                   std::string("8,0"), std::string("many"), above})
      EXPECT_EQ(full_reason({{column, bad}}),
                fmt::format("{}: '{}' is not a whole number from 1 to {}", column, bad, most));
    EXPECT_EQ(full_reason({{column, std::to_string(most)}}).find("is not a whole number"), std::string::npos);
  }
  for (const char* bad : {"4", "-1", "1.5"})
    EXPECT_EQ(full_reason({{"zero_stage", bad}}),
              fmt::format("zero_stage: '{}' is not a whole number from 0 to 3", bad));
  for (int stage = 0; stage <= 3; ++stage) {
    CellsByName row = full_row();
    row["zero_stage"] = std::to_string(stage);
    EXPECT_EQ(read_row(row).zero, stage);
  }
}

// Programs write a column with blanks as numbers with a fraction.
TEST(RunsTable, WholeNumbersInOtherForms) {
  CellsByName row = full_row();
  row["layers"] = "24.0", row["seq"] = " 4096 ", row["hidden"] = "2.048e3", row["zero_stage"] = "2.0";
  EXPECT_EQ(read_row(row), read_row(full_row()));
}

TEST(RunsTable, QuantitiesArePositiveAndFinite) {
  for (const char* column : {"network_gbps_per_gpu", "peak_16bit_tflops", "peak_fp8_tflops"})
    for (const char* bad : {"0", "-1", "nan", "inf", "-inf", "1e7", "1e999", "fast", "1 2"})
      EXPECT_EQ(full_reason({{column, bad}}),
                fmt::format("{}: '{}' is not a number above 0 and up to 1000000", column, bad));
  EXPECT_EQ(full_reason({{"network_gbps_per_gpu", "33.3"}}), "");
}

TEST(RunsTable, Words) {
  EXPECT_EQ(full_reason({{"mlp", "gleu"}}), "mlp: 'gleu' is unknown; known: gelu, relu2, swiglu; did you mean 'gelu'?");
  EXPECT_EQ(full_reason({{"schedule", "gpipe"}}), "schedule: 'gpipe' is unknown; known: 1f1b, interleaved_1f1b");
  EXPECT_EQ(
      full_reason({{"recompute", "some"}}),
      "recompute: 'some' is unknown; known: none, selective_attention, selective_op, selective_layer, full; did you "
      "mean 'none'?");
  EXPECT_EQ(full_reason({{"precision", "int4"}}), "precision: 'int4' is unknown; known: fp16, bf16, fp8");
  EXPECT_EQ(full_reason({{"grad_dtype", "fp8"}}).substr(0, 45), "grad_dtype: 'fp8' is unknown; known: fp32, fp");
  EXPECT_EQ(full_reason({{"pp_split", "even"}}),
            "pp_split: 'even' is unknown; known: embedding_and_head_as_layers, layers");
  for (const char* column : {"tied_embeddings", "sequence_parallel", "flash_attention", "compile"})
    EXPECT_EQ(full_reason({{column, "maybe"}}), fmt::format("{}: 'maybe' is unknown; known: yes, no", column));
  for (const char* bad : {"tp+", "+tp", "tp dp", "none+tp", "cp"})
    EXPECT_EQ(full_reason({{"overlap", bad}}).find(fmt::format("overlap: '{}': '", bad)), 0U) << bad;
  EXPECT_EQ(full_reason({{"overlap", "tp+cp"}}),
            "overlap: 'tp+cp': 'cp' is unknown; known: tp, pp, dp (joined by '+'), or 'none'");
}

// Fused attention has no kernels for such heads, so nothing is predicted of them by those of others.
TEST(RunsTable, FusedAttentionNeedsHeadsThatItHasKernelsFor) {
  // 320 elements a head, 100, and 256: the last has kernels.
  const std::vector<std::pair<std::int64_t, bool>> widths{{320, false}, {100, false}, {256, true}, {8, true}};
  for (const auto& [width, fits] : widths) {
    CellsByName row = bare_row();
    row["heads"] = "8", row["hidden"] = std::to_string(8 * width);
    EXPECT_EQ(read_row(row).flash_attention, fits) << width;
    EXPECT_EQ(reason_of(row, {{"flash_attention", "no"}}), "");
    EXPECT_EQ(reason_of(row, {{"flash_attention", "yes"}}),
              fits ? ""
                   : fmt::format("flash_attention: 'yes', but heads have hidden / heads = {} elements, and costs of "
                                 "fused attention are known for at most 256 and multiples of 8 alone; write 'no', or "
                                 "leave the cell blank",
                                 width));
  }
}

TEST(RunsTable, SizesOfTheModelDivide) {
  EXPECT_EQ(full_reason({{"heads", "24"}}), "hidden: 2048 is not a multiple of heads = 24");
  EXPECT_EQ(full_reason({{"kv_heads", "3"}}), "heads: 16 is not a multiple of kv_heads = 3");
  EXPECT_EQ(full_reason({{"tp", "8"}, {"gpus", "256"}, {"hidden", "2040"}, {"heads", "12"}, {"kv_heads", "12"}}),
            "heads: 12 is not a multiple of tp = 8");
  EXPECT_EQ(full_reason({{"ffn", "5633"}}), "ffn: 5633 is not a multiple of tp = 2");
  EXPECT_EQ(full_reason({{"heads", "32"}, {"kv_heads", "4"}, {"tp", "8"}, {"gpus", "256"}}), "");  // replicated
  EXPECT_EQ(
      full_reason(
          {{"hidden", "2040"}, {"ffn", "6000"}, {"heads", "60"}, {"kv_heads", "10"}, {"tp", "4"}, {"gpus", "128"}}),
      "kv_heads: 10 is neither a multiple nor a divisor of tp = 4");
  EXPECT_EQ(full_reason({{"seq", "4095"}}), "seq: 4095 is not a multiple of cp = 2");
  EXPECT_EQ(full_reason({{"seq", "4094"}}), "seq: 4094 is not a multiple of tp x cp = 4");
  EXPECT_EQ(full_reason({{"seq", "4094"}, {"sequence_parallel", "no"}}), "");
}

TEST(RunsTable, SizesOfTheGridAgree) {
  EXPECT_EQ(full_reason({{"gpus", "32"}}), "gpus: 32, but tp x pp x dp x cp = 2 x 4 x 4 x 2 = 64");
  EXPECT_EQ(full_reason({{"dp", ""}, {"gpus", "40"}}), "gpus: 40 is not a multiple of tp x pp x cp = 2 x 4 x 2");
  EXPECT_EQ(full_reason({{"dp", ""}, {"gpus", "32"}, {"shard_group", ""}}), "");
  EXPECT_EQ(full_reason({{"dp", "1000000"}}),
            "dp: 1000000, but tp x pp x dp x cp = 2 x 4 x 1000000 x 2 is more than 1000000 GPUs");
  // The product of the three others is near the limit of 64-bit integers, and that of all is beyond it.
  const CellsByName huge = {{"tp", "1000000"}, {"pp", "1000000"}, {"cp", "1000000"}};
  CellsByName with_dp = huge;
  with_dp["dp"] = "1000000";
  EXPECT_EQ(full_reason(with_dp).find("dp: 1000000, but"), 0U);
  CellsByName without_dp = huge;
  without_dp["dp"] = "";
  EXPECT_EQ(full_reason(without_dp).find("gpus: 64 is not a multiple"), 0U);
  EXPECT_EQ(full_reason({{"shard_group", "3"}}), "shard_group: 3 does not divide dp x cp = 8");
  EXPECT_EQ(reason_of(bare_row(), {{"shard_group", "3"}}), "shard_group: 3 does not divide gpus = 16");
  EXPECT_EQ(full_reason({{"gpus_per_node", "7"}}), "");  // the last node may have idle GPUs
}

TEST(RunsTable, StagesAgree) {
  EXPECT_EQ(full_reason({{"schedule", "1f1b"}}), "schedule: '1f1b' needs a vpp of 1, and vpp is 3");
  EXPECT_EQ(full_reason({{"vpp", "1"}}), "schedule: 'interleaved_1f1b' needs a vpp of at least 2, and vpp is 1");
  EXPECT_EQ(full_reason({{"pp", "1"}, {"gpus", "16"}}), "vpp: 3 needs a pp of at least 2, and pp is 1");
  EXPECT_EQ(full_reason({{"layers", "11"}}),
            "pp: 4 stages of 3 chunks are 12, and there are only 11 layers to deal out");
  EXPECT_EQ(full_reason({{"layers", "10"}, {"pp_split", "embedding_and_head_as_layers"}}), "");
  EXPECT_EQ(full_reason({{"layers", "13"}}), "");  // stages may differ by a layer
}

TEST(RunsTable, BatchesDivide) {
  EXPECT_EQ(full_reason({{"gbs", "60"}}), "gbs: 60 is not a multiple of dp x mbs = 4 x 2");
  EXPECT_EQ(full_reason({{"gbs", "60"}, {"mbs", ""}}), "");
  EXPECT_EQ(full_reason({{"gbs", "63"}, {"mbs", ""}}), "gbs: 63 is not a multiple of dp x mbs = 4 x 1");
  EXPECT_EQ(reason_of(bare_row(), {{"mbs", "3"}}), "gbs: 64 is not a multiple of dp x mbs = 1 x 3");
}

// A message never repeats a whole cell of a hostile table, and never a part of a character.
TEST(RunsTable, LongValuesAreShortened) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "\xC3\xA9";  // e with an acute accent
  const std::string reason = full_reason({{"layers", "x" + text}});
  EXPECT_LT(reason.size(), 200U);
  EXPECT_TRUE(valid_utf8(reason));
  EXPECT_NE(reason.find("...' is not a whole number"), std::string::npos);
}

TEST(RunsTable, RefusedTables) {
  EXPECT_EQ(table_refusal(""), "t.csv: the table is empty; its first line must name the columns");
  EXPECT_EQ(table_refusal("\n\n"), "t.csv: the table is empty; its first line must name the columns");
  EXPECT_EQ(table_refusal("layers;run_id\n"),
            "t.csv:1: there is no column run_id; the first line must name the columns, with commas between them");
  EXPECT_EQ(table_refusal("run_id,seq,tp, seq \n"), "t.csv:1: two columns have the name seq");
  EXPECT_EQ(table_refusal("run_id,run_id\n"), "t.csv:1: two columns have the name run_id");
  EXPECT_EQ(table_refusal("run_id,note,note\nr,1,2\n"), "accepted");
  EXPECT_EQ(table_refusal("run_id,seq\na,1\n,2\n"), "t.csv:3: run_id: '' (blank); each row needs a name");
  EXPECT_EQ(table_refusal("seq,run_id\n1\n"), "t.csv:2: run_id: '' (blank); each row needs a name");
  EXPECT_EQ(table_refusal("run_id,seq\na,\"1\n"),
            "t.csv:2: a cell begins with a quote on this line, and the quote does not end");
  EXPECT_EQ(table_refusal(std::string_view("run_id,seq\na,\0\n", 15)),
            "t.csv:2: the file has a NUL byte, so it is not a table in text");
  EXPECT_EQ(table_refusal("run_id\n\xE9\n"), "t.csv: the file is not UTF-8; save the table with that encoding");
  EXPECT_EQ(table_refusal("run_id\n"), "accepted");
}

// Each of these is refused before memory or time grow with its square, or with more than its size.
TEST(RunsTable, HostileTables) {
  std::string wide = "run_id";
  for (int i = 0; i < 100000; ++i) wide += ",c" + std::to_string(i);
  EXPECT_EQ(table_refusal(wide + "\n"), "t.csv:1: more than 4096 cells in a row");
  EXPECT_EQ(table_refusal("run_id\nr" + std::string(100000, ',')), "t.csv:2: more than 4096 cells in a row");
  EXPECT_EQ(table_refusal("run_id\n\"" + std::string(1 << 24, 'x')),
            "t.csv:2: a cell begins with a quote on this line, and the quote does not end");
  EXPECT_EQ(table_refusal("run_id\n\"" + std::string((1 << 22) + 1, '"')), "accepted");
  EXPECT_EQ(table_refusal("run_id\n" + std::string(1 << 22, '\n')), "accepted");
  std::string rows = "run_id\n";
  for (int i = 0; i < 100000; ++i) rows += "r,\n";
  EXPECT_EQ(table_refusal(rows), "accepted");
  EXPECT_EQ(table_refusal(rows + "r,\n"), "t.csv:100002: more than 100000 rows");
}

// A row with another number of cells has its own error, and the rows after it are read.
TEST(RunsTable, RowsWithOtherNumbersOfCells) {
  const auto rows = read_runs("run_id,seq\na\nb,1,2\nc,1\n", "t.csv");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].run.reason(), "run_id: 'a': the row has 1 cells, and the header names 2 columns");
  EXPECT_EQ(rows[1].run.reason(), "run_id: 'b': the row has 3 cells, and the header names 2 columns");
  EXPECT_EQ(rows[2].run.reason(), "layers: '' (blank); a prediction needs this column");
}

// The table of published runs is read whole. Five of its rows give no batch, and no other row has an error.
TEST(RunsTable, PublishedRuns) {
  const auto rows = read_runs(read_file("bench/published/runs.csv"), "runs.csv");
  EXPECT_EQ(rows.size(), 263U);
  std::map<std::string, std::string> errors;
  for (const RunRow& row : rows)
    if (!row.run) errors[row.id] = row.run.reason();
  const auto needs = [](const char* column) {
    return fmt::format("{}: '' (blank); a prediction needs this column", column);
  };
  const CellsByName expected = {{"frontier-dash2023-001", needs("gpus")},
                                {"frontier-dash2023-002", needs("gbs")},
                                {"frontier-dash2023-003", needs("gbs")},
                                {"crusher-yin2023-001", needs("seq")},
                                {"summit-yin2023-001", needs("seq")}};
  EXPECT_EQ(errors, expected);
}

TEST(RunsTable, HelpAndPageNameEveryColumn) {
  const std::string help = columns_help(), page = read_file("docs/formats/runs.md");
  for (const RunColumn& column : run_columns()) {
    EXPECT_NE(help.find(fmt::format("\n{:<22}{}", column.name, column.values)), std::string::npos) << column.name;
    EXPECT_NE(help.find(column.blank), std::string::npos) << column.name;
    EXPECT_NE(page.find(fmt::format("`{}`", column.name)), std::string::npos) << column.name;
  }
  for (const auto& [name, cell] : full_row()) EXPECT_NE(help.find("\n" + name + " "), std::string::npos) << name;
}

}  // namespace
}  // namespace molen::plan
