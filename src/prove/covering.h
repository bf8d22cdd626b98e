// A part of a list of layouts that still has every pair of choices of the list. `make test` proves that part of the
// long lists, and `tools/nightly.sh exhaustive` proves all of each list.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/test_sanitized.h"
#include "plan/layouts.h"
#include "prove/layouts_suite.h"

namespace molen::prove::suite {

// Returns one choice for each dimension of a layout, which is empty where the layout is as one rank that keeps all its
// values. Numbers of ranks, other than that of tensor ranks, are one choice: how many there are changes sizes, and not
// which ops run. The first choice is the same for all layouts, so that each other choice is in a pair.
inline std::vector<std::string> choices_of(const Layout& l) {
  const auto if_so = [](bool differs, const std::string& name) { return differs ? name : std::string(); };
  std::vector<std::string> choices{
      "any",
      if_so(l.shards > 1, "shards"),
      if_so(l.zero > 0, std::to_string(l.zero)),
      if_so(l.replicas > 1, l.own_over_dp ? "optimizer over all" : "replicas"),
      if_so(l.prefetch != 1, std::to_string(l.prefetch)),
      if_so(l.recompute || !l.recomputed.empty(), l.recompute ? "all" : "parts"),
      if_so(l.tensor > 1, l.tensor % 2 ? "odd" : "even"),
      if_so(l.rows, "rows"),
      if_so(l.chunks > 1, "chunks"),
      if_so(l.stages > 1, fmt::format("{} x {}", program::name_of(l.pipeline.schedule), l.pipeline.chunks)),
      if_so(l.stages > 2, "three stages or more"),
      if_so(l.context > 1, l.form == program::ContextForm::kRing ? "ring" : "gathered"),
      if_so(!l.order.empty(), "order of axes"),
      if_so(l.documents, "documents"),
      if_so(l.unit_layers != 1, l.unit_layers == program::kHalfLayer ? "half a layer" : "several layers"),
      if_so(l.experts > 1, "expert ranks")};
  for (const auto& [name, on_host] : program::kOffloads)
    choices.push_back(if_so(l.offload.*on_host, std::string(name)));
  return choices;
}

// Returns layouts of `all`, in their order, that together have each pair of choices that a layout of `all` has. The
// exhaustive run gets all of them.
inline std::vector<Layout> covering(const std::vector<Layout>& all) {
  if (exhaustive()) return all;
  std::vector<plan::Layout> named;
  for (std::size_t i = 0; i < all.size(); ++i)
    named.push_back({.name = std::to_string(i), .strategy = {}, .setting = {}, .choices = choices_of(all[i])});
  std::vector<Layout> chosen;
  for (const plan::Layout& l : plan::covering_pairs(named)) chosen.push_back(all[std::stoul(l.name)]);
  return chosen;
}

}  // namespace molen::prove::suite
