// molen program CONFIG: the step program as text, with its memory plan.
#include <fmt/format.h>

#include "apps/cli.h"
#include "base/json.h"
#include "plan/resolve.h"
#include "program/build.h"
#include "program/text.h"
#include "program/verify.h"

namespace molen::apps {
namespace {

int show(const ConfigOptions& options, int rank, const std::string& format) {
  config::Config c = load_config(options);
  const auto a = plan::resolve_architecture(c);
  const plan::Machine machine = planned_machine(options);
  if (rank < 0 || rank >= machine.ranks) throw UsageError("--rank {}: the world has {} ranks", rank, machine.ranks);
  const auto setting = plan::resolve_setting(c, a, machine);
  const auto schedule = plan::read_schedule(c);
  const auto p = program::build(a, program::at_rank(setting, rank), schedule ? &*schedule : nullptr);
  program::require_sound(p, "the built program");
  const auto memory = program::plan_memory(p);
  if (format == "text") {
    fmt::print("{}", program::print(p, memory));
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
               {"text", program::print(p)}};
  fmt::print("{}\n", j.dump(2));
  return kOk;
}

}  // namespace

void add_program_verbs(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("program", "the step program as text, with its memory plan");
  auto options = add_config_options(*verb);
  add_node_option(*verb, *options);
  auto rank = std::make_shared<int>(0);
  verb->add_option("--rank", *rank, "whose program (all ranks of a pipeline stage share one)");
  auto format = add_format_option(*verb);
  verb->callback([&chosen, options, rank, format] { chosen.action = [=] { return show(*options, *rank, *format); }; });
}

}  // namespace molen::apps
