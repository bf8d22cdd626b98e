#include "plan/calculus_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace molen::plan {
namespace {

constexpr double kDay = 86400.0, kHour = 3600.0, kKilowattHour = 3.6e6;

// Returns a text with three digits, without an exponent up to 10^15: "0.0521", "27.1", "68400".
std::string digits(double value) {
  if (value == 0.0 || !std::isfinite(value)) return fmt::format("{:g}", value);
  // The exponent is taken after rounding, so that 99.97 becomes "100".
  std::string rounded = fmt::format("{:.2e}", value);
  const int exponent = std::stoi(rounded.substr(rounded.find('e') + 1));
  if (exponent < -4 || exponent > 14) return rounded;
  if (exponent < 3) return fmt::format("{:.{}f}", value, 2 - exponent);
  const double unit = std::pow(10.0, exponent - 2);
  return fmt::format("{:.0f}", std::round(value / unit) * unit);
}

// Returns "27.1 (22.6 to 32.5)", or one number if the interval has no width.
std::string with_interval(const Estimate& estimate, double per_unit) {
  std::string value = digits(estimate.value / per_unit);
  if (estimate.spread <= 0.0) return value;
  return fmt::format("{} ({} to {})", value, digits(estimate.low() / per_unit), digits(estimate.high() / per_unit));
}

std::string billions(double count) {
  return fmt::format("{} B", digits(count / 1e9));
}

std::string figure_text(const cluster::Figure& figure, double per_unit, std::string_view unit) {
  return fmt::format("{}{}{}", digits(figure.value / per_unit), unit,
                     figure.spread > 0.0 ? fmt::format(" +- {} %", digits(100.0 * figure.spread)) : "");
}

CalculusTable assumptions(const TrainingPlan& plan) {
  const cluster::Device& device = plan.cluster.device;
  const cluster::Site& site = plan.cluster.site;
  CalculusTable table{fmt::format("{} on {} of {}", digits(plan.tokens / 1e9) + " B tokens",
                                  counted(plan.devices, "device"), plan.cluster.title),
                      {"assumption", "value", "source"},
                      {}};
  table.prose = true;
  const auto add = [&](std::string_view name, const cluster::Figure& figure, double per_unit, std::string_view unit) {
    table.rows.push_back({std::string(name), figure_text(figure, per_unit, unit), figure.source});
  };
  add("16-bit peak of a device", device.peak_16bit, 1e12, " TFLOP/s");
  add(plan.recompute ? "share of it, recomputed FLOPs counted" : "share of it (MFU)", plan.mfu, 1.0, "");
  add("idle power of a device", device.idle_power, 1.0, " W");
  add("peak power of a device", device.peak_power, 1.0, " W");
  add("load between them", training_load(), 1.0, "");
  add("power of the rest of a node", plan.cluster.node.host_power, 1.0, " W");
  add("PUE", site.pue, 1.0, "");
  add("emissions of electricity", site.intensity, 1e-3 / kKilowattHour, " g CO2e/kWh");
  add("water for the computers", site.water, 1e-3 / kKilowattHour, " L/kWh");
  add("price of electricity", site.price, 1.0 / kKilowattHour, " EUR/kWh");
  if (site.device_hour) add("price of a device", *site.device_hour, 1.0 / kHour, " EUR/h");
  add("emissions of a car", car_emissions(), 1e-6, " g CO2/km");
  table.notes = {"The spreads, and the intervals in brackets below, have a probability of 80 %."};
  return table;
}

std::string rule_text(FlopsRule rule) {
  switch (rule) {
    case FlopsRule::kSixN:
      return "6 N";
    case FlopsRule::kEightN:
      return "8 N (full recompute)";
    case FlopsRule::kExact:
      return "exact (causal attention)";
    case FlopsRule::kExactRecompute:
      return "exact, full recompute";
  }
  return "";
}

CalculusTable compute_table(const CalculusReport& report) {
  CalculusTable table{"Compute", {"model", "parameters", "rule", "GFLOP/token", "FLOP in all", "days", "used"}, {}};
  for (const ModelReport& model : report.models)
    for (const FlopsRow& row : model.flops)
      table.rows.push_back({model.model.name, billions(model.model.active), rule_text(row.rule),
                            digits(row.per_token / 1e9), fmt::format("{:.3g}", row.per_token * report.plan.tokens),
                            with_interval(row.seconds, kDay), row.rule == model.rule ? "yes" : ""});
  table.notes = {"All rules take the same share of the peak. The costs below follow from the rule that is used."};
  if (std::any_of(report.models.begin(), report.models.end(),
                  [](const ModelReport& m) { return m.model.active != m.model.parameters; }))
    table.notes.push_back("The parameters of a sparse model are those that compute one token.");
  if (report.plan.recompute)
    table.notes.push_back(fmt::format("Without the recomputed FLOPs, the share of the peak is 3/4 of {} by 6 N.",
                                      digits(report.plan.mfu.value)));
  return table;
}

struct CostRow {
  std::string_view name;
  Estimate TrainingCosts::*member;
  double per_unit;
};
constexpr CostRow kCostRows[] = {
    {"days", &TrainingCosts::seconds, kDay},
    {"device-hours", &TrainingCosts::device_seconds, kHour},
    {"power of the computers, kW", &TrainingCosts::power, 1e3},
    {"energy of the computers, kWh", &TrainingCosts::computer_energy, kKilowattHour},
    {"energy of the site, kWh", &TrainingCosts::energy, kKilowattHour},
    {"emissions, t CO2e", &TrainingCosts::emissions, 1e3},
    {"water, L", &TrainingCosts::water, 1e-3},
    {"electricity, EUR", &TrainingCosts::electricity, 1.0},
    {"device-hours, EUR", &TrainingCosts::device_hours, 1.0},
    {"the same emissions by car, km", &TrainingCosts::car, 1e3},
};

CalculusTable costs_table(const CalculusReport& report) {
  CalculusTable table{"Costs", {"of one training"}, {}};
  for (const ModelReport& model : report.models) table.header.push_back(model.model.name);
  for (const CostRow& cost : kCostRows) {
    if (cost.member == &TrainingCosts::device_hours && !report.plan.cluster.site.device_hour) continue;
    auto& row = table.rows.emplace_back(1, std::string(cost.name));
    for (const ModelReport& model : report.models)
      row.push_back(with_interval(model.costs.*cost.member, cost.per_unit));
  }
  const auto add = [&](std::string_view name, auto text) {
    auto& row = table.rows.emplace_back(1, std::string(name));
    for (const ModelReport& model : report.models) row.push_back(text(model));
  };
  add("Frontier's rule: 120 N^2, FLOP",
      [](const ModelReport& m) { return fmt::format("{:.3g}", m.frontier.optimal_flops); });
  add("  its energy on 20 N tokens, kWh",
      [](const ModelReport& m) { return with_interval(m.frontier.optimal_energy, kKilowattHour); });
  add("  its energy on these tokens, kWh",
      [](const ModelReport& m) { return with_interval(m.frontier.energy, kKilowattHour); });
  table.notes = {"Failed steps, restarts, evaluation, idle devices and the making of the computers are not counted.",
                 "Frontier's rule (arXiv 2312.12705) is for MI250X cards alone: no hosts, no PUE."};
  return table;
}

std::string gigabytes(double bytes) {
  return digits(bytes / 1e9);
}

CalculusTable memory_table(const CalculusReport& report) {
  CalculusTable table{
      fmt::format("Memory of a device in GB, with AdamW in mixed precision over {}",
                  counted(report.plan.devices, "device")),
      {"model", "bytes per parameter", "weights", "gradients", "optimizer", "ZeRO 0", "ZeRO 1", "ZeRO 2", "ZeRO 3"},
      {}};
  for (const ModelReport& model : report.models)
    for (const StateBytes& bytes : kStateBytes) {
      const double n = model.model.parameters;
      std::vector<std::string> row{
          model.model.name, fmt::format("{:g}, {}", bytes.total(), bytes.name),
          fmt::format("{} ({:g} + {:g})", gigabytes(n * (bytes.weights + bytes.master)), bytes.weights, bytes.master),
          fmt::format("{} ({:g})", gigabytes(n * bytes.gradients), bytes.gradients),
          fmt::format("{} ({:g})", gigabytes(n * bytes.moments), bytes.moments)};
      for (int stage = 0; stage <= 3; ++stage)
        row.push_back(gigabytes(zero_bytes(bytes, stage, n, report.plan.devices)));
      table.rows.push_back(std::move(row));
    }
  table.notes = {
      fmt::format("A device has {} GB. Activations, which depend on the layout, come on top of the states "
                  "(`molen program` plans them).",
                  gigabytes(report.plan.cluster.device.memory.value)),
      "Weights are 16-bit values and fp32 copies. ZeRO 1 partitions the copies with the optimizer's moments, "
      "2 also the gradients, 3 also the 16-bit weights (arXiv 1910.02054)."};
  return table;
}

CalculusTable loss_table(const CalculusReport& report) {
  CalculusTable table{"Loss by published laws, nats per token", {"model", "tokens / 20 N"}, {}};
  for (const ScalingLaw& law : scaling_laws()) table.header.emplace_back(law.name);
  table.header.push_back("range");
  bool sparse = false;
  for (const ModelReport& model : report.models) {
    std::vector<std::string> row{model.model.name, digits(model.optimal_tokens)};
    for (const double loss : model.losses) row.push_back(fmt::format("{:.3f}", loss));
    if (model.losses.empty()) row.resize(table.header.size(), "-");
    sparse = sparse || model.losses.empty();
    if (!model.losses.empty()) {
      const auto [low, high] = std::minmax_element(model.losses.begin(), model.losses.end());
      row.push_back(fmt::format("{:.3f} to {:.3f}", *low, *high));
    }
    table.rows.push_back(std::move(row));
  }
  table.notes = {
      "The laws were fitted to English text with the tokenizer of Hoffmann et al. Other data, another vocabulary or "
      "repeated data have other losses, so only differences between rows mean something.",
      "20 N tokens are optimal for the compute (Hoffmann et al. 2022); a smaller model that reads more is cheaper to "
      "use."};
  if (sparse) table.notes.push_back("No law is shown for sparse models, because both were fitted to dense ones.");
  return table;
}

CalculusTable batch_table(const CalculusReport& report, const ModelReport& model) {
  CalculusTable table{
      fmt::format("Batch size of {} (noise scale {} tokens)", model.model.name, human_count(report.plan.noise_scale)),
      {"tokens of a step", "tokens / least", "steps / least", "B tokens", "steps", "s a step", "days to the loss"},
      {}};
  for (const BatchRow& row : model.batches)
    table.rows.push_back({human_count(row.batch), digits(row.token_ratio), digits(row.step_ratio),
                          digits(row.tokens / 1e9), digits(row.steps), digits(row.step_seconds.value),
                          with_interval(row.seconds, kDay)});
  table.notes = {
      "The tokens of the plan are taken for what a small batch needs to the same loss (arXiv 1812.06162). The "
      "noise scale grows during a training, so one number is an average.",
      "The share of the peak is the same in all rows; a batch that is too small for the devices reaches less."};
  return table;
}

CalculusTable days_text(const CalculusReport& report) {
  const DaysTable& days = report.days;
  CalculusTable table{
      fmt::format("Days by size and tokens, {} FLOPs per token", report.plan.recompute ? "8 N" : "6 N"), {"model"}, {}};
  for (const double tokens : days.tokens) table.header.push_back(billions(tokens));
  for (std::size_t i = 0; i < days.models.size(); ++i) {
    auto& row = table.rows.emplace_back(1, days.models[i].name);
    for (const Estimate& seconds : days.seconds[i]) row.push_back(digits(seconds.value / kDay));
  }
  const double spread = flops_per_second(report.plan).spread;
  if (spread > 0.0)
    table.notes = {fmt::format("The interval of each number is from {} to {} times the number.",
                               digits(1.0 / (1.0 + spread)), digits(1.0 + spread))};
  return table;
}

// Returns the header and the rows.
std::vector<std::vector<std::string>> all_rows(const CalculusTable& table) {
  std::vector<std::vector<std::string>> all{table.header};
  all.insert(all.end(), table.rows.begin(), table.rows.end());
  return all;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) {
    line += " ";
    for (const char c : cell) line += c == '|' ? std::string("\\|") : std::string(1, c);
    line += " |";
  }
  return line + "\n";
}

}  // namespace

std::vector<CalculusTable> tables_of(const CalculusReport& report) {
  std::vector<CalculusTable> tables{assumptions(report.plan), compute_table(report), costs_table(report),
                                    memory_table(report), loss_table(report)};
  for (const ModelReport& model : report.models)
    if (!model.batches.empty()) tables.push_back(batch_table(report, model));
  tables.push_back(days_text(report));
  return tables;
}

std::string to_text(const std::vector<CalculusTable>& tables) {
  std::string text;
  for (const CalculusTable& table : tables) {
    text += (text.empty() ? "" : "\n") + table.title + "\n";
    std::vector<std::size_t> width(table.header.size(), 0);
    const auto rows = all_rows(table);
    for (const auto& row : rows)
      for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
    for (const auto& row : rows) {
      std::string line = "  ";
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string blanks(width[i] - row[i].size(), ' ');
        line += (i == 0 ? "" : "  ") + (i == 0 || table.prose ? row[i] + blanks : blanks + row[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
    for (const std::string& note : table.notes) text += "  " + note + "\n";
  }
  return text;
}

std::string to_markdown(const std::vector<CalculusTable>& tables) {
  std::string text;
  for (const CalculusTable& table : tables) {
    text += (text.empty() ? "## " : "\n## ") + table.title + "\n\n" + markdown_row(table.header) + "|";
    for (std::size_t i = 0; i < table.header.size(); ++i) text += i == 0 || table.prose ? "---|" : "---:|";
    text += "\n";
    for (const auto& row : table.rows) text += markdown_row(row);
    for (const std::string& note : table.notes) text += "\n" + note + "\n";
  }
  return text;
}

}  // namespace molen::plan
