#include "serve/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/units.h"
#include "cluster/site.h"
#include "serve/facts.h"
#include "serve/footprint.h"

namespace molen::serve {
namespace {

// A text as YAML reads it: a JSON string is one of YAML too.
std::string yaml(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A line of Markdown: text from files must not begin markup of its own.
std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\`*_{}[]<>#|").find(c) != std::string_view::npos) out += '\\';
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

std::string hardware_of(const RunData& run) {
  const std::string gpu = text_of(run.environment, "gpu"), cpu = text_of(run.environment, "cpu");
  const std::string ranks = text_of(last_start(run), "ranks", text_of(run.environment, "ranks", "1"));
  return gpu.empty() ? cpu : ranks + " x " + gpu;
}

std::string country_name(const std::string& code) {
  const auto found = std::ranges::find(cluster::countries(), code, &cluster::Country::code);
  return found == cluster::countries().end() ? std::string() : std::string(found->name);
}

Footprint known_footprint(const RunData& run) {
  const auto f = footprint_of(run);
  if (!f)
    throw UsageError("{}: no energy was measured, so there are no emissions (`molen energy list` shows the meters)",
                     run.path.string());
  if (f->sites.empty())
    throw UsageError(
        "{}: no site is named, so emissions are not known; energy.site takes a country such as NL, a cluster or a file",
        run.path.string());
  if (!f->kg_co2e)
    throw UsageError(
        "{}: an attempt of the run named no site (the sites of the others: {}), so the emissions of the "
        "whole run are not known",
        run.path.string(), f->sites);
  return *f;
}

// The floating-point operations of the model in the steps that count, by the run's own formula; NaN where a step has
// none.
double model_flops_of(const RunData& run) {
  std::map<std::int64_t, double> ranks;  // of each attempt
  for (const Json& event : run.events)
    if (const std::string name = text_of(event, "event"); name == "start" || name == "resume")
      if (const double attempt = number_of(event, "attempt"); std::abs(attempt) < 1e15)
        ranks[static_cast<std::int64_t>(attempt)] = number_of(event, "ranks");
  double sum = 0.0;
  for (const auto& m : run.metrics.steps) {
    const auto of_attempt = ranks.find(m.attempt);
    sum += m.model_tflops_per_device && of_attempt != ranks.end()
               ? *m.model_tflops_per_device * 1e12 * of_attempt->second * m.step_s
               : std::nan("");
  }
  return sum;
}

std::string metadata_of(const RunData& run, const std::optional<Footprint>& f) {
  std::string s = "---\nlibrary_name: molen\npipeline_tag: text-generation\n";
  if (f && f->kg_co2e) {
    s += "co2_eq_emissions:\n";
    s += fmt::format("  emissions: {:.6g}\n", 1e3 * *f->kg_co2e);  // in grams
    s += "  source: " +
         yaml("measured by molen" + (f->partial.empty() ? "" : " (" + f->partial + ")") +
              "; grid: " + f->intensity_source) +
         "\n";
    s += "  training_type: \"pre-training\"\n";
    s += "  geographical_location: " + yaml(f->sites) + "\n";
    s += "  hardware_used: " + yaml(hardware_of(run)) + "\n";
  }
  return s + "---\n\n";
}

std::string line(const std::string& name, const std::string& value) {
  return value.empty() ? "" : "- " + name + ": " + plain(value) + "\n";
}

std::string data_of_card(const RunData& run) {
  std::string s = "## Data\n\n";
  for (const char* key : {"data.train", "data.validation", "data.tokenizer", "data.seed"})
    if (const auto at = run.values.find(key); at != run.values.end()) s += line(key, at->second);
  return s + "\nThe manifest.json beside each set of shards has the source and the licence of every text.\n\n";
}

// What Annex XI, section 1, point 2 (d) and (e) of Regulation (EU) 2024/1689 asks for: computational resources,
// training time, and energy.
std::string energy_of_card(const RunData& run, const std::optional<Footprint>& f) {
  std::string s = "## Compute and energy\n\nRegulation (EU) 2024/1689, Annex XI, section 1, point 2 (d) and (e):\n\n";
  if (const double flops = model_flops_of(run); std::isfinite(flops) && flops > 0.0)
    s += line("floating-point operations of the model", fmt::format("{:.4g} ({}; without steps that failures undid)",
                                                                    flops, run.metrics.steps.back().flops_formula));
  s += line("hardware", hardware_of(run)) + line("layout", layout_of(run));
  double in_steps = 0.0;
  for (const auto& m : run.metrics.steps) in_steps += m.step_s;
  s += line("training time", f ? fmt::format("{} over all attempts", human(Seconds(f->seconds)))
                               : fmt::format("{} in steps", human(Seconds(in_steps))));
  if (!f) return s + "- energy: not measured\n\n";
  s += line("energy of the computers", fmt::format("{:.6g} kWh, measured{}", f->computers_j / kJoulesPerKwh,
                                                   f->partial.empty() ? "" : " in part (" + f->partial + ")"));
  if (f->undone_j > 0.0)
    s += line("energy of steps that failures undid", fmt::format("{:.4g} kWh", f->undone_j / kJoulesPerKwh));
  if (f->site_j)
    s += line("energy with the site", fmt::format("{:.6g} kWh (PUE {:.4g})", *f->site_j / kJoulesPerKwh, *f->pue));
  if (f->kg_co2e)
    s += line("emissions", fmt::format("{:.4g} kg CO2e at {:.4g} g/kWh{} (location: {}; {})", *f->kg_co2e,
                                       f->grams_per_kwh.value_or(0.0), spread_text(*f), f->sites, f->intensity_source));
  if (f->market_kg_co2e)
    s += line("emissions by the site's contracts (market-based)", fmt::format("{:.4g} kg CO2e", *f->market_kg_co2e));
  if (f->embodied_kg_co2e)
    s += line("emissions of making the computers, their share for the time of the run",
              fmt::format("{:.4g} kg CO2e", *f->embodied_kg_co2e));
  if (f->water_l) s += line("water", fmt::format("{:.4g} l", *f->water_l));
  return s + "\n";
}

}  // namespace

std::string emissions_csv(const RunData& run) {
  const Footprint f = known_footprint(run);
  const JoulesByKind kinds = joules_by_kind(run);
  const auto kwh = [&](const std::optional<double>& j) {
    return j ? csv_number(*j * f.pue.value_or(1.0) / kJoulesPerKwh) : std::string();
  };
  const auto watts = [&](const std::optional<double>& j) {
    return j && f.seconds > 0.0 ? csv_number(*j / f.seconds) : std::string();
  };
  const std::string gpu = text_of(run.environment, "gpu");
  const double last = dates_of(run).last;
  const double memory = number_of(run.environment, "memory_bytes");
  const std::vector<std::pair<const char*, std::string>> columns{
      {"timestamp", std::isfinite(last) ? utc_timestamp(last) : ""},
      {"project_name", run.path.filename().string()},
      {"run_id", run.id},
      {"experiment_id", ""},
      {"duration", csv_number(f.seconds)},
      {"emissions", csv_number(f.kg_co2e)},
      {"emissions_rate", f.seconds > 0.0 ? csv_number(*f.kg_co2e / f.seconds) : ""},
      {"cpu_power", watts(kinds.cpu)},
      {"gpu_power", watts(kinds.gpu)},
      {"ram_power", watts(kinds.memory)},
      {"cpu_energy", kwh(kinds.cpu)},
      {"gpu_energy", kwh(kinds.gpu)},
      {"ram_energy", kwh(kinds.memory)},
      {"energy_consumed", kwh(f.computers_j)},
      {"water_consumed", csv_number(f.water_l)},
      {"country_name", country_name(f.country)},
      {"country_iso_code", ""},
      {"region", ""},
      {"cloud_provider", ""},
      {"cloud_region", ""},
      {"os", text_of(run.environment, "system")},
      {"python_version", ""},
      {"codecarbon_version", ""},
      {"cpu_count", text_of(run.environment, "cores")},
      {"cpu_model", text_of(run.environment, "cpu")},
      {"gpu_count", gpu.empty() ? "" : text_of(last_start(run), "ranks")},
      {"gpu_model", gpu},
      {"longitude", ""},
      {"latitude", ""},
      {"ram_total_size", std::isfinite(memory) ? csv_number(memory / (1 << 30)) : ""},
      {"tracking_mode", "machine"},
      {"on_cloud", ""},
      {"pue", csv_number(f.pue)},
      {"wue", f.water_l && f.site_j ? csv_number(*f.water_l / (*f.site_j / kJoulesPerKwh)) : ""}};
  std::string header, row;
  for (const auto& [name, value] : columns) {
    const char* comma = header.empty() ? "" : ",";
    header += std::string(comma) + name;
    row += comma + csv_cell(value);
  }
  return header + "\n" + row + "\n";
}

std::string model_card(const RunData& run) {
  const auto f = footprint_of(run);
  std::string s = metadata_of(run, f) + "# " + plain(run.path.filename().string()) + "\n\n";
  s += "Written by `molen report --model-card` from the records of the run. Intended use, limitations and the "
       "evaluation of risks are for a person to add.\n\n## Model\n\n";
  s += line("model", model_of(run));
  for (const Figure& figure : figures_of(run))
    if (figure.value && figure.name != "J/token, median") s += line(figure.name, figure.text);
  s += line("ended", ending_of(run).text) + "\n";
  return s + data_of_card(run) + energy_of_card(run, f);
}

void write_emissions(const fs::path& run_directory, const fs::path& output) {
  write_file_atomic(output, emissions_csv(read_run(run_directory)));
}

void write_model_card(const fs::path& run_directory, const fs::path& output) {
  if (fs::exists(output))
    throw UsageError("{}: the file exists, and a person may have added to it; remove it, or choose another name",
                     output.string());
  write_file_atomic(output, model_card(read_run(run_directory)));
}

}  // namespace molen::serve
