// The only list of configuration fields. Append new fields to their table; everything else follows from the list.
#include "config/config.h"
#include "config/kinds.h"

namespace molen::config {
namespace {

using namespace kinds;
using C = Config;

std::vector<Field> experts_fields() {
  using T = ModelTable;
  constexpr auto e = Effect::kNumbers;
  const auto m = &C::model;
  return {
      make("model.experts", m, &T::experts, positive(), e,
           "number of experts: small MLPs of which a router chooses some for each token; they replace the MLP of each "
           "layer after the first model.dense_layers layers"),
      make("model.shared_experts", m, &T::shared_experts, natural(), e,
           "further experts of the same width that every token meets, as one MLP of their summed width; where not set, "
           "the preset's, or 0"),
      make("model.dense_layers", m, &T::dense_layers, natural(), e,
           "number of first layers, which have no experts but an MLP of width model.ffn; where not set, the preset's, "
           "or 0"),
      make("model.experts_per_token", m, &T::experts_per_token, positive(), e,
           "experts that the router chooses for each token"),
      make("model.expert_ffn", m, &T::expert_ffn, positive(), e,
           "width of an expert; where not set, the preset's, or model.ffn"),
      make("model.norm_topk", m, &T::norm_topk, boolean(), e,
           "the weights of a token's experts are divided by their sum; where not set, the preset's, or true"),
      make("model.router_scores", m, &T::router_scores, choice({"softmax", "sigmoid"}), e,
           "function that makes the router's scores from its logits; where not set, the preset's, or softmax"),
      make("model.router_scale", m, &T::router_scale, positive_number(), e,
           "factor of the weights of a token's experts; where not set, the preset's, or 1"),
      make("model.router_bias_rate", m, &T::router_bias_rate, natural_number(), e,
           "amount by which each step moves the router's biases, which only the choice of experts uses, towards equal "
           "loads (DeepSeek-V3's balance without a loss); 0: no biases; where not set, the preset's, or 0"),
      make("model.expert_capacity", m, &T::expert_capacity, natural_number(), e,
           "capacity factor: in training, an expert processes only the first tokens of each sequence that choose it, "
           "at most this many times an even share, and drops the others; 0: no token is dropped; where not set, the "
           "preset's, or 0"),
      make("model.balance_loss", m, &T::balance_loss, natural_number(), e,
           "factor of the router's balance loss, the mean over layers of DeepSeek-V3's loss of a sequence, which is 1 "
           "where all experts have the same load; where not set, the preset's, or 0.01"),
      make("model.z_loss", m, &T::z_loss, natural_number(), e,
           "factor of the router's z-loss, the mean over layers and tokens of (log sum exp of the logits)^2; where not "
           "set, the preset's, or 0"),
  };
}

std::vector<Field> model_fields() {
  using T = ModelTable;
  constexpr auto e = Effect::kNumbers;
  const auto m = &C::model;
  std::vector<Field> list{
      make("model.preset", m, &T::preset, text(), e,
           "named architecture (`molen model list`); the keys below override it"),
      make("model.family", m, &T::family, choice({"llama", "gpt"}), e,
           "instead of a preset: llama (RMSNorm, SwiGLU, RoPE) or gpt (LayerNorm, GELU, learned positions, biases)"),
      make("model.layers", m, &T::layers, positive(), e, "transformer layers"),
      make("model.hidden", m, &T::hidden, positive(), e, "width of the residual stream"),
      make("model.ffn", m, &T::ffn, positive(), e, "width of one MLP matrix"),
      make("model.heads", m, &T::heads, positive(), e, "query heads"),
      make("model.kv_heads", m, &T::kv_heads, positive(), e,
           "key and value heads, a divisor of heads; heads where not set"),
      make("model.head_dim", m, &T::head_dim, positive(), e, "width of a head; hidden / heads where not set"),
      make("model.vocabulary", m, &T::vocabulary, positive(), e,
           "number of token ids, at least as many as the tokenizer has; where not set, the preset's, or the "
           "tokenizer's"),
      make("model.max_sequence", m, &T::max_sequence, positive(), e,
           "longest sequence the model is made for; data.sequence_length where neither this nor a preset says it"),
      make("model.rope_theta", m, &T::rope_theta, positive_number(), e, "base of the rotary frequencies"),
      make("model.rope_scaling", m, &T::rope_scaling, rope_scaling(), e,
           "Llama 3.1's rescaled frequencies for long sequences"),
      make("model.tied", m, &T::tied, boolean(), e, "the head shares the embedding table"),
      make("model.biases", m, &T::biases, boolean(), e, "biases on all linear layers but the head"),
      make("model.norm_eps", m, &T::norm_eps, positive_number(), e, "added to the variance in norms"),
      make("model.norm", m, &T::norm, choice({"rms", "layer", "layer_plain"}), e,
           "RMSNorm, LayerNorm, or LayerNorm without parameters"),
      make("model.qk_norm", m, &T::qk_norm, choice({"none", "head", "all"}), e,
           "RMSNorm of queries and keys before RoPE: over each head (Qwen3), or over all heads together (OLMo 2)"),
      make("model.position", m, &T::position, choice({"rope", "learned", "alibi"}), e,
           "how the model encodes positions: rotary (RoPE), learned, or ALiBi"),
      make("model.activation", m, &T::activation, choice({"swiglu", "gelu_tanh"}), e, "the MLP's activation"),
  };
  for (Field& f : experts_fields()) list.push_back(std::move(f));
  list.push_back(make("model.init_std", m, &T::init_std, positive_number(), e,
                      "standard deviation of initial matrices; output projections have 1/sqrt(2 layers) of it"));
  return list;
}

std::vector<Field> data_fields() {
  using T = DataTable;
  constexpr auto e = Effect::kNumbers;
  const auto m = &C::data;
  return {
      make("data.train", m, &T::train, sources(), e,
           "prepared data sets, mixed by weight (1 if not given); `languages` keeps only documents with these tags"),
      make("data.validation", m, &T::validation, sources(), e,
           "held-out data sets, without weights; loss is reported for each, bits per byte by language"),
      make("data.tokenizer", m, &T::tokenizer, path(), e, "tokenizer.json; must be the one that prepared the data"),
      make("data.sequence_length", m, &T::sequence_length, positive(), e, "tokens of a training sequence"),
      make("data.document_mask", m, &T::document_mask, boolean(), e,
           "where a sequence holds several documents, attention stays within each; positions do not start again at a "
           "document"),
      make("data.seed", m, &T::seed, natural(std::int64_t{1} << 53), e, "seed of the order of samples"),
  };
}

std::vector<Field> batch_fields() {
  using T = BatchTable;
  constexpr auto e = Effect::kNumbers;
  const auto m = &C::batch;
  return {
      make("batch.global", m, &T::global, positive(), e, "sequences of an optimizer step, over all ranks"),
      make("batch.micro", m, &T::micro, positive(), e,
           "sequences a rank computes at once; it accumulates gradients until batch.global is complete"),
  };
}

std::vector<Field> parallel_fields() {
  using T = ParallelTable;
  constexpr auto e = Effect::kRun;
  constexpr std::int64_t kRanks = 1 << 20;
  const auto m = &C::parallel;
  return {
      make("parallel.tensor", m, &T::tensor, positive(kRanks), e, "ranks that share each layer's matrices"),
      make("parallel.sequence", m, &T::sequence, boolean(), e,
           "cut norms and residuals along the sequence over the tensor ranks"),
      make("parallel.tensor_chunks", m, &T::tensor_chunks, positive(64), e,
           "with parallel.sequence: number of pieces of a micro-batch's rows; one piece travels while another is "
           "multiplied"),
      make("parallel.pipeline", m, &T::pipeline, positive(kRanks), e, "pipeline stages"),
      make("parallel.virtual_stages", m, &T::virtual_stages, positive(kRanks), e,
           "model chunks of a stage (interleaved)"),
      make("parallel.stage_layers", m, &T::stage_layers, positives("a list of layer counts such as [4, 3]"), e,
           "number of layers of each stage, or of each chunk of all stages, in the order of the model's layers; where "
           "not set, balanced, with the head counted"),
      make("parallel.schedule", m, &T::schedule, choice_or_file({"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}), e,
           "order of forward and backward of micro-batches; a file is PyTorch's CSV form"),
      make("parallel.context", m, &T::context, positive(kRanks), e, "ranks that share each sequence"),
      make("parallel.context_form", m, &T::context_form, choice({"gather", "ring"}), e,
           "how context ranks share a layer's keys and values: gathered before its attention, or passed from rank to "
           "rank during it"),
      make("parallel.expert", m, &T::expert, positive(kRanks), e,
           "ranks that share the experts of each sparse layer; they have different samples, and send each other the "
           "rows of their tokens"),
      make("parallel.expert_tiles", m, &T::expert_tiles, positive(64), e,
           "with parallel.expert: number of tiles of a rank's experts; the rows of one tile travel while another is "
           "multiplied"),
      make("parallel.data_replicate", m, &T::data_replicate, positive(kRanks), e,
           "groups that hold whole copies of the state"),
      make("parallel.data_shard", m, &T::data_shard, positive_or_auto(), e,
           "data-parallel ranks of a group, among which sharding divides the state; auto takes all that are left"),
      make("parallel.sharding", m, &T::sharding,
           choice({"NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}), e,
           "state that data-parallel ranks divide, by PyTorch's names; NO_SHARD where zero is not set either"),
      make("parallel.zero", m, &T::zero, natural(3), e,
           "state that data-parallel ranks divide, by ZeRO stage: 0 nothing, 1 optimizer state, 2 also gradients, 3 "
           "also "
           "parameters; 1 with a hybrid parallel.sharding: the optimizer state is divided over all "
           "data-parallel ranks"),
      make("parallel.order", m, &T::order, axis_order(), e,
           "axes of the rank grid, outermost first; ep may be left out and then comes directly after dp-shard"),
      make("parallel.unit_layers", m, &T::unit_layers, half_or_positive(), e,
           "layers whose parameters are gathered, reduced and updated as one unit; half: a layer's attention and MLP "
           "are two"),
      make("parallel.prefetch", m, &T::prefetch, natural(1024), e,
           "number of units whose parameters are gathered or fetched ahead of their use (where they are sharded or on "
           "the host), and of layers whose activations are fetched ahead"),
      make("parallel.offload", m, &T::offload, names({"optimizer", "gradients", "parameters", "activations"}), e,
           "values that are kept in host memory: the optimizer's states, which are updated there; only with them, "
           "gradients "
           "(not where two stages hold a tied table) and parameters (with zero 0 or 3, not with states over all "
           "data-parallel "
           "ranks); activations, which layers keep for backward"),
      make("parallel.recompute", m, &T::recompute, recompute(), e,
           "activations computed again in backward, by part of a layer: norm_qkv, qk_norm, attention, out_projection, "
           "norm_up, activation, shared_up, shared_act, dispatch, expert_up, expert_activation; a size is the limit of "
           "the planned memory of a rank"),
  };
}

std::vector<Field> numeric_fields() {
  using P = PrecisionTable;
  using M = MathTable;
  const auto p = &C::precision;
  const auto m = &C::math;
  return {
      make("precision.compute", p, &P::compute, choice({"auto", "fp64", "fp32", "bf16", "fp16"}), Effect::kNumbers,
           "type of activations and products; auto measures this machine, once"),
      make("precision.reduce", p, &P::reduce, choice({"auto", "fp64", "fp32", "bf16", "fp16"}), Effect::kRun,
           "type of gradients in messages between data-parallel ranks; their sums are kept in fp32; auto is fp32, or "
           "fp64 "
           "with fp64 compute"),
      make("precision.master", p, &P::master, choice({"auto", "fp64", "fp32"}), Effect::kRun,
           "type of the weights the optimizer updates; auto is fp32, or fp64 with fp64 compute"),
      make("precision.loss_scale", p, &P::loss_scale, loss_scale(), Effect::kRun,
           "with fp16: factor by which the loss is multiplied before backward, in the first step; a resumed run "
           "continues with its last factor"),
      make("precision.loss_scale_window", p, &P::loss_scale_window, positive(), Effect::kRun,
           "with fp16: steps in a row with a finite gradient after which the loss scale is doubled; a step without a "
           "finite gradient is skipped and halves it"),
      make("math.kernels", m, &M::kernels, choice({"fused", "reference"}), Effect::kRun,
           "fused: this device's fast kernels; reference: the plain ones they are tested against"),
      make("math.threads", m, &M::threads, natural(4096), Effect::kRun,
           "CPU threads of a rank; 0 divides the machine's cores"),
      make("math.flash_attention", m, &M::flash_attention, boolean(), Effect::kRun,
           "attention that never holds the matrix of scores"),
  };
}

std::vector<Field> optimizer_fields() {
  using O = OptimizerTable;
  using S = ScheduleTable;
  constexpr auto e = Effect::kNumbers;
  const auto o = &C::optimizer;
  const auto s = &C::schedule;
  return {
      make("optimizer.kind", o, &O::kind, choice({"adamw", "lion", "muon", "adafactor"}), e,
           "rule of the update; each keeps its own states"),
      make("optimizer.lr", o, &O::lr, positive_number(), e, "peak learning rate"),
      make("optimizer.beta1", o, &O::beta1, below_one(), e, "decay of the first moment"),
      make("optimizer.beta2", o, &O::beta2, below_one(), e, "decay of the second moment"),
      make("optimizer.momentum", o, &O::momentum, below_one(), e, "muon: decay of the momentum of layers' matrices"),
      make("optimizer.match_adamw", o, &O::match_adamw, boolean(), e,
           "muon: scale a matrix's update to the size of AdamW's (0.2 sqrt(longer side)), so that both share lr; false "
           "scales by sqrt(max(1, rows / columns))"),
      make("optimizer.rest_lr", o, &O::rest_lr, positive_number(), e,
           "muon: peak learning rate of embedding, head, norms and biases, which AdamW updates; optimizer.lr where not "
           "set"),
      make("optimizer.beta2_decay", o, &O::beta2_decay, at_most_zero(), e,
           "adafactor: the decay of the second moment at step t is 1 - t^beta2_decay"),
      make("optimizer.eps1", o, &O::eps1, positive_number(), e,
           "adafactor: smallest root of the second moment; where not set the epsilon of the states' type (1.2e-7 in "
           "fp32)"),
      make("optimizer.eps2", o, &O::eps2, natural_number(), e,
           "adafactor: steps are relative to the root mean square of a parameter, or to this where it is smaller"),
      make("optimizer.update_clip", o, &O::update_clip, at_least_one(), e,
           "adafactor: largest root mean square of a parameter's update, before the step size"),
      make("optimizer.eps", o, &O::eps, positive_number(), e, "added to the root of the second moment"),
      make("optimizer.weight_decay", o, &O::weight_decay, natural_number(), e,
           "decoupled weight decay, of matrices only"),
      make("optimizer.clip", o, &O::clip, natural_number(), e, "largest global gradient norm; 0 does not clip"),
      make("schedule.kind", s, &S::kind, choice({"cosine", "linear", "wsd", "constant"}), e,
           "course of the learning rate after warm-up; wsd is warm-up, stable, decay"),
      make("schedule.warmup", s, &S::warmup, horizon_or_zero(), e,
           "length of the linear rise from 0 to the peak; where not set, a tenth of train.until, at most 2000 steps "
           "(no such limit for epochs)"),
      make("schedule.min_lr", s, &S::min_lr, natural_number(), e,
           "learning rate at the end; a tenth of optimizer.lr where not set"),
      make("schedule.decay", s, &S::decay, horizon(), e,
           "wsd: length of the last decline; a tenth of train.until where not set"),
  };
}

std::vector<Field> train_fields() {
  using T = TrainTable;
  using K = CheckpointTable;
  const auto t = &C::train;
  const auto k = &C::checkpoint;
  return {
      make("train.until", t, &T::until, horizon(), Effect::kNumbers, "the end of training, and the schedule's horizon"),
      make("train.stop_after", t, &T::stop_after, horizon(), Effect::kRun,
           "stop this early: save and exit; a later run continues"),
      make("train.seed", t, &T::seed, natural(std::int64_t{1} << 53), Effect::kNumbers,
           "seed of the initial parameters"),
      make("train.validate_every", t, &T::validate_every, horizon(), Effect::kRun,
           "length of training between validations, where data.validation is set"),
      make("train.validate_batches", t, &T::validate_batches, positive(), Effect::kRun,
           "largest number of global batches of each language of a validation's sets; all where not set"),
      make("train.noise_scale_every", t, &T::noise_scale_every, natural(), Effect::kRun,
           "steps between measurements of the gradient noise scale (docs/calculus.md), each of which takes about as "
           "long "
           "as a step; 0 measures none"),
      make("train.deterministic", t, &T::deterministic, boolean(), Effect::kRun,
           "the same layout on the same machine repeats bit for bit"),
      make("train.trace_steps", t, &T::trace_steps, positives("a list of steps such as [10, 11]"), Effect::kRun,
           "steps written to trace.json, op by op, with the power of each meter"),
      make("train.hang_timeout", t, &T::hang_timeout, time_or_auto(), Effect::kRun,
           "the run ends with a report when no op of any rank advances, or a rank gives no sign of life, for this "
           "long; auto is max(3 x median step, 30 s)"),
      make("checkpoint.every", k, &K::every, horizon(), Effect::kRun,
           "length of training between checkpoints; the last step is always saved"),
      make("checkpoint.keep", k, &K::keep, natural(), Effect::kRun, "newest checkpoints kept; 0 keeps all"),
      make("checkpoint.dir", k, &K::dir, path(), Effect::kRun,
           "where checkpoints go; checkpoints/ in the run directory where not set"),
  };
}

std::vector<Field> outer_fields() {
  using E = EnergyTable;
  using R = RunTable;
  using D = DeviceTable;
  constexpr auto e = Effect::kRun;
  return {
      make("energy.policy", &C::energy, &E::policy, text(), e,
           "policy that sets clocks or power limits between steps (docs/energy.md): none, monitor, min_energy, "
           "min_time, min_time_energy, sweep, or slack, which leaves clocks to the ops of the program; the variable "
           "MOLEN_ENERGY_POLICY sets it too (docs/slurm-plugin.md)"),
      make("energy.slowdown", &C::energy, &E::slowdown, share(), e,
           "share of a step's time that min_energy, slack and sweep may cost; 0: 5 % for min_energy and slack, "
           "Zeus's cost for sweep; or MOLEN_ENERGY_SLOWDOWN"),
      make("energy.power_budget", &C::energy, &E::power_budget, power(), e,
           "mean power of the whole job to stay below, by clocks or power limits; or MOLEN_ENERGY_POWER_BUDGET"),
      make("energy.energy_budget", &C::energy, &E::energy_budget, energy(), e,
           "energy of the whole run over all its attempts, as its meters count it, beyond which no step is begun"),
      make("energy.co2_budget", &C::energy, &E::co2_budget, mass(), e,
           "emissions of the whole run (CO2e, by the site's PUE and carbon intensity), beyond which no step is begun"),
      make("energy.on_budget", &C::energy, &E::on_budget, choice({"stop", "slow", "shrink"}), e,
           "what a run does whose forecast exceeds a budget: stop at the last step that is paid for; slow, that is, "
           "look for the setting with the least energy as min_energy does, and then stop; shrink, that is, end the "
           "learning-rate schedule at the last step that is paid for"),
      make("energy.sample_every", &C::energy, &E::sample_every, time(), e,
           "time between readings of the meters, 1 ms or more"),
      make("energy.meters", &C::energy, &E::meters, names(), e, "meters to read; auto takes those this machine has"),
      make("energy.model", &C::energy, &E::model, path(), e,
           "estimate of the power of parts that no meter reads, in fields of its own and in no sum of measured joules "
           "(docs/energy.md): off; on, by the figures of the description that --cluster names; or a file that "
           "`molen energy calibrate` wrote"),
      make("energy.site", &C::energy, &E::site, path(), e,
           "site whose emissions count: a country such as NL, a cluster that molen ships, or a TOML file "
           "(docs/formats/site.md); where not set, the description of --cluster"),
      make("run.name", &C::run, &R::name, run_name(), e, "name of the run's directory; model and time where not set"),
      make("run.dir", &C::run, &R::dir, path(), e, "directory of all runs"),
      make("run.tags", &C::run, &R::tags, names(), e, "labels to find the run by (`molen runs list --tag`)"),
      make("run.lease", &C::run, &R::lease, time(), e,
           "time without a sign of life after which a job on another host may take over the run's directory"),
      make("device.kind", &C::device, &D::kind, choice({"auto", "cpu", "cuda"}), e, "where tensors live"),
      make("device.communicator", &C::device, &D::communicator, choice({"auto", "self", "threads", "mpi", "nccl"}), e,
           "how ranks talk"),
  };
}

std::vector<Field> framework_fields() {
  using T = FrameworkTable;
  constexpr auto e = Effect::kRun;
  const auto f = &C::framework;
  return {
      make(
          "framework.kind", f, &T::kind, choice({"molen", "pytorch"}), e,
          "program whose step is predicted on the description of a cluster (`molen simulate --cluster dgx-h100`, "
          "`molen sweep`, `molen tune`): molen's own, or that of a training framework on PyTorch, such as Megatron-LM, "
          "DeepSpeed or TorchTitan; everything that runs molen refuses the keys of this table "
          "(docs/decisions/0014-planner.md)"),
      make("framework.gradients", f, &T::gradients, choice({"fp32", "16-bit"}), e,
           "type of the framework's gradients; 16-bit: kept and reduced in 16 bits, but only reduced so where "
           "parameters "
           "are sharded (zero 3); fp32: kept in fp32, and reduced in precision.reduce"),
      make("framework.overlap", f, &T::overlap, names({"tp", "pp", "dp"}), e,
           "axes whose communication the framework runs beside compute: tp, in four pieces of rows cut by "
           "parallel.sequence; pp, messages between stages; dp, gradients and sharded parameters"),
      make("framework.products", f, &T::products, choice({"16-bit", "fp8"}), e,
           "type of the products of the framework's linear layers; fp8 needs a device that has it, and leaves the "
           "output layer in 16 bits"),
      make("framework.saved_activations", f, &T::saved_activations, choice({"autograd", "molen"}), e,
           "values of a layer that wait for backward: those that autograd saves, with the results of norms, of a gated "
           "activation and the scores of attention without tiles; or only those that molen's backward reads"),
      make("framework.compiled", f, &T::compiled, boolean(), e,
           "a compiler fuses the framework's element-wise ops, and leaves out results that nobody reads"),
  };
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> all = [] {
    std::vector<Field> list;
    for (auto part : {model_fields, data_fields, batch_fields, parallel_fields, numeric_fields, optimizer_fields,
                      train_fields, outer_fields, framework_fields}) {
      for (Field& f : part()) list.push_back(std::move(f));
    }
    return list;
  }();
  return all;
}

}  // namespace molen::config
