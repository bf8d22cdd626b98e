#include "program/ir/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/units.h"

namespace molen::program {
namespace {

constexpr std::size_t kNamedErrors = 3;

std::vector<AxisRow> axes_of_steps(const std::vector<Expanded>& ops, const Timeline& predicted,
                                   const Timeline& measured) {
  std::vector<AxisRow> rows;
  for (const Stream stream : kCommStreams) {
    AxisRow row;
    row.stream = stream;
    bool any = false;
    for (const Axis axis : kAllAxes) {
      if (stream_of(axis) != stream) continue;
      const Overlap a = overlap_of(ops, predicted, axis), b = overlap_of(ops, measured, axis);
      any =
          any || std::any_of(ops.begin(), ops.end(), [&](const Expanded& op) { return axis_of(op.step->op) == axis; });
      row.predicted_s += a.seconds, row.predicted_exposed_s += a.seconds - a.hidden_s;
      row.measured_s += b.seconds, row.measured_exposed_s += b.seconds - b.hidden_s;
    }
    if (any) rows.push_back(row);
  }
  return rows;
}

std::string part_of_stream(Stream stream) {
  return communicates(stream) ? fmt::format("waiting for {}", name_of(stream)) : std::string(name_of(stream));
}

// Adds the seconds of a step's parts to `seconds` of each part.
void add_parts(const std::vector<Expanded>& ops, const Timeline& timeline, double StepPart::*seconds,
               std::map<std::string, StepPart>& parts) {
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Step& step = *ops[i].step;
    if (step.stream != Stream::kCompute) continue;
    if (const auto axis = axis_of(step.op))  // communication that a program text puts on the compute stream
      parts[part_of_stream(stream_of(*axis))].*seconds += timeline.ops[i].seconds();
    else
      for (const Work& work : work_of(step, timeline.ops[i])) parts[work.kind].*seconds += work.seconds;
  }
  const IdleSeconds idle = idle_seconds(ops, timeline);
  for (const Stream stream : kAllStreams)
    if (idle.of(stream) > 0.0) parts[part_of_stream(stream)].*seconds += idle.of(stream);
  parts["rest"].*seconds += idle.rest;
}

std::vector<StepPart> parts_of_steps(const std::vector<Expanded>& ops, const Timeline& predicted,
                                     const Timeline& measured) {
  std::map<std::string, StepPart> by_name;
  add_parts(ops, predicted, &StepPart::predicted_s, by_name);
  add_parts(ops, measured, &StepPart::measured_s, by_name);
  std::vector<StepPart> parts;
  for (auto& [name, part] : by_name) parts.push_back({name, part.predicted_s, part.measured_s});
  std::stable_sort(parts.begin(), parts.end(),
                   [](const StepPart& a, const StepPart& b) { return std::abs(a.error_s()) > std::abs(b.error_s()); });
  return parts;
}

Stream comm_stream_named(const std::string& name) {
  for (const Stream stream : kCommStreams)
    if (name == name_of(stream)) return stream;
  throw UsageError("'{}' is no stream of communication", name);
}

}  // namespace

Comparison compare(const std::vector<Expanded>& ops, const Timeline& predicted, const Timeline& measured) {
  MOLEN_CHECK(ops.size() == predicted.ops.size() && ops.size() == measured.ops.size(),
              "timelines of different programs");
  Comparison c;
  std::map<std::string, KindRow> rows;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Step& step = *ops[i].step;
    for (const Work& work : work_of(step, predicted.ops[i])) {
      KindRow& row = rows[work.kind];
      row.kind = work.kind;
      ++row.count;
      row.predicted_s += work.seconds;
      row.bytes += work.bytes;
    }
    for (const Work& work : work_of(step, measured.ops[i])) rows[work.kind].measured_s += work.seconds;
    rows[kind_of(step.op)].waited_s += measured.ops[i].waited_s;
  }
  for (auto& [kind, row] : rows) c.rows.push_back(row);
  std::stable_sort(c.rows.begin(), c.rows.end(), [](const KindRow& a, const KindRow& b) {
    return a.measured_s + a.waited_s > b.measured_s + b.waited_s;
  });
  c.axes = axes_of_steps(ops, predicted, measured);
  c.parts = parts_of_steps(ops, predicted, measured);
  c.predicted_step_s = predicted.total_s;
  c.measured_step_s = measured.total_s;
  return c;
}

std::string largest_errors(const Comparison& c) {
  if (c.measured_step_s <= 0) return "";
  std::vector<std::string> said;
  for (std::size_t i = 0; i < std::min(kNamedErrors, c.parts.size()); ++i) {
    const double error_s = c.parts[i].error_s();
    said.push_back(fmt::format("{} {}{} ({:+.1f} % of the step)", c.parts[i].name, error_s < 0 ? "-" : "+",
                               human(Seconds(std::abs(error_s))), 100.0 * error_s / c.measured_step_s));
  }
  return fmt::format("{}", fmt::join(said, ", "));
}

std::string spread_text(double spread) {
  return spread > 0.0 ? fmt::format("+-{:.0f}%", 100.0 * spread) : "-";
}

namespace {

// Returns the error in percent, in at most seven characters: the width of its column.
std::string error_text(double predicted, double measured) {
  if (!(measured > 0)) return "-";
  const double percent = 100.0 * (predicted - measured) / measured;
  return percent < 999.9 ? fmt::format("{:+.1f}%", percent) : ">+999%";
}

}  // namespace

std::string to_table(const Comparison& c) {
  // 100 columns, with room for the longest kind of op.
  constexpr std::string_view kLine = "{:<33} {:>6} {:>10} {:>7} {:>10} {:>7} {:>10} {:>10}\n";
  std::string text = fmt::format(kLine, "op", "count", "predicted", "80 %", "measured", "error", "waiting", "bytes");
  const auto line = [&](const std::string& name, int count, double predicted, double spread, double measured,
                        double waited, std::int64_t bytes) {
    text += fmt::format(kLine, name, count, human(Seconds(predicted)), spread_text(spread), human(Seconds(measured)),
                        error_text(predicted, measured), waited > 0 ? human(Seconds(waited)) : "-",
                        bytes > 0 ? human(Bytes(bytes)) : "-");
  };
  int count = 0;
  for (const KindRow& row : c.rows) {
    line(row.kind, row.count, row.predicted_s, row.spread, row.measured_s, row.waited_s, row.bytes);
    count += row.count;
  }
  line("step", count, c.predicted_step_s, c.step_spread, c.measured_step_s, 0, 0);
  return text;
}

Json to_json(const Comparison& c) {
  Json ops = Json::array(), axes = Json::array(), parts = Json::array();
  for (const KindRow& row : c.rows)
    ops.push_back({{"kind", row.kind},
                   {"count", row.count},
                   {"predicted_s", row.predicted_s},
                   {"predicted_spread", row.spread},
                   {"measured_s", row.measured_s},
                   {"waited_s", row.waited_s},
                   {"bytes", row.bytes}});
  for (const AxisRow& row : c.axes)
    axes.push_back({{"stream", name_of(row.stream)},
                    {"predicted_s", row.predicted_s},
                    {"measured_s", row.measured_s},
                    {"predicted_exposed_s", row.predicted_exposed_s},
                    {"measured_exposed_s", row.measured_exposed_s}});
  for (const StepPart& part : c.parts)
    parts.push_back({{"part", part.name}, {"predicted_s", part.predicted_s}, {"measured_s", part.measured_s}});
  return {{"step_s",
           {{"predicted", c.predicted_step_s}, {"predicted_spread", c.step_spread}, {"measured", c.measured_step_s}}},
          {"ops", ops},
          {"axes", axes},
          {"parts", parts}};
}

Comparison comparison_from_json(const Json& json) {
  Comparison c;
  c.predicted_step_s = json.at("step_s").at("predicted"), c.measured_step_s = json.at("step_s").at("measured");
  c.step_spread = json.at("step_s").at("predicted_spread");
  for (const Json& row : json.at("ops"))
    c.rows.push_back({row.at("kind"), row.at("count"), row.at("predicted_s"), row.at("measured_s"), row.at("waited_s"),
                      row.at("bytes"), row.at("predicted_spread")});
  for (const Json& row : json.at("axes"))
    c.axes.push_back({comm_stream_named(row.at("stream").get<std::string>()), row.at("predicted_s"),
                      row.at("measured_s"), row.at("predicted_exposed_s"), row.at("measured_exposed_s")});
  for (const Json& part : json.at("parts"))
    c.parts.push_back({part.at("part"), part.at("predicted_s"), part.at("measured_s")});
  return c;
}

}  // namespace molen::program
