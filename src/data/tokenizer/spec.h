// A tokenizer as plain data, and its file form (`tokenizer.json` of Hugging Face).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/bpe.h"

namespace molen::data {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // only if no word character is beside it
  bool lstrip = false;       // the token takes the white space before it
  bool rstrip = false;       // the token takes the white space after it
  bool normalized = false;   // matched in a second pass, on the text that the first pass left
  bool special = false;
};

struct TokenizerSpec {
  std::string pattern;
  // True: Sequence[Split(pattern), ByteLevel], as Llama-3. False: ByteLevel with its built-in pattern, as GPT-2.
  bool split_sequence = false;
  bool add_prefix_space = false;
  bool ignore_merges = false;
  std::vector<std::string> vocabulary;              // by id, in the byte alphabet; empty = no such id
  std::vector<std::pair<TokenId, TokenId>> merges;  // by rank
  std::vector<AddedToken> added;                    // in the file's order
  std::vector<TokenId> before, after;               // tokens that the post-processor puts around a text
  std::string post_processor;                       // its JSON text from the file; "" = none
};

// Parses a tokenizer.json. Throws UsageError naming `origin` and the key for anything malformed, inconsistent or not
// supported.
TokenizerSpec parse_tokenizer_json(std::string_view text, std::string_view origin);
std::string tokenizer_json(const TokenizerSpec& spec);

}  // namespace molen::data
