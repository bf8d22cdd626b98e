// Byte-level BPE tokenizers in the `tokenizer.json` form. They give the same ids as Hugging Face `tokenizers`, for any
// bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/spec.h"

namespace molen::data {

struct EncodeOptions {
  // Match special tokens in the text. Keep it off for any text from outside: a document that contains "<|endoftext|>"
  // must not be able to end itself. Off is Hugging Face's `encode_special_tokens = True`; on is its default.
  bool allow_special = false;
  // Put the post-processor's tokens (begin of text, say) around the text.
  bool add_template = false;
};

struct DecodeOptions {
  bool skip_special = false;
};

// Immutable; copies share one state, and any number of threads may use it.
class Tokenizer {
 public:
  // Throws UsageError when the file is malformed or requires an unsupported feature.
  static Tokenizer load(const std::filesystem::path& path);
  static Tokenizer parse(std::string_view json, std::string_view origin);
  explicit Tokenizer(TokenizerSpec spec, std::string_view origin = "tokenizer");

  // Writes tokenizer.json completely or not at all.
  void save(const std::filesystem::path& path) const;
  std::string json() const;

  // Accepts any bytes: each maximal ill-formed part of UTF-8 counts as one U+FFFD.
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;
  // Does the same, but appends to `out`.
  void encode_to(std::string_view text, EncodeOptions options, std::vector<TokenId>& out) const;
  // Returns one result per text. It does not depend on the number of threads (0 = all cores).
  std::vector<std::vector<TokenId>> encode_batch(std::span<const std::string_view> texts, EncodeOptions options = {},
                                                 int threads = 0) const;

  // Returns the bytes that the tokens stand for. decode(encode(x)) == x for valid UTF-8 without a prefix space and
  // without added tokens that strip white space. Throws UsageError for an id outside the vocabulary.
  std::string decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;
  // Returns the bytes of one token; empty for an id without a token. Valid as long as the tokenizer.
  std::string_view token_bytes(TokenId id) const;
  // Returns the id of an added token or of a vocabulary entry (given as bytes).
  std::optional<TokenId> find(std::string_view token) const;
  bool is_special(TokenId id) const;

  // Returns the largest id + 1.
  std::uint32_t vocab_size() const;
  // Return the ids of begin and end of text, from the template or by the well-known names (<|begin_of_text|>, <s>;
  // <|endoftext|>, <|end_of_text|>, </s>).
  std::optional<TokenId> bos_id() const;
  std::optional<TokenId> eos_id() const;
  const std::string& pattern() const;
  const TokenizerSpec& spec() const;

  // Returns the SHA-256 (hexadecimal) of everything that decides ids: vocabulary, merges, pattern, flags, added tokens,
  // template, Unicode version. It does not depend on the file's layout.
  const std::string& fingerprint() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace molen::data
