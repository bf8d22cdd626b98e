// metrics.jsonl, the authoritative record of a run: one JSON object per step and attempt, append-only. Keys are a
// contract (docs/formats/metrics.md) and contain their units. A value that was not measured is null, never 0.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace molen::store {

// A forecast, with the bounds between which it lies with a probability of 95 %.
struct AtEnd {
  double value = 0, low = 0, high = 0;
};

struct StepMetrics {
  std::int64_t step = 0, attempt = 1;
  double wall_time_s = 0;  // seconds since 1970
  double loss = 0;         // mean over the valid tokens of the global batch
  double grad_norm = 0;    // before clipping; not finite when the step was skipped
  double lr = 0;
  std::optional<double> balance_loss, z_loss;  // of the routers; a model without sparse layers has no such keys
  std::optional<double> dropped_share;         // of the choices of experts; a model without capacity has no such key
  // The scale of the step's loss, and the number of skipped steps of the run so far, including this step. Both are null
  // when the loss is not scaled; older files lack the keys.
  std::optional<double> loss_scale;
  std::optional<std::int64_t> skipped_steps;
  std::int64_t tokens_total = 0;
  double step_s = 0, tokens_per_s = 0, tokens_per_s_per_device = 0;
  std::string flops_formula;  // how model FLOPs are counted: "causal", "palm"; empty (no key) in older files
  std::optional<double> model_tflops_per_device, mfu, hfu;
  // Maxima over ranks. Peak: the highest byte of the plan that ops had in use, computed from the buffers' places in the
  // plan and the ops' scratch. Planned: the plan's own peak. Neither is a measurement.
  std::int64_t memory_peak_bytes = 0, memory_planned_bytes = 0;
  double data_wait_s = 0;
  std::map<std::string, double> phase_s;                  // with "bubble" and "idle" they sum to step_s
  std::map<std::string, std::optional<double>> energy_j;  // joules by scope (energy/meter.h)
  std::map<std::string, std::string> energy_source;       // "counter", "power", "none"
  // The most by which the joules of a scope, or "total", may be off by the resolution of their meters; null where that
  // is not known. Empty (no key) in older files.
  std::map<std::string, std::optional<double>> energy_resolution_j;
  // Joules that a model estimates for parts that no meter reads, with their bounds; null without an estimate. Where the
  // run asks for no model, there is no key. They are in none of the other values.
  struct Modelled {
    double joules = 0, least = 0, most = 0;
    bool operator==(const Modelled&) const = default;
  };
  std::map<std::string, std::optional<Modelled>> energy_model_j;
  std::optional<double> j_per_token;
  // The energy and the emissions of the run so far, over all attempts and with the time between steps. Both are null if
  // nothing was measured; the emissions are null too if the site's carbon intensity is unknown. Older files lack the
  // keys.
  std::optional<double> kwh_total, kg_co2e_total;
  // The forecast of these two when the run ends: train.until, or what energy.on_budget has made of it. The bounds
  // are those by the spread of steps. Absent (no key) until enough steps are measured.
  std::optional<AtEnd> kwh_at_end, kg_co2e_at_end;
  std::string energy_coverage;  // parts that j_per_token leaves out: "gpu only"; empty (no key in the file): none
  // The clock (Hz) or the power limit (W) that an energy policy had set in this step; absent (no key) where none did.
  std::optional<double> policy_setting;
  std::array<std::int64_t, 2> samples{};  // first and last position in the global order
  std::string run_id;                     // run.json; empty (no key) in older files
  std::int64_t history = 1;               // no key in older files either
};

// Returns one line without its newline. Doubles round-trip bit for bit; a non-finite value becomes null.
std::string to_line(const StepMetrics& metrics);
// Parses one line. Throws UsageError naming origin and key.
StepMetrics from_line(std::string_view line, std::string_view origin);
StepMetrics from_json(const Json& json, std::string_view origin);

struct MetricsFile {
  // The steps in order, each from the last attempt that wrote it. When an attempt continued from an earlier step, the
  // lines of older attempts beyond that step are dropped: steps that were not reached again are not part of the run.
  std::vector<StepMetrics> steps;
  std::int64_t torn_lines = 0;  // lines that are not JSON: cut short by a crash
  std::int64_t last_attempt = 0;
};
// Reads a file; returns an empty result when there is none. Throws UsageError for a line that is JSON but not of this
// form.
MetricsFile read_metrics(const fs::path& path);

// Compares step, loss, grad_norm, lr, tokens_total and samples bit for bit: the values that a resumed run must repeat.
// Returns an empty string when they are identical, else the first difference.
std::string first_difference(const std::vector<StepMetrics>& a, const std::vector<StepMetrics>& b);

}  // namespace molen::store
