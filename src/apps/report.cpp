// molen report RUN
#include <fmt/format.h>

#include "apps/cli.h"
#include "serve/report.h"

namespace molen::apps {

void add_report_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("report", "one self-contained HTML page of a run");
  auto run = std::make_shared<std::string>(), output = std::make_shared<std::string>();
  verb->add_option("RUN", *run, "run directory")->required();
  verb->add_option("--output", *output, "file (default: RUN/report.html)");
  auto format = add_format_option(*verb);
  verb->callback([&chosen, run, output, format] {
    chosen.action = [=] {
      if (*format == "json") {
        fmt::print("{}\n", serve::summary(*run).dump(2));
        return kOk;
      }
      const fs::path target = output->empty() ? fs::path(*run) / "report.html" : fs::path(*output);
      serve::write_report(*run, target);
      fmt::print("{}\n", target.string());
      return kOk;
    };
  });
}

}  // namespace molen::apps
