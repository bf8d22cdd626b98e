// Routing of a mixture of experts: the choice of experts for each token, and their weights; the losses that keep the
// load balanced; and the backward of all of these. Letters are those of math/expert_order.h, with B sequences of S
// tokens and N = B*S.
//
// These templates serve every path. The router has N*E numbers, while the experts' products have N*k*d*f terms, and its
// sums must be accurate. So there is no faster version for fp32, whose sums are in double. T is as in math/reference.h.
//
// A token with a NaN among its logits still chooses k different experts, and the NaN's expert is one of them, so the
// NaN reaches the token's weights. +infinity makes a softmax NaN, and -infinity is the last choice. Sizes that fit no
// router (k beyond E, or N no multiple of B) throw Error.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "math/expert_order.h"
#include "math/reference.h"

namespace molen::math::reference {

// kSoftmax: s = softmax(z) over all experts (Mixtral, OLMoE, Qwen3). kSigmoid: s_e = sigmoid(z_e) (DeepSeek-V3, arXiv
// 2412.19437, equation 15).
enum class RouterScore { kSoftmax, kSigmoid };

struct Router {
  std::int64_t N, E, k;
  RouterScore score = RouterScore::kSoftmax;
  // Says whether a token's k weights are divided by their sum (equation 13; norm_topk_prob in Hugging Face's
  // configurations; always so in Mixtral).
  bool renormalise = false;
  double scale = 1.0;  // factor of all weights (routed_scaling_factor of DeepSeek-V3), after the division
  // Tokens with a label below 0 go to their experts like any other, but take no part in the losses. When null, all
  // tokens take part.
  const std::int32_t* labels_N = nullptr;
  bool counts(std::int64_t n) const { return !labels_N || labels_N[n] >= 0; }
};

// The two auxiliary terms in an objective J = ... + balance * sum_b L_b + z * sum_n lse_n^2. The caller makes them
// means over sequences and tokens: balance = coefficient / sequences of the batch, z = coefficient / tokens of the
// batch.
struct RouterLosses {
  double balance = 0.0;
  double z = 0.0;
  std::int64_t B = 1;  // sequences of the micro-batch; each has N / B consecutive rows here
  std::int64_t T = 0;  // tokens of a whole sequence, on all ranks that share it
};

namespace detail {

// Sums of scores are divided by sum + kNoScore, as DeepSeek-V3's code does, so that scores that are all zero give zero.
inline constexpr double kNoScore = 1e-20;

inline void check(const Router& r) {
  MOLEN_CHECK(r.N >= 0 && r.k >= 1 && r.k <= r.E, "{} tokens choose {} of {} experts", r.N, r.k, r.E);
}
// Returns the number of rows of each sequence.
inline std::int64_t sequence_rows(const Router& r, std::int64_t B) {
  MOLEN_CHECK(B >= 1 && r.N % B == 0, "{} tokens in {} sequences", r.N, B);
  return r.N / B;
}

// Compares with NaN as the largest value, as torch.topk does.
inline bool larger(double a, double b) {
  return a > b || (std::isnan(a) && !std::isnan(b));
}

// Writes the k experts with the largest keys, in falling order of key. Among equal keys, the smaller index comes first.
// key(e) returns the key of expert e.
template <class Key>
void choose(std::int64_t E, std::int64_t k, const Key& key, std::int32_t* choice) {
  std::int64_t count = 0;
  for (std::int64_t e = 0; e < E; ++e) {
    const double value = key(e);
    if (count == k && !larger(value, key(choice[k - 1]))) continue;
    std::int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && larger(value, key(choice[at - 1])); --at) choice[at] = choice[at - 1];
    choice[at] = static_cast<std::int32_t>(e);
  }
}

// Returns the sum of the chosen scores, as a divisor, or 1 when weights are not renormalised.
template <class T>
Accum<T> weight_divisor(const Router& r, const T* scores, const std::int32_t* choice) {
  if (!r.renormalise) return Accum<T>(1);
  Accum<T> sum(0);
  for (std::int64_t j = 0; j < r.k; ++j) sum += Accum<T>(scores[expert_of(choice[j])]);
  return sum + kNoScore;
}
// Returns the divisor that makes a token's scores add up to 1.
template <class T>
Accum<T> score_divisor(const Router& r, const T* scores) {
  if (r.score == RouterScore::kSoftmax) return Accum<T>(1);
  Accum<T> sum(0);
  for (std::int64_t e = 0; e < r.E; ++e) sum += Accum<T>(scores[e]);
  return sum + kNoScore;
}

// Returns E / (k T T_b), the factor of the loss of a sequence (balance_losses), or 0 when no token counts.
template <class T>
double balance_factor(const Router& r, const RouterLosses& l, const T* counts_E) {
  double slots = 0.0;  // k T_b
  for (std::int64_t e = 0; e < r.E; ++e) slots += real_of(counts_E[e]);
  return slots > 0.0 ? static_cast<double>(r.E) / (static_cast<double>(l.T) * slots) : 0.0;
}

// Writes the scores of one token, and returns log sum exp of its logits.
template <class T>
Accum<T> score(const Router& r, const T* logits, T* scores) {
  double most = -std::numeric_limits<double>::infinity();
  for (std::int64_t e = 0; e < r.E; ++e) most = real_of(logits[e]) > most ? real_of(logits[e]) : most;
  Accum<T> sum(0);
  for (std::int64_t e = 0; e < r.E; ++e) sum += std::exp(Accum<T>(logits[e]) - most);
  for (std::int64_t e = 0; e < r.E; ++e)
    scores[e] = r.score == RouterScore::kSoftmax ? T(std::exp(Accum<T>(logits[e]) - most) / sum)
                                                 : T(Accum<T>(1) / (Accum<T>(1) + std::exp(-Accum<T>(logits[e]))));
  return std::log(sum) + most;
}

}  // namespace detail

// Chooses the k experts of each token. Without a bias (bias_E null), they have the largest logits, because both kinds
// of scores rise with the logit. With a bias, they have the largest score + bias (DeepSeek-V3, equation 16). Among
// equal values, the smaller index is chosen. The weights follow from the scores without bias (equations 12-14): w_nj =
// scale * s_nc [/ sum over the k chosen].
//
//   logits_NE -> choice_Nk (by falling key), weight_Nk; scores_NE and lse_N (log sum exp of the logits) are for the
//   losses and the backward
template <class T>
void route(int threads, const Router& r, const T* logits_NE, const T* bias_E, std::int32_t* choice_Nk, T* weight_Nk,
           T* scores_NE, T* lse_N) {
  detail::check(r);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t n = 0; n < r.N; ++n) {
    const T* logits = logits_NE + n * r.E;
    T* scores = scores_NE + n * r.E;
    std::int32_t* choice = choice_Nk + n * r.k;
    lse_N[n] = T(detail::score(r, logits, scores));
    detail::choose(
        r.E, r.k, [&](std::int64_t e) { return bias_E ? real_of(scores[e]) + real_of(bias_E[e]) : real_of(logits[e]); },
        choice);
    const Accum<T> divisor = detail::weight_divisor(r, scores, choice);
    for (std::int64_t j = 0; j < r.k; ++j)
      weight_Nk[n * r.k + j] = T(r.scale * (Accum<T>(scores[choice[j]]) / divisor));
  }
}

// For each sequence, sums over this rank's tokens. counts_e is the number of tokens whose k largest scores include e.
// The score sums add up the tokens' scores, which for the sigmoid are divided by their sum over the experts
// (DeepSeek-V3, equations 18 to 20). The counts ignore the bias, as in equation 18 and in Megatron-LM. Without a bias
// they are the counts of choice_Nk. With `biased` they are computed anew, and choice_Nk is not read. Ranks that share
// the sequences add up these arrays.
//
//   sums_B2E   [B, 2, E]: counts_E, then score sums, of each sequence
//
// Takes threads * E accumulators and threads * k int32 of scratch.
template <class T>
void balance_sums(int threads, const Router& r, std::int64_t B, bool biased, const T* logits_NE,
                  const std::int32_t* choice_Nk, const T* scores_NE, T* sums_B2E, Scratch& scratch) {
  auto* work = scratch.take<Accum<T>>(threads * r.E);
  auto* chosen = scratch.take<std::int32_t>(threads * r.k);
  const std::int64_t rows = detail::sequence_rows(r, B);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t b = 0; b < B; ++b) {
    Accum<T>* sums = work + thread_index() * r.E;
    std::int32_t* anew = chosen + thread_index() * r.k;
    T *counts = sums_B2E + b * 2 * r.E, *out = counts + r.E;
    for (std::int64_t e = 0; e < r.E; ++e) counts[e] = T(0), sums[e] = Accum<T>(0);
    for (std::int64_t n = b * rows; n < (b + 1) * rows; ++n) {
      if (!r.counts(n)) continue;
      const T *logits = logits_NE + n * r.E, *scores = scores_NE + n * r.E;
      if (biased)
        detail::choose(
            r.E, r.k, [&](std::int64_t e) { return real_of(logits[e]); }, anew);
      const std::int32_t* choice = biased ? anew : choice_Nk + n * r.k;
      for (std::int64_t j = 0; j < r.k; ++j) counts[choice[j]] += T(1);
      const Accum<T> divisor = detail::score_divisor(r, scores);
      for (std::int64_t e = 0; e < r.E; ++e) sums[e] += Accum<T>(scores[e]) / divisor;
    }
    for (std::int64_t e = 0; e < r.E; ++e) out[e] = T(sums[e]);
  }
}

// L_b = E / (k T T_b) sum_e counts_be * score sums_be, from the sums over all ranks. T_b is the number of tokens that
// count, sum_e counts_be / k. When all T tokens count, L_b is 1 if every expert has the same counts and scores, and E /
// k if all tokens go to the same k experts with all their score. When fewer count, L_b is the loss of these tokens
// times T_b / T, so the sum over sequences is a mean over tokens.
//
// This is DeepSeek-V3's loss of a sequence for alpha = 1 (equations 17 to 20), and with k = 1 Switch's (arXiv
// 2101.03961, equations 4 to 6). transformers' load_balancing_loss_func leaves out 1/k, so it is k times this loss. It
// takes all tokens as one sequence (B = 1, T = N), over all layers when it is given several.
template <class T>
void balance_losses(const Router& r, const RouterLosses& l, const T* sums_B2E, T* losses_B) {
  for (std::int64_t b = 0; b < l.B; ++b) {
    const double factor = detail::balance_factor(r, l, sums_B2E + b * 2 * r.E);
    const T *counts = sums_B2E + b * 2 * r.E, *sums = counts + r.E;
    Accum<T> sum(0);
    for (std::int64_t e = 0; e < r.E; ++e) sum += Accum<T>(counts[e]) * Accum<T>(sums[e]);
    losses_B[b] = T(sum * factor);
  }
}

// Returns sum_n lse_n^2 over the tokens that count. The mean of lse_n^2 is the z-loss of ST-MoE (arXiv 2202.08906,
// equation 5).
template <class T>
Accum<T> z_loss_sum(const Router& r, const T* lse_N) {
  Accum<T> sum(0);
  for (std::int64_t n = 0; n < r.N; ++n)
    if (r.counts(n)) sum += Accum<T>(lse_N[n]) * Accum<T>(lse_N[n]);
  return sum;
}

namespace detail {

// The backward of one token. With D and Z the divisors of weights and scores, c_j the chosen experts, g_j = d_weight_j
// and b_e = balance E / (k T T_b) counts_e, which is 0 for a token that does not count:
//   d_s_e = sum over j with c_j = e of scale (g_j - [sum_i g_i s_ci / D]) / D  +  (b_e - [sum_i b_i s_i / Z]) / Z
// Only renormalised weights have the first bracket, and only the sigmoid has the second. The gradient of the logits
// follows through the score and the z-loss:
//   d_z_e = s_e (d_s_e - sum_i d_s_i s_i)  or  d_s_e s_e (1 - s_e);  + 2 z lse softmax(z)_e
template <class T>
struct RouteBackward {
  const Router& r;
  const T* scores;
  const std::int32_t* choice;
  const T *g, *counts;
  double per_count;  // b_e / counts_e
  Accum<T> D, Z, chosen_mean{}, balance_mean{};

  RouteBackward(const Router& router, const T* s, const std::int32_t* c, const T* d_weight, const T* count,
                double factor)
      : r(router),
        scores(s),
        choice(c),
        g(d_weight),
        counts(count),
        per_count(factor),
        D(weight_divisor(r, s, c)),
        Z(score_divisor(r, s)) {
    if (r.renormalise)
      for (std::int64_t j = 0; j < r.k; ++j) chosen_mean += Accum<T>(g[j]) * Accum<T>(scores[expert_of(choice[j])]) / D;
    if (r.score == RouterScore::kSigmoid && counts)
      for (std::int64_t e = 0; e < r.E; ++e) balance_mean += balance(e) * Accum<T>(scores[e]) / Z;
  }
  Accum<T> balance(std::int64_t e) const { return counts ? per_count * Accum<T>(counts[e]) : Accum<T>(0); }
  Accum<T> d_score(std::int64_t e) const {
    Accum<T> sum = (balance(e) - balance_mean) / Z;
    for (std::int64_t j = 0; j < r.k; ++j)
      if (expert_of(choice[j]) == e) sum += r.scale * (Accum<T>(g[j]) - chosen_mean) / D;
    return sum;
  }
  // Returns sum_e d_s_e s_e of a softmax.
  Accum<T> mean() const {
    Accum<T> sum(0);
    for (std::int64_t e = 0; e < r.E; ++e) sum += balance(e) * Accum<T>(scores[e]);
    for (std::int64_t j = 0; j < r.k; ++j)
      sum += r.scale * (Accum<T>(g[j]) - chosen_mean) / D * Accum<T>(scores[expert_of(choice[j])]);
    return sum;
  }
};

}  // namespace detail

// The backward of `route`, and of the losses in J. Overwrites d_logits_NE. sums_B2E are the sums over all ranks, and
// the counts in them are constants of the objective. sums_B2E may be null when losses.balance is 0. Choices may be
// marked as dropped (math/expert_order.h). The weights of the other choices do not change, and d_weight_Nk of a dropped
// choice is 0.
template <class T>
void route_backward(int threads, const Router& r, const RouterLosses& losses, const T* logits_NE, const T* scores_NE,
                    const T* lse_N, const std::int32_t* choice_Nk, const T* d_weight_Nk, const T* sums_B2E,
                    T* d_logits_NE) {
  const bool balanced = losses.balance != 0.0;
  MOLEN_CHECK(!balanced || losses.T > 0, "a balance loss of sequences of {} tokens", losses.T);
  const std::int64_t rows = detail::sequence_rows(r, losses.B);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t n = 0; n < r.N; ++n) {
    const T *logits = logits_NE + n * r.E, *scores = scores_NE + n * r.E;
    const T* counts = balanced && r.counts(n) ? sums_B2E + n / rows * 2 * r.E : nullptr;
    const double factor = counts ? losses.balance * detail::balance_factor(r, losses, counts) : 0.0;
    const detail::RouteBackward<T> back(r, scores, choice_Nk + n * r.k, d_weight_Nk + n * r.k, counts, factor);
    const bool softmax = r.score == RouterScore::kSoftmax;
    const Accum<T> mean = softmax ? back.mean() : Accum<T>(0), lse(lse_N[n]);
    for (std::int64_t e = 0; e < r.E; ++e) {
      const Accum<T> s(scores[e]);
      Accum<T> d = softmax ? s * (back.d_score(e) - mean) : back.d_score(e) * s * (Accum<T>(1) - s);
      if (losses.z != 0.0 && r.counts(n))
        d += 2.0 * losses.z * lse * (softmax ? s : std::exp(Accum<T>(logits[e]) - lse));
      d_logits_NE[n * r.E + e] = T(d);
    }
  }
}

// Balances without a loss (arXiv 2408.15664, algorithm 1): bias_e += rate * sign(mean of counts - counts_e). The counts
// are those of a step's whole batch over all ranks, with the bias, as expert_order counts them. The sign is exact for
// counts below 2^53 / E.
template <class T, class Count>
void update_bias(std::int64_t E, double rate, const Count* counts_E, T* bias_E) {
  double sum = 0.0;
  for (std::int64_t e = 0; e < E; ++e) sum += static_cast<double>(counts_E[e]);
  for (std::int64_t e = 0; e < E; ++e) {
    const double missing = sum - static_cast<double>(E) * static_cast<double>(counts_E[e]);
    bias_E[e] = T(Accum<T>(bias_E[e]) + rate * static_cast<double>((missing > 0.0) - (missing < 0.0)));
  }
}

}  // namespace molen::math::reference
