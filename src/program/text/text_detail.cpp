#include "program/text/text_detail.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/suggest.h"
#include "program/build/recompute.h"
#include "program/parts/part.h"
#include "program/values/optimizer.h"

namespace molen::program::detail {

namespace {

std::string pipeline_text(const Setting& s) {
  const Pipeline& p = s.pipeline;
  std::string text = fmt::format(" pp={}", s.stages());
  if (!s.pipelined()) return text;
  text += fmt::format(" schedule={} placement={} chunks={} halves={} stage={}", name_of(p.schedule),
                      name_of(p.placement), p.chunks, p.halves ? 1 : 0, p.stage);
  if (!p.layers.empty()) text += fmt::format(" layers={}", fmt::join(p.layers, ","));
  return text;
}

// Returns " other_kernels=attention:unfused", or an empty string.
std::string kernels_text(const Setting& s) {
  std::string text;
  for (const auto& [part, kernels] : s.other_kernels)
    text += fmt::format("{}{}:{}", text.empty() ? " other_kernels=" : ",", arch::name_of(part), name_of(kernels));
  return text;
}

}  // namespace

std::string setting_to_text(const Setting& s) {
  return fmt::format(
             "purpose={} dp_replicate={} dp_shard={} cp={} tp={} order={} sequence_parallel={} zero={} own_over_dp={} "
             "prefetch={} offload={} "
             "recompute={} global_batch={} "
             "micro_batch={} sequence={} document_mask={} compute={} master={} "
             "reduce={} kernels={} "
             "threads={} head_chunk={}{}",
             s.purpose == Purpose::kTrain ? "train" : "evaluate", s.replicas(), s.mesh[mesh::Axis::kDpShard],
             s.context_ranks(), s.tensor_ranks(), mesh::text_of(s.order), s.sequence_parallel ? 1 : 0, s.zero,
             s.own_over_dp ? 1 : 0, s.prefetch, text_of(s.offload), text_of(s.recompute), s.global_batch, s.micro_batch,
             s.sequence, s.document_mask ? 1 : 0, name_of(s.compute), name_of(s.master), name_of(s.reduce),
             arch::name_of(s.kernels), s.threads, s.head_chunk,
             s.context() ? fmt::format(" context_form={}", name_of(s.context_form)) : "") +
         (s.shares_experts() ? fmt::format(" ep={}", s.expert_ranks()) : "") + kernels_text(s) +
         (s.optimizer == Setting{}.optimizer ? "" : " optimizer=" + s.optimizer) +
         (s.tensor_chunks > 1 ? fmt::format(" tensor_chunks={}", s.tensor_chunks) : "") +
         (s.expert_tiles > 1 ? fmt::format(" expert_tiles={}", s.expert_tiles) : "") +
         (s.unit_layers == 1            ? ""
          : s.unit_layers == kHalfLayer ? " unit_layers=half"
                                        : fmt::format(" unit_layers={}", s.unit_layers)) +
         pipeline_text(s);
}

namespace {

template <class E, class All>
E named(const std::string& text, const All& all, const std::string& where, const char* key) {
  for (const E e : all)
    if (name_of(e) == text) return e;
  std::vector<std::string_view> known;
  for (const E e : all) known.push_back(name_of(e));
  throw UsageError("{}: setting {}={} must be one of {}", where, key, text, fmt::join(known, ", "));
}

std::vector<std::int64_t> layers_from_text(const std::string& text, const std::string& where) {
  std::vector<std::int64_t> layers;
  for (const char *at = text.data(), *end = at + text.size();; ++at) {
    std::int64_t n = 0;
    const auto [next, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 1 || n > (std::int64_t{1} << 31) || (next != end && *next != ','))
      throw UsageError("{}: setting layers={} must be a list of layers such as 3,4", where, text);
    layers.push_back(n);
    if (next == end) return layers;
    at = next;
  }
}

std::map<arch::Part, arch::Kernels> other_kernels_from_text(const std::string& text, arch::Kernels usual,
                                                            const std::string& where) {
  std::map<arch::Part, arch::Kernels> others;
  std::istringstream in(text + (text.empty() ? "," : ""));
  for (std::string word; std::getline(in, word, ',');) {
    const auto colon = std::min(word.find(':'), word.size());
    const auto part = std::find_if(arch::kAllParts.begin(), arch::kAllParts.end(),
                                   [&](arch::Part p) { return arch::name_of(p) == word.substr(0, colon); });
    const auto& all = all_kernels();
    const auto kernels = std::find_if(
        all.begin(), all.end(), [&](arch::Kernels k) { return ":" + std::string(name_of(k)) == word.substr(colon); });
    if (part == arch::kAllParts.end() || kernels == all.end() || *kernels == usual ||
        !declaration_of(*part).find_kernels(*kernels) || !others.emplace(*part, *kernels).second)
      throw UsageError(
          "{}: setting other_kernels={} must be a list of parts and kernels that they have, other than kernels={}, "
          "such as {}",
          where, text, name_of(usual), "attention:unfused");
  }
  return others;
}

Offload offload_from_text(const std::string& text, const std::string& where) {
  Offload o;
  if (text == "none") return o;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    const auto found = std::find_if(kOffloads.begin(), kOffloads.end(), [&](const auto& k) { return k.first == word; });
    if (found == kOffloads.end() || std::exchange(o.*found->second, true))
      throw UsageError("{}: setting offload={} must be none, or a list such as optimizer,gradients", where, text);
  }
  return o;
}

}  // namespace

Setting setting_from_text(const std::map<std::string, std::string>& values, const std::string& where) {
  std::vector<std::string> known;
  const auto has = [&](const std::string& key) {
    known.push_back(key);
    return values.contains(key);
  };
  const auto text = [&](const std::string& key) -> const std::string& {
    if (!has(key)) throw UsageError("{}: setting has no '{}'", where, key);
    return values.at(key);
  };
  const auto integer = [&](const std::string& key, std::int64_t low, std::int64_t high) {
    const std::string& t = text(key);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), value);
    if (error != std::errc() || end != t.data() + t.size() || value < low || value > high)
      throw UsageError("{}: setting {}={} must be an integer in [{}, {}]", where, key, t, low, high);
    return value;
  };
  Setting s;
  if (text("purpose") != "train" && text("purpose") != "evaluate")
    throw UsageError("{}: purpose must be train or evaluate", where);
  s.purpose = text("purpose") == "train" ? Purpose::kTrain : Purpose::kEvaluate;
  s.mesh[mesh::Axis::kDpReplicate] = static_cast<int>(integer("dp_replicate", 1, 1 << 20));
  s.mesh[mesh::Axis::kDpShard] = static_cast<int>(integer("dp_shard", 1, 1 << 20));
  s.mesh[mesh::Axis::kCp] = static_cast<int>(integer("cp", 1, 1 << 16));
  if (has("ep")) s.mesh[mesh::Axis::kEp] = static_cast<int>(integer("ep", 1, 1 << 16));
  s.mesh[mesh::Axis::kTp] = static_cast<int>(integer("tp", 1, 1 << 16));
  s.mesh[mesh::Axis::kPp] = static_cast<int>(integer("pp", 1, 1 << 16));
  std::int64_t ranks = 1;
  for (const int size : s.mesh.values) {
    ranks *= size;
    if (ranks > (std::int64_t{1} << 30)) throw UsageError("{}: more than {} ranks", where, 1 << 30);
  }
  if (s.pipelined()) {
    constexpr std::array kKinds{ScheduleKind::kGpipe, ScheduleKind::k1f1b, ScheduleKind::kInterleaved,
                                ScheduleKind::kZbH1,  ScheduleKind::kZbV,  ScheduleKind::kFile};
    s.pipeline.schedule = named<ScheduleKind>(text("schedule"), kKinds, where, "schedule");
    s.pipeline.placement =
        named<Placement>(text("placement"), std::array{Placement::kInterleaved, Placement::kV}, where, "placement");
    s.pipeline.chunks = static_cast<int>(integer("chunks", s.pipeline.placement == Placement::kV ? 2 : 1,
                                                 s.pipeline.placement == Placement::kV ? 2 : 1 << 16));
    s.pipeline.halves = integer("halves", 0, 1) == 1;
    s.pipeline.stage = static_cast<int>(integer("stage", 0, s.stages() - 1));
    if (has("layers")) s.pipeline.layers = layers_from_text(text("layers"), where);
  }
  if (s.context())
    s.context_form = named<ContextForm>(text("context_form"), std::array{ContextForm::kGather, ContextForm::kRing},
                                        where, "context_form");
  const auto checked = [&](const char* key, const auto& parse) {
    const std::string& given = text(key);
    try {
      return parse(given);
    } catch (const UsageError& error) {
      throw UsageError("{}: setting {}: {}", where, key, error.what());
    }
  };
  s.order = checked("order", mesh::parse_order);
  s.sequence_parallel = integer("sequence_parallel", 0, 1) == 1;
  if (has("tensor_chunks")) s.tensor_chunks = integer("tensor_chunks", 1, kMaxTensorChunks);
  if (has("expert_tiles")) s.expert_tiles = integer("expert_tiles", 1, kMaxExpertTiles);
  if (has("unit_layers"))
    s.unit_layers = text("unit_layers") == "half" ? kHalfLayer : integer("unit_layers", 1, 1 << 16);
  s.own_over_dp = integer("own_over_dp", 0, 1) == 1;
  s.prefetch = static_cast<int>(integer("prefetch", 0, 1 << 16));
  s.zero = static_cast<int>(integer("zero", 0, 3));
  if (has("optimizer")) {
    s.optimizer = checked("optimizer", optimizer_named).name;
  }
  s.offload = offload_from_text(text("offload"), where);
  s.recompute = checked("recompute", recompute_from_text);
  s.global_batch = integer("global_batch", 1, std::int64_t{1} << 40);
  s.micro_batch = integer("micro_batch", 1, std::int64_t{1} << 30);
  s.sequence = integer("sequence", 1, std::int64_t{1} << 30);
  s.document_mask = integer("document_mask", 0, 1) == 1;
  s.compute = checked("compute", dtype_from_name);
  s.master = checked("master", dtype_from_name);
  s.reduce = checked("reduce", dtype_from_name);
  s.kernels = named<arch::Kernels>(text("kernels"), arch::kAllKernels, where, "kernels");
  if (has("other_kernels")) s.other_kernels = other_kernels_from_text(text("other_kernels"), s.kernels, where);
  s.threads = static_cast<int>(integer("threads", 1, 1 << 16));
  s.head_chunk = integer("head_chunk", 1, std::int64_t{1} << 30);
  for (const auto& [key, value] : values)
    if (std::ranges::count(known, key) == 0)
      throw UsageError("{}: setting {}={} has no meaning here{}", where, key, value, did_you_mean(key, known));
  return s;
}

}  // namespace molen::program::detail
