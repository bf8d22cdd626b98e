// Trains byte-level BPE tokenizers. The result equals that of Hugging Face's BpeTrainer on the same texts: the most
// frequent pair merges first; on a tie, the pair with the smaller ids. It does not depend on threads or on the order of
// the texts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace molen::data {

struct TrainOptions {
  std::uint32_t vocabulary = 32000;  // with special tokens and the 256 bytes; smaller when pairs run out
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // ids 0, 1, ...
  std::string shape = "gpt2";       // "gpt2" or "llama3": pattern, pre-tokenizer and ignore_merges of that model
  std::uint64_t min_frequency = 2;  // pairs that occur less often do not merge
  std::string bos;                  // one of the special tokens, put before each text by the template; "" = none
  int threads = 0;                  // 0 = all cores
};

class Trainer {
 public:
  // Throws UsageError when the options contradict each other.
  explicit Trainer(TrainOptions options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Counts the words of some documents, in parallel. Special tokens in documents are ordinary text.
  void add(std::span<const std::string_view> texts);
  // Bytes and different words counted so far.
  std::uint64_t bytes() const;
  std::size_t words() const;
  // Throws UsageError when nothing was counted.
  Tokenizer train() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace molen::data
