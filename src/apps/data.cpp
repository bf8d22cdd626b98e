// molen data ..., molen tokenizer ...
#include <fmt/format.h>

#include <iostream>
#include <sstream>

#include "apps/cli.h"
#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "base/utf8.h"
#include "data/baseline.h"
#include "data/commands.h"
#include "data/dataset.h"
#include "data/tokenizer/commands.h"
#include "plan/resolve.h"

namespace molen::apps {
namespace {

void progress(const std::string& line) {
  std::cerr << printable(line) << '\n';
}

void add_fetch(CLI::App& verb, Chosen& chosen) {
  auto o = std::make_shared<data::FetchOptions>();
  auto folder = std::make_shared<std::string>("data/demo");
  CLI::App* fetch = verb.add_subcommand("fetch", "downloads a set of Debian packages with their licence files");
  fetch->add_option("SET", o->set, "name of the set (--list shows all sets)");
  fetch->add_option("--output", *folder, "where to put it")->capture_default_str();
  fetch->add_flag("--list", o->list, "the known sets");
  auto format = add_format_option(*fetch);
  fetch->callback([&chosen, o, folder, format] {
    chosen.action = [=] {
      o->json = *format == "json";
      o->folder = *folder;
      return data::fetch_command(*o, std::cout, progress);
    };
  });
}

void add_prepare(CLI::App& verb, Chosen& chosen) {
  auto o = std::make_shared<data::PrepareOptions>();
  auto output = std::make_shared<std::string>(), tokenizer = std::make_shared<std::string>();
  CLI::App* prepare = verb.add_subcommand("prepare",
                                          "writes clean text and, with a tokenizer, token shards with their manifest; "
                                          "continues where an earlier run ended");
  prepare
      ->add_option("SOURCE", o->sources,
                   "folders made by `data fetch`; .jsonl, .jsonl.gz, .jsonl.zst or text files, or folders of them")
      ->required();
  prepare->add_option("--output", *output, "folder to write to")->required();
  prepare->add_option("--tokenizer", *tokenizer, "tokenizer.json (without: text only)");
  prepare->add_option("--language", o->language,
                      "language of files, as ISO 639-1 (default: each line's own, else detected)");
  prepare->add_option("--licence,--license", o->licence, "licence of files, as an SPDX expression; required for files");
  prepare->add_option("--split", o->split, "split of files: train or heldout")->capture_default_str();
  prepare->add_option("--threads", o->threads, "0: all cores");
  auto format = add_format_option(*prepare);
  prepare->callback([&chosen, o, output, tokenizer, format] {
    chosen.action = [=] {
      o->json = *format == "json";
      o->output = *output;
      o->tokenizer = *tokenizer;
      const auto shown = make_progress("prepare");
      o->at = [&](std::string_view stage, double share, std::string_view doing) {
        shown->at(stage, share, printable(doing));
      };
      std::ostringstream table;
      const int code = data::prepare_command(*o, table, [&](const std::string& line) { shown->note(printable(line)); });
      shown->finish();
      std::cout << table.str();
      return code;
    };
  });
}

void add_inspect_and_verify(CLI::App& verb, Chosen& chosen) {
  auto i = std::make_shared<data::InspectOptions>();
  CLI::App* inspect = verb.add_subcommand("inspect", "what shards hold: sources, licences, languages, tokens");
  inspect->add_option("PATH", i->path, "folder with a manifest.json, or what `prepare` wrote")->required();
  auto inspect_format = add_format_option(*inspect);
  inspect->callback([&chosen, i, inspect_format] {
    chosen.action = [=] {
      i->json = *inspect_format == "json";
      return data::inspect_command(*i, std::cout);
    };
  });
  auto v = std::make_shared<data::VerifyOptions>();
  CLI::App* verify = verb.add_subcommand("verify", "checks every hash, count and token of shards");
  verify->add_option("PATH", v->path, "folder, as for `inspect`")->required();
  verify->add_option("--tokenizer", v->tokenizer,
                     "tokenizer.json that must have made the shards (compares fingerprints)");
  auto verify_format = add_format_option(*verify);
  verify->callback([&chosen, v, verify_format] {
    chosen.action = [=] {
      v->json = *verify_format == "json";
      return data::verify_command(*v, std::cout, std::cerr);
    };
  });
}

int baselines(const std::string& prepared, const std::string& format) {
  Json rows = Json::array();
  for (const auto& b : data::ngram_baselines(prepared, {3, 5}))
    rows.push_back(
        {{"order", b.order}, {"language", b.language}, {"bytes", b.bytes}, {"bits_per_byte", b.bits_per_byte}});
  if (format == "json") {
    std::cout << rows.dump(2) << '\n';
    return kOk;
  }
  std::cout << fmt::format("{:<18} {:<9} {:>12} {:>14}\n", "byte model", "language", "held-out", "bits per byte");
  for (const auto& r : rows)
    std::cout << fmt::format("{:<18} {:<9} {:>12} {:>14.3f}\n", fmt::format("{}-gram", r["order"].get<int>()),
                             r["language"].get<std::string>(), human(Bytes(r["bytes"].get<std::int64_t>())),
                             r["bits_per_byte"].get<double>());
  return kOk;
}

void add_baseline(CLI::App& verb, Chosen& chosen) {
  auto path = std::make_shared<std::string>();
  CLI::App* baseline =
      verb.add_subcommand("baseline", "held-out bits per byte of byte 3-gram and 5-gram models (Witten-Bell)");
  baseline->add_option("PREPARED", *path, "what `data prepare` wrote")->required();
  auto format = add_format_option(*baseline);
  baseline->callback([&chosen, path, format] { chosen.action = [=] { return baselines(*path, *format); }; });
}

// Writes the batches exactly as a training run reads them, for other programs that must see the same, and for
// inspection.
int write_batches(const ConfigOptions& options, std::int64_t first_step, std::int64_t steps,
                  const std::string& output) {
  const config::Config c = load_config(options);
  std::vector<data::DataEntry> entries;
  for (const auto& e : c.data.train) entries.push_back({e.path, e.weight, e.languages});
  if (entries.empty()) throw UsageError("data.train: at least one entry is needed");
  data::OpenOptions open;
  open.sequence_length = c.data.sequence_length;
  open.vocabulary = plan::resolve_architecture(c).vocabulary;
  const data::Dataset dataset(entries, static_cast<std::uint64_t>(c.data.seed), open);
  std::string bytes;
  std::vector<std::int32_t> row(static_cast<std::size_t>(c.data.sequence_length) + 1);
  const std::int64_t first = (first_step - 1) * c.batch.global;
  for (std::int64_t s = first; s < first + steps * c.batch.global; ++s) {
    dataset.read(s, row);
    bytes.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(std::int32_t));
  }
  write_file_atomic(output, bytes);
  std::cout << fmt::format("{} steps x {} sequences x {} tokens, int32: {}\n", steps, c.batch.global, row.size(),
                           output);
  return kOk;
}

void add_batches(CLI::App& verb, Chosen& chosen) {
  CLI::App* batches =
      verb.add_subcommand("batches", "the token batches of a training, as int32 [steps, global batch, sequence + 1]");
  auto options = add_config_options(*batches, false);
  auto first = std::make_shared<std::int64_t>(1), steps = std::make_shared<std::int64_t>(1);
  auto output = std::make_shared<std::string>();
  batches->add_option("--first", *first, "first step")->capture_default_str()->check(CLI::PositiveNumber);
  batches->add_option("--steps", *steps, "how many")->capture_default_str()->check(CLI::PositiveNumber);
  batches->add_option("--output", *output, "file")->required();
  batches->callback([&chosen, options, first, steps, output] {
    chosen.action = [=] { return write_batches(*options, *first, *steps, *output); };
  });
}

void add_tokenizer(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("tokenizer", "byte-level BPE in the tokenizer.json form");
  verb->require_subcommand(1);
  auto t = std::make_shared<data::TrainCommand>();
  CLI::App* train = verb->add_subcommand("train", "learns merges from text");
  train->add_option("INPUT", t->inputs, ".jsonl (a document a line) or text files; none: standard input");
  train->add_option("--output", t->output, "tokenizer.json")->required();
  train->add_option("--vocabulary", t->options.vocabulary, "entries, special tokens included")->capture_default_str();
  train->add_option("--threads", t->options.threads, "0: all cores");
  train->add_flag("--jsonl", t->jsonl, "standard input is lines of {\"text\": ...}");
  train->callback([&chosen, t] {
    chosen.action = [t] {
      data::train_command(*t, std::cin, std::cerr);
      return kOk;
    };
  });
  auto e = std::make_shared<data::EncodeCommand>();
  CLI::App* encode = verb->add_subcommand("encode", "text on standard input to ids");
  encode->add_option("TOKENIZER,--tokenizer", e->tokenizer, "tokenizer.json")->required();
  encode->add_flag("--jsonl", e->jsonl, "lines {\"text\": ...} to lines {\"ids\": [...]}");
  encode->add_flag("--allow-special", e->allow_special, "match special tokens in the text (never for training text)");
  encode->add_flag("--template", e->add_template, "add what the post-processor adds (begin of text)");
  encode->add_option("--threads", e->threads, "0: all cores");
  encode->callback([&chosen, e] {
    chosen.action = [e] {
      data::encode_command(*e, std::cin, std::cout);
      return kOk;
    };
  });
  auto d = std::make_shared<data::DecodeCommand>();
  CLI::App* decode = verb->add_subcommand("decode", "ids on standard input to text");
  decode->add_option("TOKENIZER,--tokenizer", d->tokenizer, "tokenizer.json")->required();
  decode->add_flag("--jsonl", d->jsonl, "lines {\"ids\": [...]} to lines {\"text\": ...}");
  decode->add_flag("--skip-special", d->skip_special, "leave special tokens out");
  decode->callback([&chosen, d] {
    chosen.action = [d] {
      data::decode_command(*d, std::cin, std::cout);
      return kOk;
    };
  });
}

}  // namespace

void add_data_verbs(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("data", "fetch, prepare, inspect and verify training text");
  verb->require_subcommand(1);
  add_fetch(*verb, chosen);
  add_prepare(*verb, chosen);
  add_inspect_and_verify(*verb, chosen);
  add_baseline(*verb, chosen);
  add_batches(*verb, chosen);
  add_tokenizer(app, chosen);
}

}  // namespace molen::apps
