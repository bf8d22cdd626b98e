#include "train/validation.h"

#include <algorithm>

#include "base/error.h"

namespace molen::train {
namespace {

struct Sum {
  double loss = 0.0, tokens = 0.0;
};

Sum run_language(exec::Executor& evaluator, const data::ValidationSet& set, int language, const DataPlace& place,
                 std::int64_t max_batches) {
  const auto& setting = evaluator.program().setting;
  const std::int64_t windows = set.languages()[static_cast<std::size_t>(language)].windows;
  const std::int64_t micro = setting.micro_batch, sequence = setting.sequence;
  Sum sum;
  std::int64_t batches = 0;
  // All ranks run as many batches, the last of them perhaps empty: they may have to gather parameters together.
  for (std::int64_t round = 0; round < windows; round += micro * place.ranks) {
    if (max_batches > 0 && batches++ >= max_batches) break;
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

}  // namespace

ValidationResult validate(exec::Executor& evaluator, const std::vector<const data::ValidationSet*>& sets,
                          const DataPlace& place, comm::Communicator& world, std::int64_t max_batches) {
  ValidationResult result;
  std::map<std::string, std::pair<double, double>> bits;  // bits and bytes by language
  double loss = 0.0, tokens = 0.0;
  for (const data::ValidationSet* set : sets)
    for (std::size_t l = 0; l < set->languages().size(); ++l) {
      const Sum mine = run_language(evaluator, *set, static_cast<int>(l), place, max_batches);
      double sums[2] = {place.counts ? mine.loss : 0.0, place.counts ? mine.tokens : 0.0};
      world.all_reduce(sums, 2, DType::kF64, comm::Reduce::kSum);
      loss += sums[0];
      tokens += sums[1];
      const double per_byte = set->bits_per_byte(static_cast<int>(l), sums[0], static_cast<std::int64_t>(sums[1]));
      auto& [weighted, weight] = bits[set->languages()[l].name];
      weighted += per_byte * sums[1];
      weight += sums[1];
    }
  for (const auto& [language, sum] : bits)
    result.bits_per_byte[language] = sum.second > 0 ? sum.first / sum.second : 0.0;
  result.tokens = static_cast<std::int64_t>(tokens);
  result.loss = tokens > 0 ? loss / tokens : 0.0;
  return result;
}

}  // namespace molen::train
