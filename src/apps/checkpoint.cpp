// molen checkpoint list|verify|export|import
#include "checkpoint/commands.h"

#include <iostream>

#include "apps/cli.h"

namespace molen::apps {

namespace {

// Adds --format to a verb, and runs the command with the options when the verb is chosen.
template <class Options>
void runs(CLI::App& verb, Chosen& chosen, const std::shared_ptr<Options>& o,
          void (*command)(const Options&, std::ostream&, std::ostream&)) {
  auto format = add_format_option(verb);
  verb.callback([&chosen, o, format, command] {
    chosen.action = [=] {
      o->json = *format == "json";
      command(*o, std::cout, std::cerr);
      return kOk;
    };
  });
}

void add_list(CLI::App* verb, Chosen& chosen) {
  auto o = std::make_shared<checkpoint::ListOptions>();
  CLI::App* list = verb->add_subcommand("list", "checkpoints of a run");
  list->add_option("RUN", o->path, "run directory, or a directory of checkpoints")->required();
  runs(*list, chosen, o, checkpoint::list_command);
}

void add_verify(CLI::App* verb, Chosen& chosen) {
  auto o = std::make_shared<checkpoint::VerifyOptions>();
  CLI::App* check = verb->add_subcommand("verify", "reads every byte and compares the hashes");
  check->add_option("PATH", o->path, "a checkpoint; or a run: its newest")->required();
  check->add_flag("--digest", o->digest, "also print the layout-independent digest of all tensors");
  runs(*check, chosen, o, checkpoint::verify_command);
}

void add_export(CLI::App* verb, Chosen& chosen) {
  auto o = std::make_shared<checkpoint::ExportOptions>();
  CLI::App* out = verb->add_subcommand("export", "writes a Hugging Face directory");
  out->add_option("RUN_OR_CHECKPOINT", o->source, "what to export")->required();
  out->add_option("DIR", o->destination, "new or empty directory")->required();
  out->add_option("--dtype", o->dtype,
                  "fp32, bf16, fp16 or fp64 (default: as stored); biases of routers are fp32 at least");
  out->add_option("--max-shard-size", o->max_shard_bytes, "bytes of the largest safetensors file");
  out->add_option_function<std::string>(
      "--tokenizer",
      [o](const std::string& file) {
        if (!file.empty()) o->tokenizer = file;
      },
      "tokenizer.json (default: the checkpoint's)");
  runs(*out, chosen, o, checkpoint::export_command);
}

void add_import(CLI::App* verb, Chosen& chosen) {
  auto o = std::make_shared<checkpoint::ImportOptions>();
  CLI::App* in = verb->add_subcommand("import", "makes a checkpoint of a Hugging Face directory");
  in->add_option("HF_DIR", o->source, "Hugging Face directory")->required();
  in->add_option("DIR", o->destination, "directory in which step-000000000/ is written")->required();
  runs(*in, chosen, o, checkpoint::import_command);
}

}  // namespace

void add_checkpoint_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("checkpoint", "layout-free checkpoints; Hugging Face directories in and out");
  verb->require_subcommand(1);
  for (const auto add : {add_list, add_verify, add_export, add_import}) add(verb, chosen);
}

}  // namespace molen::apps
