// molen model list | show NAME
#include <fmt/format.h>

#include "apps/cli.h"
#include "arch/parameters.h"
#include "arch/parts.h"
#include "base/json.h"
#include "program/parts/part.h"

namespace molen::apps {
namespace {

Json describe(const arch::Architecture& a) {
  Json json{{"name", a.name},
            {"family", std::string(name_of(a.family))},
            {"layers", a.layers},
            {"hidden", a.hidden},
            {"ffn", a.ffn},
            {"heads", a.heads},
            {"kv_heads", a.kv_heads},
            {"head_dim", a.head_dim},
            {"vocabulary", a.vocabulary},
            {"max_sequence", a.max_sequence},
            {"tied", a.tied},
            {"norm", std::string(name_of(a.norm))},
            {"position", std::string(name_of(a.position))},
            {"activation", std::string(name_of(a.activation))},
            {"parameters", arch::num_parameters(a)}};
  if (!a.experts) return json;
  const arch::Experts& e = *a.experts;
  if (!a.dense()) json.erase("ffn");  // the width of a dense MLP, which no layer has
  if (a.dense()) json["dense_layers"] = e.dense_layers;
  if (e.scores != arch::RouterScores::kSoftmax) json["router_scores"] = name_of(e.scores);
  if (e.scale != 1.0) json["router_scale"] = e.scale;
  if (a.biases_router()) json["router_bias_rate"] = e.bias_rate;
  if (a.drops_tokens()) json["expert_capacity"] = e.capacity;
  if (a.shares_experts()) json["shared_experts"] = e.shared;
  json.update({{"experts", e.count},
               {"experts_per_token", e.per_token},
               {"expert_ffn", e.ffn},
               {"active_parameters", arch::num_active_parameters(a)}});
  return json;
}

// The width of a layer's MLP: "8 x 14336" where it has eight experts.
std::string width_of(const arch::Architecture& a) {
  return a.experts ? fmt::format("{} x {}", a.experts->count, a.experts->ffn) : fmt::format("{}", a.ffn);
}

int list_presets(const std::string& format) {
  if (format == "json") {
    Json all = Json::array();
    for (const auto& a : arch::presets()) all.push_back(describe(a));
    fmt::print("{}\n", all.dump(2));
    return kOk;
  }
  fmt::print("{:<14} {:>12} {:>6} {:>7} {:>9} {:>6} {:>5} {:>10}\n", "name", "parameters", "layers", "hidden", "ffn",
             "heads", "kv", "vocabulary");
  for (const auto& a : arch::presets())
    fmt::print("{:<14} {:>12} {:>6} {:>7} {:>9} {:>6} {:>5} {:>10}\n", a.name,
               human_count(static_cast<double>(arch::num_parameters(a))), a.layers, a.hidden, width_of(a), a.heads,
               a.kv_heads, a.vocabulary);
  return kOk;
}

int show_preset(const std::string& name, std::int64_t sequence, arch::FlopsConvention mfu, const std::string& format) {
  const auto& a = arch::preset(name);
  const std::int64_t s = sequence > 0 ? sequence : std::min<std::int64_t>(a.max_sequence, 4096);
  arch::PartShape shape;
  shape.sequence = s;
  shape.compute = DType::kBF16;
  shape.kernels = arch::Kernels::kAten;
  Json parts = Json::array();
  for (const arch::Part part : arch::parts_in_order(a)) {
    shape.chunk = program::of_head(part) ? s : 0;
    const auto f = program::part_cost(a, part, arch::Pass::kForward, shape),
               b = program::part_cost(a, part, arch::Pass::kBackward, shape);
    parts.push_back({{"part", std::string(arch::name_of(part))},
                     {"forward_flops", f.flops.value},
                     {"backward_flops", b.flops.value},
                     {"forward_bytes", f.moved.value},
                     {"backward_bytes", b.moved.value}});
  }
  Json j = describe(a);
  const double causal = arch::model_flops(a, s, s, arch::FlopsConvention::kCausal).value / static_cast<double>(s);
  const double palm = arch::model_flops(a, s, s, arch::FlopsConvention::kPalm).value / static_cast<double>(s);
  j["sequence"] = s;
  j["flops_formula"] = name_of(mfu);
  j["train_flops_per_token"] = mfu == arch::FlopsConvention::kCausal ? causal : palm;
  j["train_flops_per_token_causal"] = causal;
  j["train_flops_per_token_palm"] = palm;
  j["parts_of_one_sequence_bf16"] = parts;
  if (format == "json") {
    fmt::print("{}\n", j.dump(2));
    return kOk;
  }
  fmt::print("{}: {} parameters ({})\n", a.name, arch::num_parameters(a),
             human_count(static_cast<double>(arch::num_parameters(a))));
  for (const auto& [key, value] : j.items())
    if (value.is_primitive() && key != "name" && key != "parameters")
      fmt::print("  {:<30} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  fmt::print("\ntraining takes {} a token ({}: {})\n", human(Flops(j["train_flops_per_token"].get<double>())),
             name_of(mfu), formula_of(mfu));
  fmt::print("\none sequence of {} tokens in bf16, each part once:\n  {:<17} {:>14} {:>14} {:>14} {:>14}\n", s, "part",
             "forward", "backward", "moved forward", "moved backward");
  for (const auto& p : parts)
    fmt::print("  {:<17} {:>14} {:>14} {:>14} {:>14}\n", p["part"].get<std::string>(),
               human(Flops(p["forward_flops"].get<double>())), human(Flops(p["backward_flops"].get<double>())),
               human(Bytes(p["forward_bytes"].get<std::int64_t>())),
               human(Bytes(p["backward_bytes"].get<std::int64_t>())));
  return kOk;
}

}  // namespace

void add_model_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* model = app.add_subcommand("model", "presets; parameters, FLOPs, bytes");
  model->require_subcommand(1);
  CLI::App* all = model->add_subcommand("list", "all presets");
  auto list_format = add_format_option(*all);
  all->callback([&chosen, list_format] { chosen.action = [list_format] { return list_presets(*list_format); }; });
  CLI::App* one = model->add_subcommand("show", "one preset: parameters, FLOPs and bytes per part");
  auto name = std::make_shared<std::string>();
  auto sequence = std::make_shared<std::int64_t>(0);
  one->add_option("NAME", *name, "preset")->required();
  one->add_option("--sequence", *sequence, "tokens of a sequence (default: the model's, up to 4096)");
  auto mfu = add_mfu_option(*one);
  auto show_format = add_format_option(*one);
  one->callback([&chosen, name, sequence, mfu, show_format] {
    chosen.action = [=] { return show_preset(*name, *sequence, arch::flops_convention_from_name(*mfu), *show_format); };
  });
}

}  // namespace molen::apps
