// libFuzzer target: the tokenizer.json loader, and encoding and decoding of arbitrary bytes.
//
// The first byte of the input chooses. Even: the rest is a tokenizer.json, which must load or be refused.
// Odd: the rest is text for a fixed tokenizer, whose properties are checked.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/tokenizer/commands.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unicode.h"

namespace {

using namespace molen;
using namespace molen::data;

void require(bool condition) {
  if (!condition) std::abort();
}

// Trains the tokenizer here, so that the target needs no files: one per shape, with an added token that strips white
// space.
const Tokenizer& tokenizer(bool llama3) {
  const auto make = [](const char* shape) {
    TrainOptions options;
    options.shape = shape;
    options.vocabulary = 400;
    options.threads = 1;
    options.special_tokens = {"<|endoftext|>", "<s>"};
    options.bos = "<s>";
    Trainer trainer(options);
    const std::string_view texts[] = {
        "the mill turns, the mill's wheel turned 1234 times\n\n  the end. de molen draait"};
    for (int i = 0; i < 3; ++i) trainer.add(texts);
    TokenizerSpec spec = trainer.train().spec();
    AddedToken token;
    token.id = static_cast<TokenId>(spec.vocabulary.size());
    token.content = "<x>";
    token.lstrip = token.rstrip = true;
    spec.added.push_back(token);
    token.id += 1;
    token.content = "word";
    token.lstrip = token.rstrip = false;
    token.single_word = token.normalized = true;
    spec.added.push_back(token);
    return Tokenizer(std::move(spec));
  };
  static const Tokenizer gpt2 = make("gpt2"), llama = make("llama3");
  return llama3 ? llama : gpt2;
}

void load(std::string_view json) {
  try {
    const Tokenizer loaded = Tokenizer::parse(json, "fuzz");
    const auto ids = loaded.encode("Hello, world's 123  \r\n \xf0\x9f\x98\x80<|endoftext|>", {true, true});
    loaded.decode(ids);
    // A tokenizer that loads can be saved, and loads again as the same.
    require(Tokenizer::parse(loaded.json(), "again").fingerprint() == loaded.fingerprint());
  } catch (const UsageError&) {
  } catch (const Error& error) {
    require(std::string_view(error.what()).find("split pattern failed") != std::string_view::npos);
  }
}

void encode(bool llama3, std::string_view text) {
  const Tokenizer& fixed = tokenizer(llama3);
  const auto ids = fixed.encode(text);
  for (const TokenId id : ids) require(!fixed.is_special(id));
  const std::string clean = valid_utf8(text) ? std::string(text) : replace_invalid_utf8(text);
  require(valid_utf8(clean));
  require(fixed.encode(clean) == ids);
  if (clean.find("<x>") == std::string::npos) require(fixed.decode(ids) == clean);
  fixed.decode(fixed.encode(text, {true, true}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    load(rest);
  } else {
    encode(data[0] & 2, rest);
  }
  return 0;
}
