#include "config/names.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"

namespace molen::config {
namespace {

constexpr std::size_t kLongestKey = 100;  // characters compared with valid keys, and shown

const std::map<std::string, const Field*, std::less<>>& by_key() {
  static const auto index = [] {
    std::map<std::string, const Field*, std::less<>> map;
    for (const Field& f : fields()) map[f.key] = &f;
    return map;
  }();
  return index;
}

std::vector<std::string> table_names() {
  std::vector<std::string> names;
  for (const Field& f : fields()) {
    const std::string table = f.key.substr(0, f.key.find('.'));
    if (names.empty() || names.back() != table) names.push_back(table);
  }
  return names;
}

// Returns our key for another system's name of a setting, in lower case.
std::string_view known_elsewhere_as(std::string_view name) {
  static const std::map<std::string_view, std::string_view> names{
      {"batch_size", "batch.global"},
      {"global_batch", "batch.global"},
      {"global_batch_size", "batch.global"},
      {"micro_batch", "batch.micro"},
      {"micro_batch_size", "batch.micro"},
      {"context_length", "data.sequence_length"},
      {"seq_len", "data.sequence_length"},
      {"seq_length", "data.sequence_length"},
      {"block_size", "data.sequence_length"},
      {"max_seq_len", "model.max_sequence"},
      {"max_position_embeddings", "model.max_sequence"},
      {"vocab_size", "model.vocabulary"},
      {"hidden_size", "model.hidden"},
      {"d_model", "model.hidden"},
      {"dim", "model.hidden"},
      {"n_embd", "model.hidden"},
      {"intermediate_size", "model.ffn"},
      {"ffn_hidden_size", "model.ffn"},
      {"n_layer", "model.layers"},
      {"n_layers", "model.layers"},
      {"num_layers", "model.layers"},
      {"num_hidden_layers", "model.layers"},
      {"n_head", "model.heads"},
      {"n_heads", "model.heads"},
      {"num_heads", "model.heads"},
      {"num_attention_heads", "model.heads"},
      {"n_kv_heads", "model.kv_heads"},
      {"num_key_value_heads", "model.kv_heads"},
      {"num_query_groups", "model.kv_heads"},
      {"tie_word_embeddings", "model.tied"},
      {"num_experts", "model.experts"},
      {"num_local_experts", "model.experts"},
      {"num_experts_per_tok", "model.experts_per_token"},
      {"moe_router_topk", "model.experts_per_token"},
      {"moe_intermediate_size", "model.expert_ffn"},
      {"n_shared_experts", "model.shared_experts"},
      {"first_k_dense_replace", "model.dense_layers"},
      {"moe_ffn_hidden_size", "model.expert_ffn"},
      {"norm_topk_prob", "model.norm_topk"},
      {"scoring_func", "model.router_scores"},
      {"moe_router_score_function", "model.router_scores"},
      {"routed_scaling_factor", "model.router_scale"},
      {"moe_router_topk_scaling_factor", "model.router_scale"},
      {"moe_router_bias_update_rate", "model.router_bias_rate"},
      {"moe_expert_capacity_factor", "model.expert_capacity"},
      {"moe_aux_loss_coeff", "model.balance_loss"},
      {"moe_z_loss_coeff", "model.z_loss"},
      {"learning_rate", "optimizer.lr"},
      {"max_lr", "optimizer.lr"},
      {"min_learning_rate", "schedule.min_lr"},
      {"adam_eps", "optimizer.eps"},
      {"clip_grad", "optimizer.clip"},
      {"grad_clip", "optimizer.clip"},
      {"gradient_clipping", "optimizer.clip"},
      {"max_grad_norm", "optimizer.clip"},
      {"lr_decay_style", "schedule.kind"},
      {"lr_scheduler", "schedule.kind"},
      {"scheduler", "schedule.kind"},
      {"warmup_steps", "schedule.warmup"},
      {"lr_warmup_iters", "schedule.warmup"},
      {"steps", "train.until"},
      {"max_steps", "train.until"},
      {"train_iters", "train.until"},
      {"train_steps", "train.until"},
      {"num_train_epochs", "train.until"},
      {"eval_interval", "train.validate_every"},
      {"save_interval", "checkpoint.every"},
      {"save_steps", "checkpoint.every"},
      {"dtype", "precision.compute"},
      {"tensor_parallel", "parallel.tensor"},
      {"tensor_parallel_degree", "parallel.tensor"},
      {"tensor_model_parallel_size", "parallel.tensor"},
      {"tp", "parallel.tensor"},
      {"sequence_parallel", "parallel.sequence"},
      {"pipeline_parallel", "parallel.pipeline"},
      {"pipeline_parallel_degree", "parallel.pipeline"},
      {"pipeline_model_parallel_size", "parallel.pipeline"},
      {"pp", "parallel.pipeline"},
      {"context_parallel", "parallel.context"},
      {"context_parallel_size", "parallel.context"},
      {"cp", "parallel.context"},
      {"expert_parallel", "parallel.expert"},
      {"expert_model_parallel_size", "parallel.expert"},
      {"ep", "parallel.expert"},
      {"dp", "parallel.data_replicate"},
      {"zero_stage", "parallel.zero"},
      {"activation_checkpointing", "parallel.recompute"},
      {"recompute_granularity", "parallel.recompute"},
      {"output_dir", "run.dir"},
  };
  const auto found = names.find(name);
  return found == names.end() ? "" : found->second;
}

// Suggests our key for another system's name, or the key of the same name in another table, or else the nearest of all
// keys.
std::string key_suggestion(std::string_view key) {
  if (key.size() > kLongestKey) return "";
  const std::string_view name = key.substr(key.find('.') + 1);  // the whole key if it has no dot
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (const std::string_view ours = known_elsewhere_as(lower); !ours.empty())
    return fmt::format("; did you mean '{}'?", ours);
  std::vector<std::string> all;
  for (const Field& f : fields()) {
    if (f.key.substr(f.key.find('.') + 1) == name) return fmt::format("; did you mean '{}'?", f.key);
    all.push_back(f.key);
  }
  return did_you_mean(key, all);
}

}  // namespace

const Field* find_field(std::string_view key) {
  const auto found = by_key().find(key);
  return found == by_key().end() ? nullptr : found->second;
}

bool is_table(std::string_view name) {
  const auto names = table_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string table_suggestion(std::string_view table) {
  return did_you_mean(table, table_names());
}

std::string shown(std::string_view key) {
  return key.size() <= kLongestKey ? std::string(key) : std::string(key.substr(0, kLongestKey)) + "...";
}

void unknown_key(std::string_view where, std::string_view key) {
  throw UsageError("{}unknown key {}{} (`molen config reference` lists all)", where, shown(key), key_suggestion(key));
}

}  // namespace molen::config
