#include "train/validation.h"

#include <algorithm>

#include "base/error.h"

namespace molen::train {
namespace {

struct Sum {
  double loss = 0.0, tokens = 0.0;
};

Sum run_language(exec::Executor& evaluator, const data::ValidationSet& set, int language, const DataPlace& place,
                 std::int64_t most_windows) {
  const auto& setting = evaluator.program().setting;
  const std::int64_t there = set.languages()[static_cast<std::size_t>(language)].windows;
  const std::int64_t windows = most_windows > 0 ? std::min(there, most_windows) : there;
  const std::int64_t micro = setting.micro_batch, sequence = setting.sequence;
  Sum sum;
  // All ranks run the same number of batches, because they may have to gather parameters together. A rank's last batch
  // may be empty.
  for (std::int64_t round = 0; round < windows; round += micro * place.ranks) {
    const std::int64_t first = round + place.rank * micro;
    exec::StepInput input;
    input.load = [&](const exec::MicroBatch& to) {
      std::int64_t valid = 0;
      for (std::int64_t row = 0; row < micro; ++row) {
        std::int32_t *i = to.ids + row * sequence, *l = to.labels + row * sequence;
        const auto size = static_cast<std::size_t>(sequence);
        if (first + row < windows) {
          valid += set.read(language, first + row, {i, size}, {l, size});
        } else {
          std::fill(i, i + sequence, 0);
          std::fill(l, l + sequence, -1);
        }
        if (to.document_start)
          data::document_starts({i, size}, set.end_of_text(language), {to.document_start + row * sequence, size});
      }
      return valid;
    };
    const auto result = evaluator.run(input);
    sum.loss += result.loss_sum;
    sum.tokens += result.valid_tokens;
  }
  return sum;
}

// Sums of losses and of bits, with the numbers to divide them by.
struct Tally {
  double loss = 0.0, tokens = 0.0;
  std::map<std::string, std::pair<double, double>> bits;  // by language: bits per byte times tokens, and tokens

  void add(const std::string& language, const Sum& sum, double bits_per_byte) {
    loss += sum.loss;
    tokens += sum.tokens;
    auto& [weighted, weight] = bits[language];
    weighted += bits_per_byte * sum.tokens;
    weight += sum.tokens;
  }

  HeldOut result() const {
    HeldOut r;
    for (const auto& [language, sum] : bits) r.bits_per_byte[language] = sum.second > 0 ? sum.first / sum.second : 0.0;
    r.tokens = static_cast<std::int64_t>(tokens);
    r.loss = tokens > 0 ? loss / tokens : 0.0;
    return r;
  }
};

}  // namespace

ValidationResult validate(exec::Executor& evaluator, const std::vector<const data::ValidationSet*>& sets,
                          const DataPlace& place, comm::Communicator& world, std::int64_t most_windows) {
  ValidationResult result;
  Tally all;
  for (const data::ValidationSet* set : sets) {
    Tally one;
    for (std::size_t l = 0; l < set->languages().size(); ++l) {
      const int language = static_cast<int>(l);
      const Sum mine = run_language(evaluator, *set, language, place, most_windows);
      double sums[2] = {place.counts ? mine.loss : 0.0, place.counts ? mine.tokens : 0.0};
      world.all_reduce(sums, 2, DType::kF64, comm::Reduce::kSum);
      const double per_byte = set->bits_per_byte(language, sums[0], static_cast<std::int64_t>(sums[1]));
      for (Tally* tally : {&one, &all}) tally->add(set->languages()[l].name, {sums[0], sums[1]}, per_byte);
    }
    result.sets.push_back(one.result());
  }
  static_cast<HeldOut&>(result) = all.result();
  return result;
}

}  // namespace molen::train
