// molen config reference | show CONFIG
#include <fmt/format.h>

#include "apps/cli.h"

namespace molen::apps {

void add_config_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("config", "the configuration: every key, and what a file resolves to");
  verb->require_subcommand(1);
  CLI::App* reference = verb->add_subcommand("reference", "all keys with type, default and meaning");
  auto format = add_format_option(*reference);
  reference->callback([&chosen, format] {
    chosen.action = [format] {
      fmt::print("{}", *format == "json" ? config::reference_json().dump(2) + "\n" : config::reference());
      return kOk;
    };
  });
  CLI::App* show = verb->add_subcommand("show", "the resolved configuration with the origin of each value");
  auto options = add_config_options(*show, false);
  auto show_format = add_format_option(*show);
  show->callback([&chosen, options, show_format] {
    chosen.action = [=] {
      const auto c = load_config(*options);
      fmt::print("{}", *show_format == "json" ? config::to_json(c).dump(2) + "\n" : config::to_toml(c));
      return kOk;
    };
  });
}

}  // namespace molen::apps
