// molen generate, molen eval
#include <fmt/format.h>

#include <cstdio>

#include "apps/cli.h"
#include "base/error.h"
#ifdef MOLEN_HAS_TORCH
#include "infer/generate.h"
#endif

namespace molen::apps {
#ifdef MOLEN_HAS_TORCH
namespace {

struct GenerateCommand {
  std::string model, prompt;
  infer::GenerateOptions options;
  bool no_cache = false;
};

int run_generate(const GenerateCommand& c) {
  auto options = c.options;
  options.use_cache = !c.no_cache;
  const auto model = infer::load_model(c.model);
  fmt::print("{}", c.prompt);
  infer::generate(model, c.prompt, options, [](const std::string& piece) {
    fmt::print("{}", piece);
    std::fflush(stdout);
  });
  fmt::print("\n");
  return kOk;
}

}  // namespace

void add_inference_verbs(CLI::App& app, Chosen& chosen) {
  auto g = std::make_shared<GenerateCommand>();
  CLI::App* generate = app.add_subcommand("generate", "continues a text");
  generate->add_option("MODEL", g->model, "run, checkpoint or Hugging Face directory")->required();
  generate->add_option("--prompt", g->prompt, "text to continue (none: the model starts a document)");
  generate->add_option("--max-tokens", g->options.max_tokens, "largest number of tokens to generate")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  generate->add_option("--temperature", g->options.sampling.temperature, "0: always the most likely token")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  generate->add_option("--top-k", g->options.sampling.top_k, "only the k most likely tokens (0: all)")
      ->check(CLI::NonNegativeNumber);
  generate
      ->add_option("--top-p", g->options.sampling.top_p,
                   "only the most likely tokens whose probabilities add up to this share (1: all)")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  generate->add_option("--seed", g->options.sampling.seed, "same seed, same text")->capture_default_str();
  generate->add_option("--stop", g->options.stops, "ends before this string; may be repeated")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  generate->add_option("--threads", g->options.threads, "0: the machine's cores");
  generate->add_flag("--no-cache", g->no_cache, "without the key/value cache: slow, for comparison");
  generate->callback([&chosen, g] { chosen.action = [g] { return run_generate(*g); }; });

  CLI::App* eval = app.add_subcommand("eval", "evaluates a model");
  eval->require_subcommand(1);
  auto e = std::make_shared<infer::EvalLogitsOptions>();
  CLI::App* logits = eval->add_subcommand("logits", "logits of given tokens, to check a conversion from outside");
  logits->add_option("DIR", e->model, "Hugging Face directory, run or checkpoint")->required();
  logits->add_option("--tokens", e->tokens, "JSON array of token-id arrays of equal length")->required();
  logits
      ->add_option("--output", e->output,
                   "safetensors file with one tensor `logits` [batch, sequence, vocabulary] in fp32")
      ->required();
  logits->add_option("--threads", e->threads, "0: the machine's cores");
  logits->callback([&chosen, e] {
    chosen.action = [e] {
      infer::eval_logits(*e);
      return kOk;
    };
  });
}
#else
void add_inference_verbs(CLI::App& app, Chosen& chosen) {
  for (const char* name : {"generate", "eval"}) {
    CLI::App* verb = app.add_subcommand(name, "needs libtorch, which this build lacks");
    verb->allow_extras();
    verb->callback([&chosen] {
      chosen.action = []() -> int { throw UsageError("this build has no libtorch: run `make setup build`"); };
    });
  }
}
#endif

}  // namespace molen::apps
