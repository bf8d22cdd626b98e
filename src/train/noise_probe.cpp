#include "train/noise_probe.h"

#include <algorithm>

namespace molen::train {

data::Batch Batches::load() {
  data::Batch batch = loader_.next();
  if (batch.wait) waits_.push_back(*batch.wait);
  return batch;
}

data::Batch Batches::next() {
  if (held_.empty()) return load();
  data::Batch batch = std::move(held_.front());
  held_.pop_front();
  return batch;
}

data::Batch Batches::ahead() {
  return held_.emplace_back(load());
}

std::int64_t fill(const exec::MicroBatch& to, const data::Batch& batch, std::int64_t sequence, std::int64_t samples) {
  std::copy(batch.ids.begin(), batch.ids.end(), to.ids);
  std::copy(batch.document_start.begin(), batch.document_start.end(), to.document_start);
  const auto counted = batch.labels.begin() + std::clamp<std::int64_t>(samples, 0, batch.count) * sequence;
  std::fill(std::copy(batch.labels.begin(), counted, to.labels), to.labels + batch.labels.size(), -1);
  return std::count_if(batch.labels.begin(), counted, [](std::int32_t label) { return label >= 0; });
}

SmallBatch run_small(exec::Executor& executor, exec::StepInput input, Batches& batches, std::int64_t end) {
  const std::int64_t sequence = executor.program().setting.sequence;
  input.update = false;
  input.load = [&](const exec::MicroBatch& to) {
    const data::Batch batch = batches.ahead();
    return fill(to, batch, sequence, end - batch.first_sample);
  };
  const exec::StepResult result = executor.run(input);
  SmallBatch small{result.valid_tokens, std::nullopt, result.timeline};
  if (!result.non_finite) small.norm = result.grad_norm;
  return small;
}

}  // namespace molen::train
