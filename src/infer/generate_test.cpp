#include "infer/generate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/test_folder.h"
#include "data/tokenizer/train.h"

namespace molen::infer {
namespace {

data::Tokenizer byte_tokenizer() {
  data::TrainOptions options;
  options.vocabulary = 257;  // <|endoftext|> and the 256 bytes
  data::Trainer trainer(options);
  const std::string_view text[] = {"a"};
  trainer.add(text);
  return trainer.train();
}

std::int32_t id_of(const data::Tokenizer& tokenizer, char byte) {
  const auto id = tokenizer.find(std::string_view(&byte, 1));
  EXPECT_TRUE(id.has_value());
  return static_cast<std::int32_t>(id.value_or(0));
}

// Returns a model that continues `before` with `said` and then ends the text. Each token's embedding has one element
// that is not 0, and the layer adds nothing. The head's row of the next token has the same element, so no byte may
// occur twice. With `loops`, the first byte follows the last byte again.
LoadedModel scripted(const std::string& before, const std::string& said, bool loops = false) {
  arch::Architecture a = arch::preset("llama-tiny");
  a.layers = 1, a.hidden = 264, a.ffn = 8, a.heads = 2, a.kv_heads = 1, a.head_dim = 4;
  a.vocabulary = 260;  // three more than the tokenizer has
  a.max_sequence = 40;
  a.tied = false;
  const c10::InferenceMode mode;
  auto weights = std::make_shared<Weights>(a, DType::kF32);
  LoadedModel model{weights, byte_tokenizer(), "a test"};
  const auto eos = static_cast<std::int32_t>(*model.tokenizer->eos_id());
  std::vector<std::pair<std::int32_t, std::int32_t>> follows;
  std::int32_t last = before.empty() ? eos : id_of(*model.tokenizer, before.back());
  for (const char byte : said) {
    follows.emplace_back(last, id_of(*model.tokenizer, byte));
    last = follows.back().second;
  }
  follows.emplace_back(last, loops ? follows.front().second : eos);
  for (std::size_t i = 0; i < weights->parameters().size(); ++i) {
    const arch::Parameter& p = weights->parameters()[i];
    at::Tensor t = weights->parameter(i);
    t.fill_(p.init == arch::Init::kOnes ? 1.0 : 0.0);
    if (p.role == arch::Role::kEmbedding) t.fill_diagonal_(1.0);
    if (p.role != arch::Role::kHead) continue;
    // The ids without a token get the largest logits by far, and must not be chosen.
    for (const auto& [from, to] : follows) t.index_put_({at::tensor(to), at::tensor(from)}, at::tensor(1.0F));
    t.slice(0, 257).fill_(9.0);
  }
  return model;
}

GenerateOptions likeliest(std::int64_t most = 100) {
  GenerateOptions o;
  o.sampling.temperature = 0;
  o.max_tokens = most;
  o.threads = 1;
  return o;
}

// Returns the pieces that `generate` emitted, and checks that together they are the text that it returned.
std::vector<std::string> pieces_of(const LoadedModel& model, const std::string& prompt, const GenerateOptions& o) {
  std::vector<std::string> pieces;
  std::string all;
  const std::string returned = generate(model, prompt, o, [&](const std::string& piece) {
    pieces.push_back(piece);
    all += piece;
  });
  EXPECT_EQ(all, returned);
  EXPECT_EQ(generate(model, prompt, o, nullptr), returned) << "nobody listens";
  return pieces;
}

using Pieces = std::vector<std::string>;
const std::string kWords = "m\xc3\xb8len \xe2\x82\xac\xf0\x9f\x98\x80.";

TEST(Generate, EmitsWholeCharacters) {
  const Pieces whole{"m", "\xc3\xb8", "l", "e", "n", " ", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "."};
  for (const bool cache : {true, false}) {
    GenerateOptions o = likeliest();
    o.use_cache = cache;
    EXPECT_EQ(pieces_of(scripted("x", kWords), "x", o), whole) << cache;
    EXPECT_EQ(pieces_of(scripted("", kWords), "", o), whole) << "a document begins behind the end of another";
  }
  EXPECT_EQ(pieces_of(scripted("x", "a\xe2\x82"), "x", likeliest()), (Pieces{"a", "\xef\xbf\xbd"}))
      << "a character that never ends";
}

TEST(Generate, EndsWhereItIsTold) {
  const auto text = [](const GenerateOptions& o, bool loops = false) {
    return generate(scripted("x", "abcdef", loops), "x", o, nullptr);
  };
  EXPECT_EQ(text(likeliest()), "abcdef") << "the end of the text";
  EXPECT_EQ(text(likeliest(3)), "abc");
  EXPECT_EQ(text(likeliest(0)), "");
  std::string rounds;
  while (rounds.size() < 39) rounds += "abcdef"[rounds.size() % 6];
  EXPECT_EQ(text(likeliest(1000), true), rounds) << "the model's longest sequence, less the prompt";
  for (const bool cache : {true, false}) {
    GenerateOptions o = likeliest();
    o.use_cache = cache;
    o.stops = {"ef", "de"};
    EXPECT_EQ(pieces_of(scripted("x", "abcdef"), "x", o), (Pieces{"a", "b", "c"}))
        << "what may begin a stop string is held back";
    o.stops = {"cx"};
    EXPECT_EQ(pieces_of(scripted("x", "abcdef"), "x", o), (Pieces{"a", "b", "cd", "e", "f"}));
    o.stops = {"fx"};
    EXPECT_EQ(pieces_of(scripted("x", "abcdef"), "x", o), (Pieces{"a", "b", "c", "d", "e", "f"}))
        << "what was held back is shown at the end";
  }
}

std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Generate, RefusesWhatItCannotGenerateFrom) {
  const auto refused = [](const LoadedModel& model, const std::string& prompt, const GenerateOptions& o) {
    return refusal_of([&] { generate(model, prompt, o, nullptr); });
  };
  const LoadedModel model = scripted("x", "abc");
  GenerateOptions o = likeliest();
  EXPECT_EQ(refused(model, std::string(40, 'x'), o), "accepted");
  EXPECT_EQ(refused(model, std::string(41, 'x'), o), "the prompt has 41 tokens; the model's limit is 40");
  o.stops = {"a", ""};
  EXPECT_EQ(refused(model, "x", o), "--stop: an empty string");
  LoadedModel bare = model;
  bare.tokenizer.reset();
  EXPECT_EQ(refused(bare, "x", likeliest()), "a test: no tokenizer.json lies with the model");
}

TEST(EvalLogits, RefusesWhatIsNoBatchOfTokens) {
  const checkpoint::TestFolder folder;
  const auto refused = [&](const std::string& tokens) {
    EvalLogitsOptions o;
    o.tokens = folder.path() / "tokens.json", o.model = folder.path() / "none", o.output = folder.path() / "out";
    write_file_atomic(o.tokens, tokens);
    std::string why = refusal_of([&] { eval_logits(o); });
    const std::string origin = o.tokens.string() + ": ";
    return why.starts_with(origin) ? why.substr(origin.size()) : "past the tokens";
  };
  for (const char* none : {"{}", "[]", "[[]]", "[1]", "[[1],2]"})
    EXPECT_EQ(refused(none), "expected an array of token-id arrays") << none;
  EXPECT_EQ(refused("[[1,2],[3]]"), "the arrays differ in length");
  EXPECT_EQ(refused("[[1.5]]"), "1.5 is not a token id");
  EXPECT_EQ(refused("[[\"1\"]]"), "\"1\" is not a token id");
  EXPECT_EQ(refused("[[-1]]"), "-1 is not a token id");
  EXPECT_EQ(refused("[[2147483648]]"), "2147483648 is not a token id");
  EXPECT_EQ(refused("[[0,2147483647]]"), "past the tokens") << "then the model is looked for";
}

}  // namespace
}  // namespace molen::infer
