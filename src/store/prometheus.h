// Writes the Prometheus text format 0.0.4 to a file, for node_exporter's textfile collector: so a compute node needs no
// open port. The file is written under another name and renamed, as the collector requires.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/file.h"

namespace molen::store {

enum class PrometheusType { kCounter, kGauge, kUntyped };

struct PrometheusSample {
  std::string name;  // [a-zA-Z_:][a-zA-Z0-9_:]*; base units in it; a counter ends in _total
  std::string help;  // any text; the same for all samples of a name
  PrometheusType type = PrometheusType::kGauge;
  std::map<std::string, std::string> labels;  // names [a-zA-Z_][a-zA-Z0-9_]*, not __...; values any UTF-8
  double value = 0;                           // NaN and infinities are written as such; leave out unmeasured values
};

// Writes samples of one name together, under one HELP and one TYPE line, in the order in which names first appear.
// Throws Error for a name or label that Prometheus would refuse, a counter not named _total, two help texts or types of
// one name, or two samples with the same name and labels: one bad line makes the collector drop the whole file.
std::string prometheus_text(const std::vector<PrometheusSample>& samples);

// Writes the file atomically: a scrape sees the old or the new one. The collector reads only names that end in .prom.
void write_prometheus(const fs::path& path, const std::vector<PrometheusSample>& samples);

}  // namespace molen::store
