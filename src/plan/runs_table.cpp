// Reads the rows of a table of runs: fills the defaults that depend on a row alone, and checks that its sizes agree.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/csv.h"
#include "base/error.h"
#include "base/utf8.h"
#include "plan/runs.h"
#include "plan/runs_columns.h"
#include "sim/attended.h"

namespace molen::plan {
namespace {

using ColumnPlaces = std::map<std::string, std::size_t, std::less<>>;
using Words = std::vector<std::string>;

constexpr std::size_t kMostColumns = 4096, kMostRuns = 100000;
// Limits of the columns. They are far above every real job.
constexpr std::int64_t kMostLayers = 10000, kMostHidden = 1 << 20, kMostWidth = 1 << 24, kMostHeads = 1 << 16;
constexpr std::int64_t kMostGpus = 1000000, kMostPerNode = 1024, kMostSequences = 10000000;
constexpr double kMostRate = 1e6;  // Gb/s and TFLOP/s

// Throws an error about a column when a size is no multiple of another one.
void require_multiple(const char* column, std::int64_t size, std::int64_t divisor, const char* divisor_name) {
  if (size % divisor != 0) throw UsageError("{}: {} is not a multiple of {} = {}", column, size, divisor_name, divisor);
}

void read_shape(RunCells& cells, Run& run) {
  static const Words kMlp = {"gelu", "relu2", "swiglu"};
  run.layers = cells.needed_count("layers", kMostLayers);
  run.hidden = cells.needed_count("hidden", kMostHidden);
  run.heads = cells.needed_count("heads", kMostHeads);
  require_multiple("hidden", run.hidden, run.heads, "heads");
  run.kv_heads = cells.count_or("kv_heads", kMostHeads, run.heads);
  require_multiple("heads", run.heads, run.kv_heads, "kv_heads");
  run.mlp = cells.word_or("mlp", kMlp, "gelu");
  // A swiglu of 8/3 hidden has the parameters of two matrices of 4 hidden.
  constexpr std::int64_t kTile = 256;
  const std::int64_t of_three = (8 * run.hidden + 3 * kTile - 1) / (3 * kTile) * kTile;
  run.ffn = cells.count_or("ffn", kMostWidth, run.mlp == "swiglu" ? of_three : 4 * run.hidden);
  run.vocabulary = cells.count_or("vocab", kMostWidth, 51200);
  run.tied = cells.yes_or("tied_embeddings", run.mlp == "gelu");
  run.sequence = cells.needed_count("seq", kMostWidth);
}

void read_rates(RunCells& cells, Run& run) {
  constexpr double kBytesOfGigabit = 1e9 / 8.0, kTera = 1e12;
  run.gpu = cells.needed_text("gpu");
  run.gpus_per_node = static_cast<int>(cells.count_or("gpus_per_node", kMostPerNode, 8));
  if (const auto gigabits = cells.quantity("network_gbps_per_gpu", kMostRate))
    run.network_bytes_per_s = *gigabits * kBytesOfGigabit;
  if (const auto peak = cells.quantity("peak_16bit_tflops", kMostRate)) run.peak_16bit = *peak * kTera;
  if (const auto peak = cells.quantity("peak_fp8_tflops", kMostRate)) run.peak_fp8 = *peak * kTera;
}

// Reads gpus and the sizes of the grid of ranks, whose product must be gpus.
void read_grid(RunCells& cells, Run& run) {
  const bool has_dp = !cells.blank("dp");
  // A cp of 1 alone says nothing about how the ranks share the model, so it is no layout.
  run.has_layout = has_dp || !cells.blank("tp") || !cells.blank("pp");
  run.has_cp = run.has_layout || !cells.blank("cp");
  if (!run.has_layout) {
    run.gpus = static_cast<int>(cells.needed_count("gpus", kMostGpus));
    run.cp = static_cast<int>(cells.count("cp", 1, kMostGpus).value_or(1));
    require_multiple("gpus", run.gpus, run.cp, "cp");
    return;
  }
  const std::int64_t tp = cells.count_or("tp", kMostGpus, 1), pp = cells.count_or("pp", kMostGpus, 1),
                     cp = cells.count_or("cp", kMostGpus, 1);
  const std::int64_t others = tp * pp * cp;
  std::int64_t gpus = 0, dp = 0;
  if (has_dp) {
    dp = cells.count("dp", 1, kMostGpus).value();
    const std::string grid = fmt::format("tp x pp x dp x cp = {} x {} x {} x {}", tp, pp, dp, cp);
    if (others > kMostGpus || others * dp > kMostGpus)
      throw UsageError("dp: {}, but {} is more than {} GPUs", dp, grid, kMostGpus);
    gpus = cells.count_or("gpus", kMostGpus, others * dp);
    if (gpus != others * dp) throw UsageError("gpus: {}, but {} = {}", gpus, grid, others * dp);
  } else {
    gpus = cells.needed_count("gpus", kMostGpus);
    if (gpus % others != 0)
      throw UsageError("gpus: {} is not a multiple of tp x pp x cp = {} x {} x {}", gpus, tp, pp, cp);
    dp = gpus / others;
    cells.assume("dp", std::to_string(dp));
  }
  run.gpus = static_cast<int>(gpus), run.tp = static_cast<int>(tp), run.pp = static_cast<int>(pp);
  run.dp = static_cast<int>(dp), run.cp = static_cast<int>(cp);
}

// Reads what the stages of a pipeline hold and in which order they work.
void read_stages(RunCells& cells, Run& run) {
  static const Words kSchedules = {"1f1b", "interleaved_1f1b"};
  static const Words kSplits = {"embedding_and_head_as_layers", "layers"};
  run.ends_count_as_layers = cells.word_or("pp_split", kSplits, "layers") != "layers";
  const auto chunks = cells.count("vpp", 1, kMostLayers);
  const auto schedule = cells.word("schedule", kSchedules);
  if (chunks) run.chunks = static_cast<int>(*chunks);
  const bool interleaved = schedule ? *schedule == kSchedules[1] : chunks.value_or(1) > 1;
  if (chunks && interleaved != (*chunks > 1))
    throw UsageError("schedule: '{}' needs a vpp {}, and vpp is {}", *schedule, interleaved ? "of at least 2" : "of 1",
                     *chunks);
  if (interleaved && run.has_layout && run.pp == 1)
    throw UsageError("{} needs a pp of at least 2, and pp is 1",
                     chunks ? fmt::format("vpp: {}", *chunks) : fmt::format("schedule: '{}'", *schedule));
  if (!chunks && ((run.has_layout && run.pp == 1) || (schedule && !interleaved))) {
    run.chunks = 1;
    cells.assume("vpp", "1");
  }
  if (schedule || run.chunks) {
    run.schedule = kSchedules[interleaved ? 1 : 0];
    if (!schedule) cells.assume("schedule", run.schedule);
  }
  if (!run.has_layout) return;
  const std::int64_t least = run.chunks.value_or(interleaved ? 2 : 1), places = run.pp * least,
                     units = run.layers + (run.ends_count_as_layers ? 2 : 0);
  if (units < places)
    throw UsageError("pp: {} stages of {} chunks are {}, and there are only {} layers to deal out", run.pp, least,
                     places, units);
}

// Checks that the ranks of a layout hold whole parts of the model and of the sequence.
void check_parts(const Run& run) {
  require_multiple("seq", run.sequence, run.cp, "cp");
  if (!run.has_layout) return;
  require_multiple("heads", run.heads, run.tp, "tp");
  require_multiple("ffn", run.ffn, run.tp, "tp");
  if (run.kv_heads % run.tp != 0 && run.tp % run.kv_heads != 0)
    throw UsageError("kv_heads: {} is neither a multiple nor a divisor of tp = {}", run.kv_heads, run.tp);
  if (run.sequence_parallel && run.tp > 1)
    require_multiple("seq", run.sequence, std::int64_t{run.tp} * run.cp, "tp x cp");
}

void read_sharding(RunCells& cells, Run& run) {
  // Since Korthikanti 2022, systems with tensor parallelism have sequence parallelism as well.
  const bool divides = run.sequence % (std::int64_t{run.tp} * run.cp) == 0;
  run.sequence_parallel = cells.yes_or("sequence_parallel", (run.tp > 1 || !run.has_layout) && divides);
  check_parts(run);
  if (const auto stage = cells.count("zero_stage", 0, 3)) run.zero = static_cast<int>(*stage);
  const int sharers = run.has_layout ? run.dp * run.cp : run.gpus;
  if (const auto group = cells.count("shard_group", 1, kMostGpus)) {
    if (sharers % *group != 0)
      throw UsageError("shard_group: {} does not divide {} = {}", *group, run.has_layout ? "dp x cp" : "gpus", sharers);
    run.shard_group = static_cast<int>(*group);
  }
}

void read_batch(RunCells& cells, Run& run) {
  run.global_batch = cells.needed_count("gbs", kMostSequences);
  run.micro_batch = cells.count("mbs", 1, kMostSequences);
  const std::int64_t micro = run.micro_batch.value_or(1);
  if (run.global_batch % (run.dp * micro) != 0)
    throw UsageError("gbs: {} is not a multiple of dp x mbs = {} x {}", run.global_batch, run.dp, micro);
}

// Reads words that are joined by "+".
std::set<std::string> joined_words(const RunCells& cells, const char* column, const Words& words) {
  std::set<std::string> found;
  std::string_view rest = cells.text(column);
  if (rest == "none") return found;
  while (true) {
    const std::size_t plus = rest.find('+');
    const std::string word(rest.substr(0, plus));
    if (std::find(words.begin(), words.end(), word) == words.end())
      throw UsageError("{}: {}: {} is unknown; known: {} (joined by '+'), or 'none'", column,
                       in_quotes(cells.text(column)), in_quotes(word), fmt::join(words, ", "));
    found.insert(word);
    if (plus == std::string_view::npos) return found;
    rest.remove_prefix(plus + 1);
  }
}

// Whether a run gathers parameters ahead whose source does not say what overlaps. Fully sharded data parallelism does,
// and other systems overlap only on request. In fp16 without fused attention it is that of before 2022: the change that
// made DeepSpeed's ZeRO-3 gather ahead brought bf16 as well (github.com/microsoft/DeepSpeed, pull request 1453).
bool gathers_ahead(const Run& run) {
  return run.zero == 3 && (run.precision != "fp16" || run.flash_attention);
}

void read_compute(RunCells& cells, Run& run) {
  static const Words kRecompute = {"none", "selective_attention", "selective_op", "selective_layer", "full"};
  static const Words kPrecisions = {"fp16", "bf16", "fp8"}, kGradients = {"fp32", "fp16", "bf16"};
  run.recompute = cells.word("recompute", kRecompute);
  run.precision = cells.word_or("precision", kPrecisions, "bf16");
  run.grad_dtype = cells.word_or("grad_dtype", kGradients, "fp32");
  const std::int64_t width = run.hidden / run.heads;
  run.flash_attention = cells.yes_or("flash_attention", sim::heads_in_tiles(width));
  if (run.flash_attention && !sim::heads_in_tiles(width))
    throw UsageError(
        "flash_attention: 'yes', but heads have hidden / heads = {} elements, and costs of fused attention are known "
        "for "
        "at most 256 and multiples of 8 alone; write 'no', or leave the cell blank",
        width);
  run.compiled = cells.yes_or("compile", false);
  if (cells.blank("overlap")) {
    if (gathers_ahead(run)) run.overlap = {"dp"};
    cells.assume("overlap", gathers_ahead(run) ? "dp" : "none");
    return;
  }
  run.overlap = joined_words(cells, "overlap", {"tp", "pp", "dp"});
  // Whoever hides another axis and shards fully gathers ahead, and does not say so.
  if (run.zero == 3 && !run.overlap.empty()) run.overlap.insert("dp");
}

Result<Run> run_of(const ColumnPlaces& places, const std::vector<std::string>& cells, const std::string& id) {
  Run run;
  run.id = id;
  RunCells row(places, cells, run.assumed);
  try {
    read_shape(row, run);
    read_rates(row, run);
    read_grid(row, run);
    read_stages(row, run);
    read_sharding(row, run);
    read_batch(row, run);
    read_compute(row, run);
  } catch (const UsageError& error) {
    return Failure{error.what()};
  }
  return run;
}

// Returns where each column stands. Two columns of one name are refused if a value is read from them.
ColumnPlaces places_of(const std::vector<std::string>& header, const std::string& where) {
  std::map<std::string, int, std::less<>> read;
  for (const RunColumn& column : run_columns()) read[column.name] = 0;
  ColumnPlaces places;
  for (std::size_t i = 0; i < header.size(); ++i) {
    const std::string name(without_spaces(header[i]));
    const auto input = read.find(name);
    if (input != read.end() && ++input->second > 1) throw UsageError("{}: two columns have the name {}", where, name);
    places.emplace(name, i);
  }
  if (!places.contains("run_id"))
    throw UsageError("{}: there is no column run_id; the first line must name the columns, with commas between them",
                     where);
  return places;
}

// Refuses text that no table has, before any of it can reach a message.
void refuse_binary(std::string_view csv, const std::string& origin) {
  if (const std::size_t at = csv.find('\0'); at != std::string_view::npos) {
    const std::string_view before = csv.substr(0, at);
    throw UsageError("{}:{}: the file has a NUL byte, so it is not a table in text", origin,
                     1 + std::count(before.begin(), before.end(), '\n'));
  }
  if (!valid_utf8(csv)) throw UsageError("{}: the file is not UTF-8; save the table with that encoding", origin);
}

}  // namespace

std::vector<RunRow> read_runs(std::string_view csv, const std::string& origin) {
  refuse_binary(csv, origin);
  CsvReader reader(csv, origin, kMostColumns);
  std::vector<std::string> header, cells;
  if (!reader.next(header)) throw UsageError("{}: the table is empty; its first line must name the columns", origin);
  const ColumnPlaces places = places_of(header, fmt::format("{}:{}", origin, reader.line()));
  const std::size_t id_place = places.find("run_id")->second;
  std::vector<RunRow> rows;
  while (reader.next(cells)) {
    const std::string where = fmt::format("{}:{}", origin, reader.line());
    if (rows.size() >= kMostRuns) throw UsageError("{}: more than {} rows", where, kMostRuns);
    if (id_place >= cells.size() || cells[id_place].empty())
      throw UsageError("{}: run_id: '' (blank); each row needs a name", where);
    std::string id = cells[id_place];
    auto run = cells.size() == header.size()
                   ? run_of(places, cells, id)
                   : Failure{fmt::format("run_id: {}: the row has {} cells, and the header names {} columns",
                                         in_quotes(id), cells.size(), header.size())};
    rows.push_back({std::move(id), std::move(run)});
  }
  return rows;
}

}  // namespace molen::plan
