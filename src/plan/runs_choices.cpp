#include "plan/runs_choices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace molen::plan {
namespace {

// A step with more forwards of layers in one replica would take gigabytes to simulate. With more elements in the widest
// values of all layers, bytes would exceed 2^63.
constexpr std::int64_t kMostForwards = 1 << 19;
constexpr double kMostElements = 0x1p56;

constexpr int kMostChunks = 32;                   // more chunks send more messages, and hardly shorten the bubble
constexpr std::int64_t kShortForwards = 1 << 12;  // of layers, in a step that is simulated as it is while choosing
constexpr std::int64_t kMostShort = 1 << 14;      // the same, of a step that stands for a longer one
constexpr int kMostStages = 64;                   // of a layout that is chosen
constexpr int kTriedLayouts = 3;  // with all micro-batches and chunks, of those that a short step shows to be fast

std::int64_t units_of(const Run& run) {
  return run.layers + (run.ends_count_as_layers ? 2 : 0);
}

// Whether so many chunks have the same number of layers, and each at least one of its own.
bool deals_out(const Run& run, std::int64_t chunks) {
  return units_of(run) % chunks == 0 && units_of(run) / chunks > (run.ends_count_as_layers ? 1 : 0);
}

bool better(const RunPrediction& p, const std::optional<RunPrediction>& best) {
  return !best || (p.fits && (!best->fits || p.step_s < best->step_s));
}

// Fills the blanks whose defaults depend on what fits: no recomputation and ZeRO-0 where they fit.
RunPrediction predict_open(const Run& run, const Predict& predict) {
  std::optional<RunPrediction> last;
  const std::vector<int> zeros = run.zero ? std::vector{*run.zero} : std::vector{0, 1};
  const std::vector<std::string> recomputes =
      run.recompute ? std::vector{*run.recompute} : std::vector<std::string>{"none", "full"};
  for (const std::string& recompute : recomputes)
    for (const int zero : zeros) {
      Run filled = run;
      filled.zero = zero, filled.recompute = recompute;
      last = predict(filled);
      if (!run.zero) last->chosen["zero_stage"] = std::to_string(zero);
      if (!run.recompute) last->chosen["recompute"] = recompute;
      if (last->fits || (zero == 0 && run.dp * run.cp == 1 && recompute == recomputes.back())) return *last;
    }
  return *last;
}

// Returns the micro-batches that a run may have: its own, or powers of two.
std::vector<std::int64_t> micro_batches_of(const Run& run) {
  if (run.micro_batch) return {*run.micro_batch};
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 1; size <= 64 && run.global_batch % (size * run.dp) == 0; size *= 2) sizes.push_back(size);
  return sizes;
}

// Returns the chunks of a pipeline rank that a run may have: its own, or all that deal out the same number of layers.
// Megatron-LM interleaves only where the micro-batches are a multiple of the stages (Narayanan et al. 2021, section
// 2.2.2).
std::vector<int> chunks_of(const Run& run) {
  if (run.chunks) return {*run.chunks};
  const bool interleaves = run.schedule == "interleaved_1f1b";
  std::vector<int> all;
  if (!interleaves) all.push_back(1);
  const std::int64_t micro_batches = run.global_batch / (run.micro_batch.value_or(1) * run.dp);
  for (int chunks = 2; run.pp > 1 && chunks <= kMostChunks; ++chunks)
    if (deals_out(run, run.pp * chunks) && micro_batches % run.pp == 0) all.push_back(chunks);
  if (all.empty()) all.push_back(2);
  return all;
}

// Fills a blank micro-batch and blank chunks: those with the fastest step of all that fit, or the fewest if none does.
RunPrediction fastest(const Run& run, const Predict& predict) {
  std::optional<RunPrediction> best;
  Run filled = run;
  for (const std::int64_t size : micro_batches_of(run)) {
    filled.micro_batch = size, filled.chunks = run.chunks;
    if (!run.micro_batch && too_large(filled)) continue;
    bool any_fits = false;
    for (const int chunks : chunks_of(filled)) {
      filled.chunks = chunks;
      RunPrediction p = predict_open(filled, predict);
      any_fits = any_fits || p.fits;
      if (!run.micro_batch) p.chosen["mbs"] = std::to_string(size);
      if (!run.chunks) p.chosen["vpp"] = std::to_string(chunks);
      if (run.schedule.empty()) p.chosen["schedule"] = chunks > 1 ? "interleaved_1f1b" : "1f1b";
      if (better(p, best)) best = std::move(p);
    }
    if (best && best->fits && !any_fits) break;  // larger micro-batches need more memory
  }
  if (!best && run.global_batch % run.dp == 0) throw UsageError("{}", *too_large(run));
  if (!best) throw UsageError("gbs: {} sequences do not divide over dp = {}", run.global_batch, run.dp);
  return *best;
}

// Whether one of the micro-batches that a run may have makes a step that can be simulated.
bool has_short_enough(const Run& run) {
  Run sized = run;
  for (const std::int64_t size : micro_batches_of(run)) {
    sized.micro_batch = size;
    if (!too_large(sized)) return true;
  }
  return false;
}

// Returns the layouts that the ranks of a run may have: tensor ranks within a node, stages of as many layers each, and
// whole sequences for each data-parallel rank, in at least as many micro-batches as there are stages.
std::vector<Run> layouts_of(const Run& run) {
  std::vector<Run> all;
  Run layout = run;
  layout.has_layout = true;
  const int chunks = run.chunks.value_or(run.schedule == "interleaved_1f1b" ? 2 : 1);
  for (layout.tp = 1; layout.tp <= std::min(run.gpus_per_node, run.gpus); layout.tp *= 2)
    for (layout.pp = chunks > 1 ? 2 : 1; layout.pp <= std::min<std::int64_t>(units_of(run), kMostStages); ++layout.pp) {
      const int ranks = layout.tp * layout.pp * run.cp;
      const bool parts = run.heads % layout.tp == 0 && run.ffn % layout.tp == 0 &&
                         (run.kv_heads % layout.tp == 0 || layout.tp % run.kv_heads == 0) &&
                         deals_out(run, layout.pp * chunks);
      if (!parts || run.gpus % ranks != 0 ||
          (run.shard_group > 0 && run.gpus / (layout.tp * layout.pp) % run.shard_group != 0))
        continue;
      layout.dp = run.gpus / ranks;
      const std::int64_t micro = run.micro_batch.value_or(1);
      if (run.global_batch % (layout.dp * micro) != 0 || run.global_batch / (layout.dp * micro) < layout.pp) continue;
      layout.sequence_parallel =
          run.sequence_parallel && layout.tp > 1 && run.sequence % (std::int64_t{layout.tp} * run.cp) == 0;
      if (has_short_enough(layout)) all.push_back(layout);
    }
  return all;
}

// Returns a function that predicts a long step by one of twice as many micro-batches as stages, which it scales to all
// of them. Each micro-batch takes its time on one stage, and the first fills the others (Narayanan et al. 2021,
// section 2.2).
Predict of_short_steps(const Predict& predict) {
  return [&predict](const Run& run) {
    Run shortened = run;
    const std::int64_t of_one = *run.micro_batch * run.dp, all = run.global_batch / of_one,
                       few = std::min(all, std::int64_t{2} * run.pp);
    if (all * run.layers <= kShortForwards) return predict(run);
    shortened.global_batch = few * of_one;
    RunPrediction p = predict(shortened);
    const auto dp = p.exposed_s.find("dp");
    // Whoever shards gradients or parameters exchanges them in each micro-batch.
    const double once = dp == p.exposed_s.end() || run.zero.value_or(0) >= 2 ? 0.0 : dp->second,
                 filling = (run.pp - 1.0) / *run.chunks;
    p.step_s = once + (p.step_s - once) * (static_cast<double>(all) + filling) / (static_cast<double>(few) + filling);
    return p;
  };
}

// Fills a blank layout: the fastest of those that fit. Short steps of single sequences show which layouts are fast, and
// of these which micro-batch and chunks are.
RunPrediction fastest_layout(const Run& run, const Predict& quick) {
  std::vector<std::pair<RunPrediction, Run>> tried;
  bool too_long = false;
  for (const Run& layout : layouts_of(run)) {
    if (2 * layout.pp * layout.layers > kMostShort) {
      too_long = true;
      continue;
    }
    Run plain = layout;
    plain.micro_batch = layout.micro_batch.value_or(1);
    plain.chunks = chunks_of(plain).front();
    tried.emplace_back(predict_open(plain, quick), layout);
  }
  if (tried.empty() && too_long)
    throw UsageError("layers: {} are too many to choose a layout; give tp, pp and dp", run.layers);
  if (tried.empty())
    throw UsageError(
        "tp: no layout of {} GPUs has whole heads, layers and sequences for each rank: {} heads, {} layers, gbs {}",
        run.gpus, run.heads, run.layers, run.global_batch);
  std::stable_sort(tried.begin(), tried.end(), [](const auto& a, const auto& b) {
    const RunPrediction &x = a.first, &y = b.first;
    return x.fits != y.fits ? x.fits : x.step_s < y.step_s;
  });
  std::optional<RunPrediction> best;
  for (std::size_t i = 0; i < std::min<std::size_t>(tried.size(), kTriedLayouts); ++i) {
    const Run& layout = tried[i].second;
    RunPrediction p = fastest(layout, quick);
    p.chosen["tp"] = std::to_string(layout.tp), p.chosen["pp"] = std::to_string(layout.pp);
    p.chosen["dp"] = std::to_string(layout.dp);
    if (!run.has_cp) p.chosen["cp"] = std::to_string(layout.cp);
    if (run.sequence_parallel && !layout.sequence_parallel) p.chosen["sequence_parallel"] = "no";
    if (better(p, best)) best = std::move(p);
  }
  return *best;
}

}  // namespace

std::optional<std::string> too_large(const Run& run) {
  const std::int64_t micro = run.micro_batch.value_or(1), micro_batches = run.global_batch / (micro * run.dp);
  if (micro_batches > kMostForwards / run.layers)
    return fmt::format(
        "gbs: {} sequences are {} micro-batches of {} layers; at most {} forwards of a layer are "
        "simulated, so a larger mbs may help",
        run.global_batch, micro_batches, run.layers, kMostForwards);
  const double widest = static_cast<double>(std::max({3 * run.hidden, 3 * run.ffn, run.vocabulary}));
  if (static_cast<double>(micro) * static_cast<double>(run.sequence) * static_cast<double>(run.layers) * widest >
      kMostElements)
    return fmt::format(
        "mbs: {} sequences of {} tokens in {} layers have more values than can be counted; a smaller "
        "mbs may help",
        micro, run.sequence, run.layers);
  return std::nullopt;
}

bool has_choices(const Run& run) {
  return !run.has_layout || !run.zero || !run.recompute || !run.micro_batch || !run.chunks;
}

Run filled_with(const Run& run, const std::map<std::string, std::string>& chosen) {
  Run filled = run;
  filled.has_layout = true;
  for (const auto& [column, value] : chosen) {
    if (column == "recompute") filled.recompute = value;
    if (column == "mbs") filled.micro_batch = std::stoll(value);
    if (column == "zero_stage") filled.zero = std::stoi(value);
    if (column == "vpp") filled.chunks = std::stoi(value);
    if (column == "tp") filled.tp = std::stoi(value);
    if (column == "pp") filled.pp = std::stoi(value);
    if (column == "dp") filled.dp = std::stoi(value);
    if (column == "schedule") filled.schedule = value;
    if (column == "sequence_parallel") filled.sequence_parallel = value == "yes";
  }
  if (filled.tp == 1) filled.sequence_parallel = false;
  return filled;
}

RunPrediction predict_best(const Run& run, const Predict& predict) {
  if (!has_choices(run)) return predict(run);
  const Predict quick = of_short_steps(predict);
  const RunPrediction best = run.has_layout ? fastest(run, quick) : fastest_layout(run, quick);
  RunPrediction whole = predict(filled_with(run, best.chosen));
  whole.chosen.insert(best.chosen.begin(), best.chosen.end());
  return whole;
}

}  // namespace molen::plan
