// Selects layouts of a long list so that they still have every pair of choices that layouts of the list have. `make
// test` proves the selected layouts, and `tools/nightly.sh exhaustive` proves the whole lists.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/set_cover.h"
#include "base/test_sanitized.h"
#include "prove/layouts_suite.h"

namespace molen::prove::suite {

// Returns the choices in which a layout differs from one rank that keeps all its values. Numbers of ranks, other than
// that of tensor ranks, are one choice: how many there are changes sizes, and not which ops run.
inline std::vector<std::string> choices_of(const Layout& l) {
  std::vector<std::string> choices;
  const auto add = [&](bool differs, std::string name) {
    if (differs) choices.push_back(std::move(name));
  };
  add(l.shards > 1, "shards");
  add(l.zero > 0, fmt::format("zero {}", l.zero));
  add(l.replicas > 1, l.own_over_dp ? "replicas, optimizer over all" : "replicas");
  add(l.prefetch != 1, fmt::format("prefetch {}", l.prefetch));
  add(l.recompute, "recompute");
  add(!l.recomputed.empty(), "recompute of parts");
  add(l.tensor > 1, l.tensor % 2 ? "tensor, odd" : "tensor, even");
  add(l.rows, "rows");
  add(l.chunks > 1, "chunks");
  add(l.stages > 1, fmt::format("{} x {}", program::name_of(l.pipeline.schedule), l.pipeline.chunks));
  add(l.stages > 2, "three stages or more");
  add(l.context > 1, l.form == program::ContextForm::kRing ? "ring" : "gathered context");
  add(!l.order.empty(), "order of axes");
  add(l.documents, "documents");
  add(l.unit_layers == program::kHalfLayer, "units of half a layer");
  add(l.unit_layers > 1, "units of several layers");
  add(l.experts > 1, "expert ranks");
  for (const auto& [name, on_host] : program::kOffloads) add(l.offload.*on_host, fmt::format("{} on the host", name));
  return choices;
}

// Returns layouts of `all`, in their order, that together have each choice and each pair of choices that a layout of
// `all` has. The exhaustive run gets all of them.
inline std::vector<Layout> covering(const std::vector<Layout>& all) {
  if (exhaustive()) return all;
  std::vector<std::vector<std::string>> pairs;
  for (const Layout& l : all) {
    const auto choices = choices_of(l);
    auto& of_layout = pairs.emplace_back(std::vector<std::string>{"any"});
    for (std::size_t i = 0; i < choices.size(); ++i)
      for (std::size_t j = i; j < choices.size(); ++j) of_layout.push_back(choices[i] + "|" + choices[j]);
  }
  std::vector<Layout> chosen;
  for (const std::size_t i : set_cover(pairs)) chosen.push_back(all[i]);
  return chosen;
}

}  // namespace molen::prove::suite
