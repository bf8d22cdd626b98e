#include "data/ngram.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace molen::data {
namespace {

// Packs the last `length` symbols of a history (9 bits each, newest lowest) and their number into one key, never 0.
std::uint64_t context_key(std::uint64_t history, int length) {
  const std::uint64_t mask = (std::uint64_t{1} << (9 * length)) - 1;
  return (history & mask) | (std::uint64_t{1} << (9 * length));
}

std::uint64_t gram_key(std::uint64_t context, int symbol) {
  return context << 9 | static_cast<std::uint64_t>(symbol);
}

}  // namespace

std::size_t NgramModel::Counts::find(std::uint64_t key) const {
  const std::size_t mask = slots_.size() - 1;
  std::uint64_t hash = key * 0x9E3779B97F4A7C15ull;
  std::size_t at = (hash ^ hash >> 32) & mask;
  while (slots_[at].key != 0 && slots_[at].key != key) at = (at + 1) & mask;
  return at;
}

void NgramModel::Counts::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.key != 0) slots_[find(slot.key)] = slot;
}

bool NgramModel::Counts::add(std::uint64_t key) {
  if (used_ * 2 >= slots_.size()) grow();
  Slot& slot = slots_[find(key)];
  const bool fresh = slot.key == 0;
  slot.key = key;
  ++slot.count;
  used_ += fresh;
  return fresh;
}

std::uint32_t NgramModel::Counts::get(std::uint64_t key) const {
  return slots_[find(key)].count;
}

NgramModel::NgramModel(int order) : order_(order) {
  // 64 bits hold 9 bits per symbol and the mark above them.
  if (order < 1 || order > 7) throw UsageError("n-gram order {}: must be 1 to 7", order);
  levels_.resize(static_cast<std::size_t>(order));
}

void NgramModel::train(std::string_view document) {
  std::uint64_t history = 0;
  for (std::size_t i = 0; i <= document.size(); ++i) {
    const int symbol = i < document.size() ? static_cast<unsigned char>(document[i]) : kEnd;
    const int known = static_cast<int>(std::min<std::size_t>(i, static_cast<std::size_t>(order_) - 1));
    for (int length = 0; length <= known; ++length) {
      Level& level = levels_[static_cast<std::size_t>(length)];
      const std::uint64_t context = context_key(history, length);
      if (level.grams.add(gram_key(context, symbol))) level.kinds.add(context);
      level.contexts.add(context);
    }
    history = history << 9 | static_cast<std::uint64_t>(symbol);
  }
}

double NgramModel::probability_at(std::uint64_t history, int known, int symbol) const {
  double p = 1.0 / 257.0;
  for (int length = 0; length <= known; ++length) {
    const Level& level = levels_[static_cast<std::size_t>(length)];
    const std::uint64_t context = context_key(history, length);
    const double seen = level.contexts.get(context);
    if (seen == 0) break;  // longer contexts were not seen either
    const double kinds = level.kinds.get(context);
    p = (level.grams.get(gram_key(context, symbol)) + kinds * p) / (seen + kinds);
  }
  return p;
}

double NgramModel::probability(std::string_view before, int symbol) const {
  const std::size_t known = std::min(before.size(), static_cast<std::size_t>(order_) - 1);
  std::uint64_t history = 0;
  for (char c : before.substr(before.size() - known)) history = history << 9 | static_cast<unsigned char>(c);
  return probability_at(history, static_cast<int>(known), symbol);
}

double NgramModel::bits(std::string_view document) const {
  double bits = 0;
  std::uint64_t history = 0;
  for (std::size_t i = 0; i <= document.size(); ++i) {
    const int symbol = i < document.size() ? static_cast<unsigned char>(document[i]) : kEnd;
    const int known = static_cast<int>(std::min<std::size_t>(i, static_cast<std::size_t>(order_) - 1));
    bits -= std::log2(probability_at(history, known, symbol));
    history = history << 9 | static_cast<std::uint64_t>(symbol);
  }
  return bits;
}

}  // namespace molen::data
