// Byte n-gram language models with Witten-Bell smoothing: the baselines that a trained model has to beat.
//
//   P(c | h) = (count(h c) + T(h) P(c | h')) / (count(h) + T(h)),  h' = h without its oldest byte,
// T(h) = number of different symbols seen after h; for a context that was never seen, P(c | h) is P(c | h'); below the
// empty context is the uniform distribution over 257 symbols (Witten and Bell 1991; as in Chen and Goodman 1998, eq.
// 10-11). The 257th symbol ends a document, like the end-of-text token, and documents do not see each other.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace molen::data {

class NgramModel {
 public:
  // Order 1..7: the model predicts a symbol from the order - 1 symbols before it.
  explicit NgramModel(int order);

  void train(std::string_view document);
  // Returns the probability of `symbol` (a byte, or kEnd) after the last order - 1 bytes of `before`.
  double probability(std::string_view before, int symbol) const;
  // Returns -log2 of the probability of a document and its end.
  double bits(std::string_view document) const;

  static constexpr int kEnd = 256;

 private:
  // Open addressing from a 64-bit key to a count; keys are never 0.
  class Counts {
   public:
    Counts() : slots_(1 << 12) {}
    // Adds 1; returns true when the key is new.
    bool add(std::uint64_t key);
    std::uint32_t get(std::uint64_t key) const;

   private:
    struct Slot {
      std::uint64_t key = 0;
      std::uint32_t count = 0;
    };
    std::size_t find(std::uint64_t key) const;
    void grow();
    std::vector<Slot> slots_;
    std::size_t used_ = 0;
  };
  struct Level {
    Counts grams;     // count(h c)
    Counts contexts;  // count(h)
    Counts kinds;     // T(h)
  };
  double probability_at(std::uint64_t history, int known, int symbol) const;

  int order_;
  std::vector<Level> levels_;  // by length of the context
};

}  // namespace molen::data
