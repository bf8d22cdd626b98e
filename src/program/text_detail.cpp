#include "program/text_detail.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"

namespace molen::program::detail {
namespace {

template <class E>
E enum_from(std::int64_t value, std::int64_t count, std::string_view what) {
  if (value < 0 || value >= count) throw UsageError("{}: {} is not a known choice", what, value);
  return static_cast<E>(value);
}

template <class T>
T get(const Json& json, const char* key, std::string_view origin) {
  try {
    return json_member(json, key, origin).get<T>();
  } catch (const Json::exception& e) {
    throw UsageError("{}: arch.{}: {}", origin, key, e.what());
  }
}

}  // namespace

Json arch_to_json(const arch::Architecture& a) {
  Json j{{"name", a.name},
         {"family", static_cast<int>(a.family)},
         {"layers", a.layers},
         {"hidden", a.hidden},
         {"ffn", a.ffn},
         {"heads", a.heads},
         {"kv_heads", a.kv_heads},
         {"head_dim", a.head_dim},
         {"vocabulary", a.vocabulary},
         {"max_sequence", a.max_sequence},
         {"rope_theta", a.rope_theta},
         {"tied", a.tied},
         {"biases", a.biases},
         {"norm_eps", a.norm_eps},
         {"norm", static_cast<int>(a.norm)},
         {"position", static_cast<int>(a.position)},
         {"activation", static_cast<int>(a.activation)},
         {"init_std", a.init_std}};
  if (a.rope_scaling)
    j["rope_scaling"] = {{"factor", a.rope_scaling->factor},
                         {"low_freq_factor", a.rope_scaling->low_freq_factor},
                         {"high_freq_factor", a.rope_scaling->high_freq_factor},
                         {"original_max_sequence", a.rope_scaling->original_max_sequence}};
  return j;
}

arch::Architecture arch_from_json(const Json& j, std::string_view origin) {
  arch::Architecture a;
  const auto integer = [&](const char* key) { return get<std::int64_t>(j, key, origin); };
  a.name = get<std::string>(j, "name", origin);
  a.family = enum_from<arch::Family>(integer("family"), 2, "arch.family");
  a.layers = integer("layers");
  a.hidden = integer("hidden");
  a.ffn = integer("ffn");
  a.heads = integer("heads");
  a.kv_heads = integer("kv_heads");
  a.head_dim = integer("head_dim");
  a.vocabulary = integer("vocabulary");
  a.max_sequence = integer("max_sequence");
  a.rope_theta = get<double>(j, "rope_theta", origin);
  a.tied = get<bool>(j, "tied", origin);
  a.biases = get<bool>(j, "biases", origin);
  a.norm_eps = get<double>(j, "norm_eps", origin);
  a.norm = enum_from<arch::Norm>(integer("norm"), 3, "arch.norm");
  a.position = enum_from<arch::Position>(integer("position"), 3, "arch.position");
  a.activation = enum_from<arch::Activation>(integer("activation"), 2, "arch.activation");
  a.init_std = get<double>(j, "init_std", origin);
  if (j.contains("rope_scaling")) {
    const Json& s = j.at("rope_scaling");
    a.rope_scaling = arch::RopeScaling{get<double>(s, "factor", origin), get<double>(s, "low_freq_factor", origin),
                                       get<double>(s, "high_freq_factor", origin),
                                       get<std::int64_t>(s, "original_max_sequence", origin)};
  }
  return a;
}

std::string setting_to_text(const Setting& s) {
  return fmt::format(
      "purpose={} data_ranks={} zero={} recompute={} global_batch={} micro_batch={} sequence={} compute={} master={} "
      "reduce={} kernels={} "
      "threads={} head_chunk={}",
      s.purpose == Purpose::kTrain ? "train" : "evaluate", s.data_ranks, s.zero, s.recompute ? 1 : 0, s.global_batch,
      s.micro_batch, s.sequence, name_of(s.compute), name_of(s.master), name_of(s.reduce),
      s.kernels == arch::Kernels::kReference ? "reference"
      : s.kernels == arch::Kernels::kFused   ? "fused"
                                             : "aten",
      s.threads, s.head_chunk);
}

Setting setting_from_text(const std::map<std::string, std::string>& values, const std::string& where) {
  const auto text = [&](const std::string& key) -> const std::string& {
    const auto found = values.find(key);
    if (found == values.end()) throw UsageError("{}: setting has no '{}'", where, key);
    return found->second;
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
  s.data_ranks = static_cast<int>(integer("data_ranks", 1, 1 << 24));
  s.zero = static_cast<int>(integer("zero", 0, 3));
  s.recompute = integer("recompute", 0, 1) == 1;
  s.global_batch = integer("global_batch", 1, std::int64_t{1} << 40);
  s.micro_batch = integer("micro_batch", 1, std::int64_t{1} << 30);
  s.sequence = integer("sequence", 1, std::int64_t{1} << 30);
  s.compute = dtype_from_name(text("compute"));
  s.master = dtype_from_name(text("master"));
  s.reduce = dtype_from_name(text("reduce"));
  const std::string& kernels = text("kernels");
  if (kernels == "reference")
    s.kernels = arch::Kernels::kReference;
  else if (kernels == "fused")
    s.kernels = arch::Kernels::kFused;
  else if (kernels == "aten")
    s.kernels = arch::Kernels::kAten;
  else
    throw UsageError("{}: kernels={} must be reference, fused or aten", where, kernels);
  s.threads = static_cast<int>(integer("threads", 1, 1 << 16));
  s.head_chunk = integer("head_chunk", 1, std::int64_t{1} << 30);
  return s;
}

}  // namespace molen::program::detail
