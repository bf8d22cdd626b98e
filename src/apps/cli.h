// What the verbs of `molen` share: their registration, the configuration options that stand in every CONFIG place, exit
// codes.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/resolve.h"

namespace molen::apps {

inline constexpr int kOk = 0, kFailed = 1, kUsage = 2;

// The verb that was chosen leaves its action here; main runs it.
struct Chosen {
  std::function<int()> action;
};

// CONFIG, --model NAME, --set key=value ..., --ranks N.
struct ConfigOptions {
  std::optional<std::string> file, model;
  std::vector<std::string> sets;
  std::optional<int> ranks, ranks_per_node;
};
std::shared_ptr<ConfigOptions> add_config_options(CLI::App& app, bool with_ranks = true);
config::Config load_config(const ConfigOptions& options);

// --ranks-per-node, for verbs that plan a job without starting it; and that job's machine.
void add_node_option(CLI::App& app, ConfigOptions& options);
plan::Machine planned_machine(const ConfigOptions& options);

// --format text|json.
std::shared_ptr<std::string> add_format_option(CLI::App& app);

// --mfu causal|palm: how model FLOPs are counted.
std::shared_ptr<std::string> add_mfu_option(CLI::App& app);

void add_model_verb(CLI::App& app, Chosen& chosen);
void add_config_verb(CLI::App& app, Chosen& chosen);
void add_program_verbs(CLI::App& app, Chosen& chosen);  // program
void add_data_verbs(CLI::App& app, Chosen& chosen);     // data, tokenizer
void add_checkpoint_verb(CLI::App& app, Chosen& chosen);
void add_energy_verb(CLI::App& app, Chosen& chosen);
void add_report_verb(CLI::App& app, Chosen& chosen);
void add_runs_verb(CLI::App& app, Chosen& chosen);
void add_verify_verb(CLI::App& app, Chosen& chosen);
void add_train_verbs(CLI::App& app, Chosen& chosen);      // train, simulate, calibrate, doctor
void add_inference_verbs(CLI::App& app, Chosen& chosen);  // generate, eval

}  // namespace molen::apps
