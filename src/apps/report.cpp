// molen report RUN
#include <fmt/format.h>

#include "apps/beside.h"
#include "apps/cli.h"
#include "apps/measured_run.h"
#include "base/error.h"
#include "serve/documents.h"
#include "serve/report.h"

namespace molen::apps {
namespace {

Json beside_run(const std::string& run, const std::string& cluster, const std::string& communicator) {
  const auto measured = measured_run(run);
  if (!measured) throw UsageError("--cluster: {} has no step yet, which a prediction could stand beside", run);
  return beside_json(simulated_run(run, cluster, communicator), *measured);
}

}  // namespace

void add_report_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("report", "one self-contained HTML page of a run; its emissions; a model card");
  auto run = std::make_shared<std::string>(), output = std::make_shared<std::string>();
  auto emissions = std::make_shared<std::string>(), card = std::make_shared<std::string>();
  verb->add_option("RUN", *run, "run directory")->required();
  auto* page = verb->add_option("--output", *output, "file (default: RUN/report.html)");
  auto* csv = verb->add_option("--emissions", *emissions,
                               "writes this CSV file instead of the page: energy and emissions in the columns of "
                               "CodeCarbon");
  auto* markdown =
      verb->add_option("--model-card", *card,
                       "writes this Markdown file instead of the page: a model card with the metadata of Hugging Face "
                       "and the energy that the AI Act asks for; refuses a file that exists")
          ->excludes(csv);
  auto cluster = std::make_shared<std::string>(), communicator = std::make_shared<std::string>();
  auto* beside = verb->add_option("--cluster", *cluster,
                                  "predicts the run's step beside what it measured: the name or file of a cluster's "
                                  "description, or a calibration; without it, as the run itself was predicted");
  auto* of = verb->add_option("--communicator", *communicator, "of a calibration, as calibrated: self, threads, mpi")
                 ->needs(beside);
  auto format = add_format_option(*verb);
  for (auto* document : {csv, markdown})
    document->excludes(page)->excludes(verb->get_option("--format"))->excludes(beside)->excludes(of);
  verb->callback([&chosen, run, output, emissions, card, format, csv, markdown, cluster, communicator, beside] {
    chosen.action = [=] {
      if (csv->count() + markdown->count() > 0) {
        const std::string& file = csv->count() > 0 ? *emissions : *card;
        if (file.empty())
          throw UsageError("{}: the name of a file is needed", csv->count() > 0 ? "--emissions" : "--model-card");
        csv->count() > 0 ? serve::write_emissions(*run, file) : serve::write_model_card(*run, file);
        fmt::print("{}\n", file);
        return kOk;
      }
      const Json predicted = beside->count() > 0 ? beside_run(*run, *cluster, *communicator) : Json();
      if (*format == "json") {
        fmt::print("{}\n", serve::summary(*run, predicted).dump(2));
        return kOk;
      }
      const fs::path target = output->empty() ? fs::path(*run) / "report.html" : fs::path(*output);
      serve::write_report(*run, target, predicted);
      fmt::print("{}\n", target.string());
      return kOk;
    };
  });
}

}  // namespace molen::apps
