// molen checkpoint list|verify|export|import
#include "checkpoint/commands.h"

#include <iostream>

#include "apps/cli.h"

namespace molen::apps {

namespace {

void add_list(CLI::App* verb, Chosen& chosen) {
  auto o = std::make_shared<checkpoint::ListOptions>();
  CLI::App* list = verb->add_subcommand("list", "checkpoints of a run");
  list->add_option("RUN", o->path, "run directory, or a directory of checkpoints")->required();
  auto format = add_format_option(*list);
  list->callback([&chosen, o, format] {
    chosen.action = [=] {
      o->json = *format == "json";
      checkpoint::list_command(*o, std::cout, std::cerr);
      return kOk;
    };
  });
}

void add_verify(CLI::App* verb, Chosen& chosen) {
  auto o = std::make_shared<checkpoint::VerifyOptions>();
  CLI::App* check = verb->add_subcommand("verify", "reads every byte and compares the hashes");
  check->add_option("PATH", o->path, "a checkpoint; or a run: its newest")->required();
  check->add_flag("--digest", o->digest, "also print the layout-independent digest of all tensors");
  auto format = add_format_option(*check);
  check->callback([&chosen, o, format] {
    chosen.action = [=] {
      o->json = *format == "json";
      checkpoint::verify_command(*o, std::cout, std::cerr);
      return kOk;
    };
  });
}

void add_export(CLI::App* verb, Chosen& chosen) {
  auto o = std::make_shared<checkpoint::ExportOptions>();
  auto tokenizer = std::make_shared<std::string>();
  CLI::App* out = verb->add_subcommand("export", "writes a Hugging Face directory");
  out->add_option("RUN_OR_CHECKPOINT", o->source, "what to export")->required();
  out->add_option("DIR", o->destination, "new or empty directory")->required();
  out->add_option("--dtype", o->dtype,
                  "fp32, bf16, fp16 or fp64 (default: as stored); biases of routers are fp32 at least");
  out->add_option("--max-shard-size", o->max_shard_bytes, "bytes of the largest safetensors file");
  out->add_option("--tokenizer", *tokenizer, "tokenizer.json (default: the checkpoint's)");
  auto format = add_format_option(*out);
  out->callback([&chosen, o, tokenizer, format] {
    chosen.action = [=] {
      o->json = *format == "json";
      if (!tokenizer->empty()) o->tokenizer = *tokenizer;
      checkpoint::export_command(*o, std::cout, std::cerr);
      return kOk;
    };
  });
}

void add_import(CLI::App* verb, Chosen& chosen) {
  auto o = std::make_shared<checkpoint::ImportOptions>();
  CLI::App* in = verb->add_subcommand("import", "makes a checkpoint of a Hugging Face directory");
  in->add_option("HF_DIR", o->source, "Hugging Face directory")->required();
  in->add_option("DIR", o->destination, "gets step-000000000/")->required();
  auto format = add_format_option(*in);
  in->callback([&chosen, o, format] {
    chosen.action = [=] {
      o->json = *format == "json";
      checkpoint::import_command(*o, std::cout, std::cerr);
      return kOk;
    };
  });
}

}  // namespace

void add_checkpoint_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("checkpoint", "layout-free checkpoints; Hugging Face directories in and out");
  verb->require_subcommand(1);
  for (const auto add : {add_list, add_verify, add_export, add_import}) add(verb, chosen);
}

}  // namespace molen::apps
