#include "infer/inference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "arch/parts.h"
#include "base/error.h"
#include "base/rng.h"
#include "exec/executor.h"
#include "program/build/build.h"

namespace molen::infer {
namespace {

arch::Architecture small(const char* preset) {
  auto a = arch::preset(preset);
  a.layers = 2;
  a.hidden = 36;
  a.ffn = 52;
  a.heads = 6;
  a.kv_heads = a.family == arch::Family::kLlama ? 2 : 6;
  a.head_dim = 6;
  a.vocabulary = 97;
  a.max_sequence = 40;
  return a;
}

// Includes sparse models: with one token at a time, as in generation, most experts have no rows.
std::vector<arch::Architecture> models() {
  std::vector<arch::Architecture> all;
  for (const char* preset : {"llama-tiny", "gpt2", "poro-34b", "olmo-7b", "qwen3-0.6b"}) all.push_back(small(preset));
  for (const char* preset : {"mixtral-8x7b", "olmoe-1b-7b"}) {
    all.push_back(small(preset));
    all.back().experts->count = 5, all.back().experts->per_token = 2, all.back().experts->ffn = 20;
  }
  all.push_back(all.back());
  all.back().experts->dense_layers = 1;
  all.push_back(all.back());
  all.back().experts->shared = 2;
  all.push_back(all.back());
  all.back().experts->scores = arch::RouterScores::kSigmoid, all.back().experts->scale = 2.5;
  all.back().experts->z_loss = 0.0, all.back().experts->bias_rate = 0.001;
  return all;
}

std::shared_ptr<Weights> random_weights(const arch::Architecture& a) {
  const c10::InferenceMode mode;
  auto weights = std::make_shared<Weights>(a, DType::kF32);
  for (std::size_t i = 0; i < weights->parameters().size(); ++i) {
    at::Tensor t = weights->parameter(i);
    float* data = t.data_ptr<float>();
    for (std::int64_t k = 0; k < t.numel(); ++k)
      data[k] = static_cast<float>((weights->parameters()[i].init == arch::Init::kOnes ? 1.0 : 0.0) +
                                   0.1 * normal_at(i + 1, static_cast<std::uint64_t>(k)));
  }
  return weights;
}

// Decoding with the cache sums the same terms in another order, so results differ by a few roundings of values of order
// one.
TEST(Inference, CacheEqualsNoCache) {
  for (const arch::Architecture& a : models()) {
    SCOPED_TRACE(a.name);
    const auto weights = random_weights(a);
    std::vector<std::int32_t> ids;
    for (std::uint64_t i = 0; i < 23; ++i) ids.push_back(static_cast<std::int32_t>(uniform_at(3, i) * 97));
    Inference whole(weights, 1, 40), stepwise(weights, 1, 40);
    const c10::InferenceMode mode;
    const at::Tensor want = whole.logits(ids, 1, 23).select(0, 0);
    at::Tensor got = stepwise.advance({ids.data(), 9});
    for (std::int64_t t = 9;; ++t) {
      const double scale = want.select(0, t - 1).abs().max().item<double>(),
                   error = (got - want.select(0, t - 1)).abs().max().item<double>();
      EXPECT_TRUE(error <= 64 * 0x1p-24 * scale) << t << ": " << error << " of " << scale;
      if (t == 23) break;
      got = stepwise.advance({&ids[static_cast<std::size_t>(t)], 1});
    }
  }
}

// One object continues with prompts of other lengths, among them one token, and with batches in between.
TEST(Inference, StartsAgain) {
  const auto a = small("gpt2");
  const auto weights = random_weights(a);
  Inference again(weights, 1, 40);
  const c10::InferenceMode mode;
  for (const std::int64_t prompt : {7, 1, 12, 7, 1}) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < prompt + 3; ++i) ids.push_back(static_cast<std::int32_t>((prompt * 31 + i * 7) % 97));
    Inference fresh(weights, 1, 40);
    const at::Tensor want = fresh.logits(ids, 1, prompt + 3).select(0, 0);
    again.reset();
    at::Tensor got = again.advance({ids.data(), static_cast<std::size_t>(prompt)});
    again.logits(ids, 1, prompt + 3);  // leaves the sequence alone
    for (std::int64_t t = prompt; t <= prompt + 3; ++t) {
      const at::Tensor expected = want.select(0, t - 1);
      EXPECT_LE((got - expected).abs().max().item<double>(), 64 * 0x1p-24 * expected.abs().max().item<double>())
          << prompt << ", " << t;
      if (t < prompt + 3) got = again.advance({&ids[static_cast<std::size_t>(t)], 1});
    }
    EXPECT_EQ(again.length(), prompt + 3);
  }
}

// A batch has more rows than the head takes at once. Each sequence must have the same logits as when it runs alone.
TEST(Inference, LogitsOfManyRows) {
  const auto a = small("llama-tiny");
  constexpr std::int64_t batch = 56, sequence = 23;
  ASSERT_GT(batch * sequence, arch::head_chunk(a.vocabulary));
  std::vector<std::int32_t> ids;
  for (std::uint64_t i = 0; i < batch * sequence; ++i) ids.push_back(static_cast<std::int32_t>(uniform_at(4, i) * 97));
  Inference inference(random_weights(a), 1, 40);
  const c10::InferenceMode mode;
  const at::Tensor all = inference.logits(ids, batch, sequence);
  for (const std::int64_t b : {std::int64_t{0}, batch / 2, batch - 2, batch - 1}) {
    const at::Tensor alone = inference.logits({ids.data() + b * sequence, sequence}, 1, sequence).select(0, 0);
    const double scale = alone.abs().max().item<double>(),
                 error = (all.select(0, b) - alone).abs().max().item<double>();
    EXPECT_TRUE(error <= 64 * 0x1p-24 * scale) << b << ": " << error << " of " << scale;
  }
}

// Returns the mean loss that a training step computes from these weights and tokens before its update.
double trained_loss(const arch::Architecture& a, const Weights& weights, const std::vector<std::int32_t>& ids,
                    const std::vector<std::int32_t>& labels) {
  program::Setting s;
  s.global_batch = s.micro_batch = 1;
  s.sequence = static_cast<std::int64_t>(ids.size());
  s.compute = DType::kF32;
  s.threads = 1;
  s.head_chunk = arch::head_chunk(a.vocabulary);
  exec::Executor executor(program::build(a, s), 0, nullptr, {});
  const auto& units = executor.program().units;
  for (std::size_t u = 0; u < units.size(); ++u)
    for (const program::UnitEntry& entry : units[u].entries) {
      const at::Tensor from = weights.parameter(static_cast<std::size_t>(entry.parameter)).flatten();
      executor.state("param", static_cast<int>(u)).narrow(0, entry.offset, from.numel()).copy_(from);
    }
  exec::StepInput input;
  input.load = [&](const exec::MicroBatch& to) {
    std::copy(ids.begin(), ids.end(), to.ids);
    std::copy(labels.begin(), labels.end(), to.labels);
    return static_cast<std::int64_t>(labels.size());
  };
  return executor.run(input).mean_loss();
}

// Inference has its own code for positions, caches and the head. Its loss equals that of a training step up to a few
// roundings of fp32, as in CacheEqualsNoCache.
TEST(Inference, IsTheModelThatIsTrained) {
  for (const arch::Architecture& a : models()) {
    SCOPED_TRACE(a.name);
    const auto weights = random_weights(a);
    constexpr std::int64_t sequence = 31;
    std::vector<std::int32_t> ids, labels;
    for (std::uint64_t i = 0; i <= sequence; ++i) {
      const auto id = static_cast<std::int32_t>(uniform_at(8, i) * 97);
      if (i < sequence) ids.push_back(id);
      if (i > 0) labels.push_back(id);
    }
    const double want = trained_loss(a, *weights, ids, labels);
    Inference whole(weights, 1, 40), stepwise(weights, 1, 40);
    const c10::InferenceMode mode;
    const auto loss_of = [](const at::Tensor& logits, std::int32_t label) {
      return -logits.to(at::kDouble).log_softmax(0)[label].item<double>() / static_cast<double>(sequence);
    };
    const at::Tensor all = whole.logits(ids, 1, sequence).select(0, 0);
    double at_once = 0, in_steps = 0;
    for (std::int64_t t = 0; t < sequence; ++t) {
      at_once += loss_of(all.select(0, t), labels[static_cast<std::size_t>(t)]);
      in_steps +=
          loss_of(stepwise.advance({&ids[static_cast<std::size_t>(t)], 1}), labels[static_cast<std::size_t>(t)]);
    }
    EXPECT_TRUE(std::abs(at_once - want) <= 64 * 0x1p-24 * want) << at_once << " where the training has " << want;
    EXPECT_TRUE(std::abs(in_steps - want) <= 64 * 0x1p-24 * want) << in_steps << " where the training has " << want;
  }
}

// Training drops choices beyond the capacity of an expert; inference drops nothing.
TEST(Inference, DropsNothing) {
  const arch::Architecture dropless = models()[6];
  arch::Architecture capped = dropless;
  ASSERT_TRUE(dropless.sparse());
  capped.experts->capacity = 0.5;
  std::vector<std::int32_t> ids;
  for (std::uint64_t i = 0; i < 31; ++i) ids.push_back(static_cast<std::int32_t>(uniform_at(8, i) * 97));
  const std::vector<std::int32_t> labels(ids.rbegin(), ids.rend());
  const auto weights = random_weights(capped);
  Inference as_trained(weights, 1, 40), as_used(random_weights(dropless), 1, 40);
  const double dropping = trained_loss(capped, *weights, ids, labels),
               whole = trained_loss(dropless, *weights, ids, labels);
  const c10::InferenceMode mode;
  EXPECT_TRUE(at::equal(as_trained.logits(ids, 1, 31), as_used.logits(ids, 1, 31)));
  EXPECT_GT(std::abs(dropping - whole), 10 * 64 * 0x1p-24 * whole) << "nothing is dropped in training";
}

TEST(Inference, RefusesWhatDoesNotFit) {
  Inference inference(random_weights(small("llama-tiny")), 1, 10);
  const std::vector<std::int32_t> eleven(11, 1), outside{97}, negative{-1};
  try {
    inference.advance(eleven);
    ADD_FAILURE() << "eleven tokens of ten";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "the sequence would have 11 tokens; the model's limit is 10");
  }
  // GPT-2 has learned a row for each of 40 positions.
  Inference learned(random_weights(small("gpt2")), 1, 50);
  const std::vector<std::int32_t> many(41, 1);
  EXPECT_THROW(learned.logits(many, 1, 41), UsageError);
  learned.advance({many.data(), 40});
  EXPECT_THROW(learned.advance({many.data(), 1}), UsageError);
  EXPECT_THROW(inference.advance(outside), UsageError);
  EXPECT_THROW(inference.advance(negative), UsageError);
  EXPECT_THROW(inference.advance({}), UsageError);
}

TEST(Sample, FollowsItsOptions) {
  const c10::InferenceMode mode;
  const at::Tensor logits = at::tensor({0.0, 3.0, 2.0, 1.0}, at::kDouble);
  EXPECT_EQ(sample(logits, {0.0, 0, 1.0, 5}, 1), 1);
  std::vector<int> seen(4);
  for (int i = 0; i < 4000; ++i) ++seen[static_cast<std::size_t>(sample(logits, {1.0, 0, 1.0, 7}, i))];
  // Shares of softmax(0, 3, 2, 1), within five standard deviations of 4000 draws.
  EXPECT_NEAR(seen[1] / 4000.0, 0.6439, 5 * 0.0076);
  EXPECT_NEAR(seen[0] / 4000.0, 0.0321, 5 * 0.0028);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(sample(logits, {5.0, 1, 1.0, 7}, i), 1);
    EXPECT_EQ(sample(logits, {1.0, 0, 0.5, 7}, i), 1);
    EXPECT_NE(sample(logits, {5.0, 2, 1.0, 7}, i), 3);
  }
  EXPECT_EQ(sample(logits, {1.0, 0, 1.0, 7}, 3), sample(logits, {1.0, 0, 1.0, 7}, 3));
}

}  // namespace
}  // namespace molen::infer
