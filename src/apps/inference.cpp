// molen generate, molen eval
#include "apps/cli.h"
#include "apps/computing.h"

namespace molen::apps {

void add_inference_verbs(CLI::App& app, Chosen& chosen) {
  auto g = std::make_shared<GenerateCall>();
  CLI::App* generate = app.add_subcommand("generate", of_computing("continues a text"));
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
  generate->add_flag("!--no-cache", g->options.use_cache, "without the key/value cache: slow, for comparison");
  generate->callback([&chosen, g] { chosen.action = [g] { return computing().generate(*g); }; });

  CLI::App* eval = app.add_subcommand("eval", of_computing("evaluates a model"));
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
  logits->callback([&chosen, e] { chosen.action = [e] { return computing().eval_logits(*e); }; });
}

}  // namespace molen::apps
