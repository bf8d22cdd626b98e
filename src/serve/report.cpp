#include "serve/report.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>
#include <cmath>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "serve/assets.h"
#include "serve/footprint.h"
#include "serve/page.h"

namespace molen::serve {
namespace {

// Fills the template in one pass, so that a placeholder in inserted text has no effect.
std::string fill(std::string_view text, const std::map<std::string, std::string, std::less<>>& values) {
  std::string out;
  while (true) {
    const std::size_t open = text.find("{{");
    if (open == std::string_view::npos) return out += text;
    const std::size_t close = text.find("}}", open);
    MOLEN_CHECK(close != std::string_view::npos, "page.html: an open placeholder");
    const auto value = values.find(text.substr(open + 2, close - open - 2));
    MOLEN_CHECK(value != values.end(), "page.html: unknown placeholder {}", text.substr(open + 2, close - open - 2));
    out += text.substr(0, open);
    out += value->second;
    text.remove_prefix(close + 2);
  }
}

// Returns 'sha256-...' of a script for the content security policy: no other script runs, whatever a run's texts
// contain.
std::string script_hash(std::string_view script) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(script.data()), script.size(), digest.data());
  std::array<unsigned char, 4 * ((SHA256_DIGEST_LENGTH + 2) / 3) + 1> base64;
  const int length = EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(digest.size()));
  return "'sha256-" + std::string(reinterpret_cast<const char*>(base64.data()), static_cast<std::size_t>(length)) + "'";
}

// Returns the tokens seen by step, for the script's other x axis. There are enough points that a straight line between
// two is exact, except where the batch changes.
std::string tokens_script(const RunData& run) {
  const auto& steps = run.metrics.steps;
  constexpr std::size_t kMost = 500;
  const std::size_t n = std::min(steps.size(), kMost);
  std::string x, t;
  for (std::size_t i = 0; i < n; ++i) {
    const auto& m = steps[n == 1 ? 0 : i * (steps.size() - 1) / (n - 1)];
    x += fmt::format("{}{}", i ? "," : "", m.step);
    t += fmt::format("{}{}", i ? "," : "", m.tokens_total);
  }
  return "{\"x\":[" + x + "],\"t\":[" + t + "]}";
}

Json footprint_json(const RunData& run) {
  const auto f = footprint_of(run);
  if (!f) return {};
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(); };
  return {{"computers_j", f->computers_j},
          {"undone_j", f->undone_j},
          {"partial", f->partial},
          {"sites", f->sites.empty() ? Json() : Json(f->sites)},
          {"pue", or_null(f->pue)},
          {"site_j", or_null(f->site_j)},
          {"g_per_kwh", or_null(f->grams_per_kwh)},
          {"kg_co2e", or_null(f->kg_co2e)},
          {"kg_co2e_spread", or_null(f->kg_co2e_spread)},
          {"market_kg_co2e", or_null(f->market_kg_co2e)},
          {"embodied_kg_co2e", or_null(f->embodied_kg_co2e)},
          {"water_l", or_null(f->water_l)},
          {"eur", or_null(f->eur)},
          {"car_km", or_null(f->car_km)}};
}

Json doubts_json(const RunData& run) {
  Json all = Json::object();
  for (const auto& [attempt, reasons] : run.energy_doubts) all[std::to_string(attempt)] = reasons;
  return all;
}

Json finite(double v) {
  return std::isfinite(v) ? Json(v) : Json();
}

}  // namespace

void write_report(const fs::path& run_directory, const fs::path& output, const Json& predicted) {
  RunData run = read_run(run_directory);
  if (!predicted.is_null()) run.predicted = predicted;
  Charts charts;
  std::string main = course_section(run, charts);
  main += predicted_section(run) + energy_section(run, charts) + events_section(run) + config_section(run);
  const std::string uplot(asset("uplot/uPlot.iife.min.js")), js(asset("page.js"));
  write_file_atomic(output, fill(asset("page.html"), {{"title", escape(run.path.filename().string())},
                                                      {"hashes", script_hash(uplot) + " " + script_hash(js)},
                                                      {"uplot_css", std::string(asset("uplot/uPlot.min.css"))},
                                                      {"uplot_license", std::string(asset("uplot/LICENSE"))},
                                                      {"uplot_js", uplot},
                                                      {"css", std::string(asset("page.css"))},
                                                      {"js", js},
                                                      {"header", head_section(run)},
                                                      {"main", main},
                                                      {"written", escape(utc_timestamp(wall_time()))},
                                                      {"data", "{\"tokens\":" + tokens_script(run) +
                                                                   ",\"charts\":" + charts.to_script() + "}"}}));
}

Json summary(const fs::path& run_directory, const Json& predicted) {
  RunData run = read_run(run_directory);
  if (!predicted.is_null()) run.predicted = predicted;
  const auto& steps = run.metrics.steps;
  std::vector<double> rates, seconds;
  for (const auto& m : steps) {
    rates.push_back(m.tokens_per_s);
    seconds.push_back(m.step_s);
  }
  Json j{{"run", run.path.filename().string()},
         {"steps", steps.empty() ? 0 : steps.back().step},
         {"attempts", run.metrics.last_attempt},
         {"median_step_s", finite(median(seconds))},
         {"median_tokens_per_s", finite(median(rates))},
         {"last", steps.empty() ? Json() : parse_json(store::to_line(steps.back()), "metrics")},
         {"validation", Json()},
         {"energy_j", Json::object()},
         {"energy_totals", run.energy_totals},
         {"energy_phases", run.energy_phases},
         {"energy_doubts", doubts_json(run)},
         {"energy_modelled", run.energy_modelled},
         {"energy_hosts", hosts_json(run)},
         {"footprint", footprint_json(run)},
         {"predicted", run.predicted},
         {"notices", run.notices}};
  if (!run.validations.empty()) {
    const Validation& v = run.validations.back();
    j["validation"] = {{"step", v.step}, {"loss", finite(v.loss)}, {"bits_per_byte", Json::object()}};
    for (const auto& [language, bits] : v.bits_per_byte) j["validation"]["bits_per_byte"][language] = finite(bits);
  }
  for (const auto& [scope, total] : energy_totals(run)) j["energy_j"][scope] = total.joules;
  return j;
}

}  // namespace molen::serve
