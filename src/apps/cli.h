// Code that the verbs of `molen` share: their registration, the configuration options of every CONFIG argument, exit
// codes.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/config.h"
#include "plan/resolve.h"
#include "store/progress.h"

namespace molen::apps {

inline constexpr int kOk = 0, kFailed = 1, kUsage = 2, kBudgetUsed = 3;

// The chosen verb stores its action here; main runs it.
struct Chosen {
  std::function<int()> action;
};

// The options CONFIG, --model NAME, --set key=value ..., --ranks N.
struct ConfigOptions {
  std::optional<std::string> file, model;
  std::vector<std::string> sets;
  std::optional<int> ranks, ranks_per_node;
};
std::shared_ptr<ConfigOptions> add_config_options(CLI::App& app, bool with_ranks = true);
// Loads the configuration; if CONFIG is a run directory, the configuration that the run resolved. `more`: checks of
// this verb beyond those of all verbs.
config::Config load_config(const ConfigOptions& options, const config::Completion& more = {});
bool names_run(const ConfigOptions& options);  // CONFIG is a run directory

// --ranks-per-node, for verbs that plan a job without starting it; and the machine of that job. It has the ranks of
// --ranks or of the run and, as planned_machine, the devices and rates of this machine, for which molen may have to
// hand over (apps/computing.h): call it before anything is written.
void add_node_option(CLI::App& app, ConfigOptions& options);
plan::Machine planned_ranks(const ConfigOptions& options);
plan::Machine planned_machine(const ConfigOptions& options, const config::Config& config);

// The choices that the configuration leaves open and that shape the program, each as {key, value used, why}. `resolved`
// is the configuration after plan::resolve_setting.
struct OpenChoice {
  std::string key, value, why;
};
std::vector<OpenChoice> open_choices(const config::Config& given, const config::Config& resolved,
                                     const arch::Architecture& arch, const program::Setting& setting);
// One line each: "# precision.compute = \"bf16\" (measured: ...)".
std::string to_text(const std::vector<OpenChoice>& choices);
Json to_json(const std::vector<OpenChoice>& choices);

// Parses the time that a flag gives, to seconds since 1970. Throws UsageError that names the flag.
double time_option(const std::string& text, const char* flag);

// --format text|json.
std::shared_ptr<std::string> add_format_option(CLI::App& app);

// --mfu causal|palm: the convention by which model FLOPs are counted.
std::shared_ptr<std::string> add_mfu_option(CLI::App& app);

// Prints a table on stdout with columns as wide as their widest cells; the columns of `right` are right-aligned.
void print_columns(const std::vector<std::vector<std::string>>& rows, const std::set<std::size_t>& right);

// Returns the progress display of a verb that takes more than seconds: a bar on this process's terminal, or a line a
// minute on stderr.
std::unique_ptr<store::Progress> make_progress(const std::string& verb);

void add_model_verb(CLI::App& app, Chosen& chosen);
void add_config_verb(CLI::App& app, Chosen& chosen);
void add_program_verbs(CLI::App& app, Chosen& chosen);  // program
void add_data_verbs(CLI::App& app, Chosen& chosen);     // data, tokenizer
void add_checkpoint_verb(CLI::App& app, Chosen& chosen);
void add_energy_verb(CLI::App& app, Chosen& chosen);
void add_report_verb(CLI::App& app, Chosen& chosen);
void add_runs_verb(CLI::App& app, Chosen& chosen);
void add_verify_verb(CLI::App& app, Chosen& chosen);
void add_train_verbs(CLI::App& app, Chosen& chosen);  // train, calibrate, bench, doctor, simulate
void add_calibrate_verb(CLI::App& app, Chosen& chosen);
void add_simulate_verb(CLI::App& app, Chosen& chosen);
void add_plan_verb(CLI::App& app, Chosen& chosen);
void add_sweep_verb(CLI::App& app, Chosen& chosen);
void add_tune_verb(CLI::App& app, Chosen& chosen);
void add_inference_verbs(CLI::App& app, Chosen& chosen);  // generate, eval

}  // namespace molen::apps
