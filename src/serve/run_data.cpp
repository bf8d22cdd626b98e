#include "serve/run_data.h"

#include "base/error.h"

namespace molen::serve {

RunData read_run(const fs::path& path) {
  if (!fs::exists(path / "metrics.jsonl")) throw UsageError("{}: no metrics.jsonl here; is it a run directory?", path.string());
  RunData run;
  run.path = path;
  run.metrics = store::read_metrics(path / "metrics.jsonl");
  if (fs::exists(path / "config.toml")) run.config = read_file(path / "config.toml");
  if (fs::exists(path / "environment.json")) run.environment = read_json(path / "environment.json");
  if (fs::exists(path / "predicted.json")) run.predicted = read_json(path / "predicted.json");
  if (!fs::exists(path / "events.jsonl")) return run;
  const std::string text = read_file(path / "events.jsonl");
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (line.empty() || !Json::accept(line)) continue;   // a line torn by a crash
    Json event = parse_json(line, (path / "events.jsonl").string());
    if (!event.is_object()) continue;
    if (event.value("event", "") == "validation") {
      Validation v;
      v.step = event.value("step", std::int64_t{0});
      v.loss = event.contains("loss") && event["loss"].is_number() ? event["loss"].get<double>() : 0.0;
      if (event.contains("bits_per_byte") && event["bits_per_byte"].is_object())
        for (const auto& [language, bits] : event["bits_per_byte"].items())
          if (bits.is_number()) v.bits_per_byte[language] = bits.get<double>();
      run.validations.push_back(std::move(v));
    }
    run.events.push_back(std::move(event));
  }
  return run;
}

}  // namespace molen::serve
