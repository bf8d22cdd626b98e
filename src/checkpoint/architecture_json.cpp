#include "checkpoint/architecture_json.h"

#include <array>

#include "base/error.h"
#include "checkpoint/fields.h"

namespace molen::checkpoint {
namespace {

template <class Enum, std::size_t N>
Enum choice(const Fields& fields, std::string_view key, const std::array<Enum, N>& values) {
  const std::string text = fields.text(key);
  for (const Enum value : values)
    if (arch::name_of(value) == text) return value;
  throw UsageError("{}: '{}' is '{}', which is not known", fields.origin(), key, text);
}

}  // namespace

Json to_json(const arch::Architecture& a) {
  Json json{{"name", a.name},
            {"family", arch::name_of(a.family)},
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
            {"norm", arch::name_of(a.norm)},
            {"position", arch::name_of(a.position)},
            {"activation", arch::name_of(a.activation)},
            {"init_std", a.init_std}};
  if (a.rope_scaling) {
    json["rope_scaling"] = {{"factor", a.rope_scaling->factor},
                            {"low_freq_factor", a.rope_scaling->low_freq_factor},
                            {"high_freq_factor", a.rope_scaling->high_freq_factor},
                            {"original_max_sequence", a.rope_scaling->original_max_sequence}};
  }
  return json;
}

arch::Architecture architecture_from_json(const Json& json, std::string_view origin) {
  using namespace arch;
  const Fields f(json, std::string(origin));
  Architecture a;
  a.name = f.text("name", "custom");
  a.family = choice(f, "family", std::array{Family::kLlama, Family::kGpt});
  a.layers = f.integer("layers");
  a.hidden = f.integer("hidden");
  a.ffn = f.integer("ffn");
  a.heads = f.integer("heads");
  a.kv_heads = f.integer("kv_heads");
  a.head_dim = f.integer("head_dim");
  a.vocabulary = f.integer("vocabulary");
  a.max_sequence = f.integer("max_sequence");
  a.rope_theta = f.number("rope_theta");
  a.tied = f.boolean("tied");
  a.biases = f.boolean("biases");
  a.norm_eps = f.number("norm_eps");
  a.norm = choice(f, "norm", std::array{Norm::kRms, Norm::kLayer, Norm::kLayerPlain});
  a.position = choice(f, "position", std::array{Position::kRope, Position::kLearned, Position::kAlibi});
  a.activation = choice(f, "activation", std::array{Activation::kSwiGlu, Activation::kGeluTanh});
  a.init_std = f.number("init_std");
  if (const Json* scaling = f.find("rope_scaling")) {
    const Fields s(*scaling, f.origin() + ": rope_scaling");
    a.rope_scaling = RopeScaling{s.number("factor"), s.number("low_freq_factor"), s.number("high_freq_factor"),
                                 s.integer("original_max_sequence")};
  }
  try {
    validate(a);
  } catch (const UsageError& error) {
    throw UsageError("{}: {}", origin, error.what());
  }
  return a;
}

}  // namespace molen::checkpoint
