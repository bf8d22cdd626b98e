// The configuration of a run: typed tables, and one list of their fields. The list defines the reader, `--set`, errors
// with the nearest key, the reference page, the resolved TOML, JSON, and the comparison on resume.
//
// A file is TOML with these tables. The file that `extends = "base.toml"` names (relative to this file) is read first,
// then this file overrides it, then each `--set table.key=value` does in order. The value "none" resets a key that may
// be absent.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "config/values.h"

namespace molen::config {

struct RopeScaling {
  double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  std::int64_t original_max_sequence = 8192;
  bool operator==(const RopeScaling&) const = default;
};

// Every member except `preset` and `family` overrides a value of the preset, or gives a size of the family.
struct ModelTable {
  std::optional<std::string> preset, family;
  std::optional<std::int64_t> layers, hidden, ffn, heads, kv_heads, head_dim, vocabulary, max_sequence;
  std::optional<double> rope_theta;
  std::optional<RopeScaling> rope_scaling;
  std::optional<bool> tied, biases;
  std::optional<double> norm_eps;
  std::optional<std::int64_t> experts, experts_per_token, expert_ffn, dense_layers, shared_experts;
  std::optional<bool> norm_topk;
  std::optional<double> balance_loss, z_loss, router_scale, router_bias_rate, expert_capacity;
  std::optional<std::string> norm, qk_norm, position, activation, router_scores;
  std::optional<double> init_std;
};

struct DataSource {
  std::string path;
  double weight = 1.0;
  std::vector<std::string> languages;  // empty: all languages
  bool operator==(const DataSource&) const = default;
};

struct DataTable {
  std::vector<DataSource> train, validation;
  std::optional<std::string> tokenizer;
  std::int64_t sequence_length = 512;
  bool document_mask = false;
  std::int64_t seed = 0;
};

struct BatchTable {
  std::int64_t global = 8, micro = 1;
};

struct ParallelTable {
  std::int64_t tensor = 1;
  bool sequence = false;
  std::int64_t tensor_chunks = 1;
  std::int64_t pipeline = 1, virtual_stages = 1;
  std::vector<std::int64_t> stage_layers;  // empty: layers are balanced over stages
  std::string schedule = "1f1b";
  std::int64_t context = 1;
  std::string context_form = "gather";
  std::int64_t expert = 1;
  std::int64_t expert_tiles = 1;
  std::int64_t data_replicate = 1;
  std::optional<std::int64_t> data_shard;  // nullopt: "auto", all ranks that the other axes do not use
  std::optional<std::string> sharding;
  std::optional<std::int64_t> zero;
  std::vector<std::string> order{"pp", "dp-replicate", "dp-shard", "cp", "tp"};
  std::int64_t unit_layers = 1;  // 0: "half"
  std::int64_t prefetch = 1;
  std::vector<std::string> offload;
  Recompute recompute;
};

struct PrecisionTable {
  std::string compute = "auto", reduce = "auto", master = "auto";
  double loss_scale = 65536.0;
  std::int64_t loss_scale_window = 2000;
  bool scales_loss() const { return compute == "fp16" || reduce == "fp16"; }  // whether loss_scale and its window apply
};

struct MathTable {
  std::string kernels = "fused";
  std::int64_t threads = 0;
  bool flash_attention = true;
};

struct OptimizerTable {
  std::string kind = "adamw";
  double lr = 3e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip = 1.0, momentum = 0.95;
  bool match_adamw = true;
  std::optional<double> rest_lr, eps1;
  double eps2 = 1e-3, beta2_decay = -0.8, update_clip = 1.0;
};

struct ScheduleTable {
  std::string kind = "cosine";
  std::optional<Horizon> warmup;  // when unset, `load` and `parse` derive it from train.until
  std::optional<double> min_lr;
  std::optional<Horizon> decay;
};

struct TrainTable {
  Horizon until = steps(10000);
  std::optional<Horizon> stop_after;
  std::int64_t seed = 0;
  Horizon validate_every = steps(500);
  std::optional<std::int64_t> validate_batches;
  std::int64_t noise_scale_every = 0;
  bool deterministic = true;
  std::vector<std::int64_t> trace_steps;
  std::optional<Seconds> hang_timeout;  // nullopt: "auto", max(3 x median step, 30 s)
};

struct CheckpointTable {
  Horizon every = steps(1000);
  std::int64_t keep = 3;
  std::optional<std::string> dir;
};

struct EnergyTable {
  std::string policy = "none";
  double slowdown = 0.0;
  std::optional<Watts> power_budget;
  std::optional<Joules> energy_budget;  // of the whole run
  std::optional<Kilograms> co2_budget;  // likewise
  std::string on_budget = "stop";
  // Returns whether a policy begins to search once the forecast of the run exceeds its budget.
  bool slows() const { return on_budget == "slow" && (energy_budget || co2_budget); }
  Seconds sample_every{0.1};
  std::vector<std::string> meters{"auto"};
  std::string model = "off";
  std::optional<std::string> site;
};

struct RunTable {
  std::optional<std::string> name;
  std::string dir = "runs";
  std::vector<std::string> tags;
  Seconds lease{60};
};

struct DeviceTable {
  std::string kind = "auto", communicator = "auto";
};

// How a framework other than molen would run the step. Predictions on the description of a cluster honour it, and
// everything that runs molen itself refuses it.
struct FrameworkTable {
  std::string kind = "molen", gradients = "fp32", products = "16-bit", saved_activations = "autograd";
  std::vector<std::string> overlap;  // axes whose communication runs beside compute
  bool compiled = false;
};

// The origin of a value.
struct Origin {
  enum class Kind { kDefault, kFile, kSet, kOther };
  Kind kind = Kind::kDefault;
  std::string text;              // kFile: "run.toml:12"; kOther: the caller's text ("preset llama3-8b", "measured")
  std::string describe() const;  // "default", "run.toml:12", "--set", text
};

struct Config {
  ModelTable model;
  DataTable data;
  BatchTable batch;
  ParallelTable parallel;
  PrecisionTable precision;
  MathTable math;
  OptimizerTable optimizer;
  ScheduleTable schedule;
  TrainTable train;
  CheckpointTable checkpoint;
  EnergyTable energy;
  RunTable run;
  DeviceTable device;
  FrameworkTable framework;
  std::map<std::string, Origin> origins;  // keyed by "table.key"; keys with their default value are absent

  // Returns schedule.min_lr, or a tenth of optimizer.lr if it is unset.
  double min_lr() const { return schedule.min_lr.value_or(0.1 * optimizer.lr); }
  // Returns the beginning of an error about a key: "run.toml:12: train.until", "--set train.until" or "train.until".
  std::string where(std::string_view key) const;
};

// Whether a field decides the numbers of a training, so that it must not change on resume, or only how the run is done.
enum class Effect { kNumbers, kRun };

struct Field {
  std::string key;                   // "model.layers"
  std::string type;                  // "a positive integer"
  std::vector<std::string> choices;  // empty: any value of the type
  std::string meaning;
  Effect effect = Effect::kRun;
  bool textual = false;                            // values are strings, so `--set run.name=7` is the name "7"
  std::function<void(Config&, const Json&)> read;  // throws UsageError without the key: "expected ..., got ..."
  std::function<Json(const Config&)> write;        // null: not set
};

// Returns the single field list, in the order of the reference page.
const std::vector<Field>& fields();
// Returns the field of a key. Throws UsageError that suggests the nearest key.
const Field& field(std::string_view key);

// The errors of a configuration, collected and reported together.
class Problems {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    all_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  // Keeps the UsageError of `attempt`; returns whether there was no error.
  template <class F>
  bool none_of(F&& attempt) {
    try {
      attempt();
      return true;
    } catch (const UsageError& error) {
      if (all_.empty()) first_ = std::current_exception();
      all_.push_back(error.what());
      return false;
    }
  }
  bool empty() const { return all_.empty(); }
  const std::vector<std::string>& all() const { return all_; }
  // Throws if there are errors: a single error unchanged, or a UsageError that lists all of them below "3 errors:", one
  // per line.
  void raise() const;

 private:
  std::vector<std::string> all_;
  std::exception_ptr first_;  // the first error as it was thrown
};

// A function of the caller that fills in unset values, or adds errors, from knowledge that this module does not have.
using Completion = std::function<void(Config&, Problems&)>;

// A variable of the environment and the key that it sets.
struct EnvironmentKey {
  const char* variable;
  const char* key;
};
// Returns the variables by which a batch system sets keys for the programs of a job (docs/slurm-plugin.md).
const std::vector<EnvironmentKey>& environment_keys();
// Works like getenv; where it is empty, no variable is read.
using Environment = std::function<const char*(const char*)>;

// Returns a configuration: reads the file, the variables of `environment_keys` and `sets`, of which the later ones win,
// derives unset values from other keys (schedule.warmup, model.max_sequence) and checks the result. A variable that is
// empty sets nothing. Throws UsageError with all errors, such as `run.toml:12: model.layers: expected a positive
// integer, got "twelve"`. `complete` runs last, and only if every value could be read.
Config load(const std::optional<fs::path>& file, const std::vector<std::string>& sets = {},
            const Completion& complete = {}, const Environment& environment = {});
// Parses a document without `extends`; errors and origins use `name` as the file's name.
Config parse(std::string_view toml, std::string_view name, const std::vector<std::string>& sets = {});
struct Assignment {
  std::string key;
  Json value;
};
// Returns the assignment that "table.key=value" makes as `--set`; `option` leads its errors. A value that is not TOML
// is text. Throws UsageError with the nearest key for an unknown one. The value is not checked: `assign` does that.
Assignment parse_assignment(std::string_view argument, std::string_view option = "--set");
// Assigns one more value, from a resolved choice or a preset; `value` has the file's form. Throws UsageError.
void assign(Config& config, std::string_view key, const Json& value, const Origin& origin);
// Does the checks across keys that need only arithmetic: divisibility, contradictions, lengths. `load` and `parse` call
// this.
void check(const Config& config, Problems& problems);

// Returns the resolved configuration, each line with its origin; parse(to_toml(c)) has the same values.
std::string to_toml(const Config& config);
// Returns {"model": {"layers": 12, ...}, ...}, in which unset keys are absent. from_json(to_json(c)) has the same
// values.
Json to_json(const Config& config);
Config from_json(const Json& json, std::string_view name);

struct Difference {
  std::string key;
  std::string before, after;  // TOML values; "none" if not set
  Effect effect = Effect::kRun;
};
std::vector<Difference> diff(const Config& before, const Config& after);

// Return the text of `molen config reference`, and the same content as JSON for programs.
std::string reference();
Json reference_json();

// Returns the text of a value in TOML.
std::string toml_value(const Json& value);

}  // namespace molen::config
