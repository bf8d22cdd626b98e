// molen program CONFIG: the step program as text, with its memory plan.
#include <fmt/format.h>

#include "apps/cli.h"
#include "base/json.h"
#include "plan/resolve.h"
#include "program/build/build.h"
#include "program/provenance/provenance.h"
#include "program/text/text.h"
#include "store/run_directory.h"

namespace molen::apps {
namespace {

struct Shown {
  program::Program program;
  std::vector<OpenChoice> choices;
  std::string origin;  // the source; empty: built now
};

// Returns the program that a run recorded: the one that ran, whatever would be built now.
Shown program_of_run(const fs::path& run, int rank) {
  const auto read = [&](int stage) {
    const fs::path file = run / store::program_name(stage);
    return Shown{program::parse(read_file(file, program::kMaxTextBytes), file.string()), {}, file.string()};
  };
  Shown shown = read(0);
  const auto& s = shown.program.setting;
  if (rank >= s.ranks()) throw UsageError("--rank {}: the run had {}", rank, counted(s.ranks(), "rank"));
  const int stage = program::at_rank(s, rank).pipeline.stage;
  return stage == 0 ? shown : read(stage);
}

Shown program_of_config(const ConfigOptions& options, int rank) {
  const config::Config given = load_config(options);
  config::Config c = given;
  const auto a = plan::resolve_architecture(c);
  const plan::Machine machine = planned_machine(options, c);
  if (rank >= machine.ranks) throw UsageError("--rank {}: the world has {}", rank, counted(machine.ranks, "rank"));
  const auto setting = plan::resolve_setting(c, a, machine);
  const auto schedule = plan::read_schedule(c);
  auto p = program::build(a, program::at_rank(setting, rank), schedule ? &*schedule : nullptr);
  program::require_sound(p, "the built program");
  return {std::move(p), open_choices(given, c, a, setting), ""};
}

int show_program(const ConfigOptions& options, int rank, const std::string& format) {
  const bool ran =
      names_run(options) && !options.ranks && !options.ranks_per_node && !options.model && options.sets.empty();
  const Shown shown = ran ? program_of_run(*options.file, rank) : program_of_config(options, rank);
  const auto& p = shown.program;
  const auto memory = program::plan_memory(p);
  if (format == "text") {
    if (ran) fmt::print("# what ran, as {} has it\n", shown.origin);
    fmt::print("{}{}", to_text(shown.choices), program::print(p, memory));
    return kOk;
  }
  const auto s = program::summarize(p, memory);
  const Json j{{"ops", p.num_ops()},
               {"bodies", p.bodies.size()},
               {"parameters_bytes", s.parameters.value},
               {"gradients_bytes", s.gradients.value},
               {"optimizer_bytes", s.optimizer.value},
               {"transient_bytes", s.transient.value},
               {"peak_bytes", s.peak.value},
               {"host_bytes", s.host.value},
               {"compute", name_of(p.setting.compute)},
               {"ran", ran ? Json(shown.origin) : Json(nullptr)},
               {"open_choices", to_json(shown.choices)},
               {"text", program::print(p)}};
  fmt::print("{}\n", j.dump(2));
  return kOk;
}

}  // namespace

void add_program_verbs(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand(
      "program", "the step program as text, with its memory plan; of a run directory, the one that ran");
  auto options = add_config_options(*verb);
  add_node_option(*verb, *options);
  auto rank = std::make_shared<int>(0);
  verb->add_option("--rank", *rank, "rank whose program is printed (all ranks of a pipeline stage share one)")
      ->check(CLI::NonNegativeNumber);
  auto format = add_format_option(*verb);
  verb->callback(
      [&chosen, options, rank, format] { chosen.action = [=] { return show_program(*options, *rank, *format); }; });
}

}  // namespace molen::apps
