// Inference on one process: logits without a cache, and decoding with a key/value cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "infer/options.h"
#include "infer/weights.h"

namespace molen::infer {

class Inference {
 public:
  Inference(std::shared_ptr<const Weights> weights, int threads, std::int64_t max_sequence);
  ~Inference();

  // Returns logits [B, S, V] for the ids [B, S] (row-major).
  at::Tensor logits(std::span<const std::int32_t> ids, std::int64_t batch, std::int64_t sequence);

  // Starts a new sequence.
  void reset();
  // Appends tokens to the sequence and returns the logits [V] that follow the last token. The first call (after reset)
  // may append many tokens. Throws UsageError past max_sequence.
  at::Tensor advance(std::span<const std::int32_t> ids);
  std::int64_t length() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Draws the next token from logits [V]; the draw is a pure function of (seed, position).
std::int32_t sample(const at::Tensor& logits, const Sampling& sampling, std::int64_t position);

}  // namespace molen::infer
