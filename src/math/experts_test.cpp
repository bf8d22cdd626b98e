// Tests the order of slots, and the kernels that move and multiply rows in expert order. The reference is compared with
// the complex step, and fp32 and bf16 with the reference in double.
#include "math/experts.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "base/error.h"
#include "math/allocation.h"
#include "math/gemm_narrow.h"
#include "math/reference_experts.h"
#include "math/test_close.h"
#include "math/test_experts.h"
#include "math/test_vector.h"

namespace molen::math {
namespace {

using namespace testing;
using i64 = std::int64_t;
using Ints = Values<std::int32_t>;
using Halves = Values<std::uint16_t>;
using Floats = Values<float>;

std::uint16_t rounded(double x) {
  return c10::BFloat16(static_cast<float>(x)).x;
}
double widened(std::uint16_t x) {
  return static_cast<double>(static_cast<float>(c10::BFloat16(x, c10::BFloat16::from_bits())));
}
template <class S>
Values<S> stored(const Values<double>& v) {
  Values<S> out;
  for (const double x : v)
    if constexpr (std::is_same_v<S, std::uint16_t>)
      out.push_back(rounded(x));
    else
      out.push_back(static_cast<S>(x));
  return out;
}
template <class S>
Values<double> read(const Values<S>& v) {
  Values<double> out;
  for (const S x : v)
    if constexpr (std::is_same_v<S, std::uint16_t>)
      out.push_back(widened(x));
    else
      out.push_back(x);
  return out;
}

constexpr i64 kNoCapacity = -1;

struct Order {
  i64 N, k, E;
  Ints choice, counts, offsets, place;
  i64 rows() const { return offsets.back(); }
  Slots slots(i64 d) const { return {N, k, d, place.data()}; }
  Groups groups(i64 out, i64 in) const { return {E, out, in, offsets.data()}; }
};
// With a capacity, the tokens are one sequence.
Order order_of(i64 N, i64 k, i64 E, i64 capacity, Ints choice) {
  const auto size = [](i64 n) { return static_cast<std::size_t>(n); };
  Order o{N, k, E, std::move(choice), Ints(size(E), -7), Ints(size(E + 1), -7), Ints(size(N * k), -7)};
  if (capacity != kNoCapacity) limit_experts(N, k, E, 1, capacity, nullptr, o.choice.data(), o.counts.data());
  expert_order(N, k, E, o.choice.data(), o.counts.data(), o.offsets.data(), o.place.data());
  return o;
}
// Returns choices in which each token chooses k different experts among the first `used`.
Ints choices(i64 N, i64 k, i64 used, unsigned seed) {
  std::mt19937 engine(seed);
  Ints all(static_cast<std::size_t>(used)), choice;
  std::iota(all.begin(), all.end(), 0);
  for (i64 n = 0; n < N; ++n) {
    std::shuffle(all.begin(), all.end(), engine);
    choice.insert(choice.end(), all.begin(), all.begin() + k);
  }
  return choice;
}
// Returns an order with the given numbers of rows per expert, for the products. Each token has one expert.
Order order_with_rows(const Ints& rows) {
  Ints choice;
  for (std::size_t e = 0; e < rows.size(); ++e)
    choice.insert(choice.end(), static_cast<std::size_t>(rows[e]), static_cast<std::int32_t>(e));
  const i64 N = std::ssize(choice);
  return order_of(N, 1, std::ssize(rows), kNoCapacity, choice);
}

// --- the order

TEST(ExpertOrder, ByHand) {
  // Tokens 0 to 3 choose (2, 0), (2, 1), (0, 2), (2, 0).
  const Ints choice{2, 0, 2, 1, 0, 2, 2, 0};
  const Order all = order_of(4, 2, 4, kNoCapacity, choice);
  EXPECT_EQ(all.counts, (Ints{3, 1, 4, 0}));
  EXPECT_EQ(all.offsets, (Ints{0, 3, 4, 8, 8}));
  EXPECT_EQ(all.place, (Ints{4, 0, 5, 3, 1, 6, 7, 2}));
  const Order two = order_of(4, 2, 4, 2, choice);
  EXPECT_EQ(two.counts, (Ints{2, 1, 2, 0}));
  EXPECT_EQ(two.choice, (Ints{2, 0, 2, 1, 0, ~2, ~2, ~0}));
  EXPECT_EQ(two.offsets, (Ints{0, 2, 3, 5, 5}));
  EXPECT_EQ(two.place, (Ints{3, 0, 4, 2, 1, -1, -1, -1}));
  EXPECT_EQ(order_of(4, 2, 4, 1, choice).place, (Ints{2, 0, -1, 1, -1, -1, -1, -1}));
  const Order none = order_of(4, 2, 4, 0, choice);
  EXPECT_EQ(none.offsets, (Ints{0, 0, 0, 0, 0}));
  EXPECT_EQ(none.place, Ints(8, -1));
  EXPECT_EQ(order_of(4, 2, 4, i64{1} << 40, choice).place, all.place);
  EXPECT_EQ(order_of(0, 2, 4, kNoCapacity, {}).offsets, (Ints{0, 0, 0, 0, 0}));
}

TEST(ExpertOrder, RefusesWhatIsNoChoice) {
  EXPECT_THROW(order_of(1, 2, 3, kNoCapacity, {0, 3}), Error);
  EXPECT_THROW(order_of(1, 2, 3, kNoCapacity, {-4, 0}), Error);
  EXPECT_THROW(order_of(1, 2, 1, kNoCapacity, {0, 0}), Error);
  EXPECT_THROW(order_of(1, 1, 1, -2, {0}), Error);
  EXPECT_THROW(order_of(1, 2, 3, 1, {0, 3}), Error);
  Ints one(4);
  EXPECT_THROW(expert_order(i64{1} << 30, 2, 3, one.data(), one.data(), one.data(), one.data()), Error);
}

// With a capacity, the rows are those of the first tokens of each expert. Without one, every slot has its own row.
RC_GTEST_PROP(ExpertOrder, SortsByExpertAndToken, ()) {
  const i64 E = *rc::gen::inRange<i64>(1, 9), k = *rc::gen::inRange<i64>(1, E + 1), N = *rc::gen::inRange<i64>(0, 40);
  const i64 used = *rc::gen::inRange<i64>(k, E + 1);
  const i64 capacity = *rc::gen::elementOf(Values<i64>{kNoCapacity, 0, 1, 3, 40});
  const Order o = order_of(N, k, E, capacity, choices(N, k, used, *rc::gen::arbitrary<unsigned>()));
  RC_ASSERT(std::accumulate(o.counts.begin(), o.counts.end(), i64{0}) == o.rows());
  Ints slots(static_cast<std::size_t>(N * k));
  std::iota(slots.begin(), slots.end(), 0);
  const auto expert = [&](std::int32_t slot) { return expert_of(o.choice[static_cast<std::size_t>(slot)]); };
  std::stable_sort(slots.begin(), slots.end(), [&](auto a, auto b) { return expert(a) < expert(b); });
  Ints want(slots.size(), -1);
  std::int32_t row = 0;
  for (std::size_t i = 0, first = 0; i < slots.size(); ++i) {
    if (i > 0 && expert(slots[i]) != expert(slots[i - 1])) first = i;
    if (capacity == kNoCapacity || static_cast<i64>(i - first) < capacity)
      want[static_cast<std::size_t>(slots[i])] = row++;
  }
  RC_ASSERT(o.place == want);
  RC_ASSERT(o.rows() == row);
  if (capacity == kNoCapacity) {
    Ints sorted = o.place;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < sorted.size(); ++i) RC_ASSERT(sorted[i] == static_cast<std::int32_t>(i));
  }
}

// Limits the experts of B sequences; returns the choices, and the number of dropped choices of tokens that count.
std::pair<Ints, i64> limited(i64 k, i64 E, i64 B, i64 capacity, const Ints& labels, Ints choice) {
  Ints taken(static_cast<std::size_t>(E), -7);
  const i64 beyond = limit_experts(std::ssize(choice) / k, k, E, B, capacity, labels.empty() ? nullptr : labels.data(),
                                   choice.data(), taken.data());
  return {choice, beyond};
}

TEST(ExpertCapacity, IsOfEachSequenceAndOfTokensThatCountFirst) {
  const Ints choice{0, 1, 0, 2, 0, 1, 0, 1, 0, 2, 1, 0};  // choices of six tokens
  EXPECT_EQ(limited(2, 3, 1, 2, {}, choice), (std::pair{Ints{0, 1, 0, 2, ~0, 1, ~0, ~1, ~0, 2, ~1, ~0}, i64{6}}));
  EXPECT_EQ(limited(2, 3, 2, 2, {}, choice), (std::pair{Ints{0, 1, 0, 2, ~0, 1, 0, 1, 0, 2, 1, ~0}, i64{2}}));
  // Tokens 0 and 3 have no label. They take the capacity that is left, and the choices that they lose are not counted.
  EXPECT_EQ(limited(2, 3, 1, 2, {-1, 5, 6, -1, 7, 8}, choice),
            (std::pair{Ints{~0, ~1, 0, 2, 0, 1, ~0, ~1, ~0, 2, 1, ~0}, i64{2}}));
  EXPECT_EQ(limited(2, 3, 1, 4, {-1, 5, 6, -1, 7, 8}, choice),
            (std::pair{Ints{~0, 1, 0, 2, 0, 1, ~0, 1, 0, 2, 1, 0}, i64{0}}));
  EXPECT_EQ(limited(2, 3, 3, 2, {}, choice), (std::pair{choice, i64{0}}));
  EXPECT_EQ(limited(2, 3, 2, 0, {}, choice).second, 12);
  EXPECT_THROW(limited(2, 3, 4, 1, {}, choice), Error);  // six tokens do not divide into four sequences
}

// No expert takes more than its capacity or less than it could take, and marks do not change the choice.
RC_GTEST_PROP(ExpertCapacity, IsUsedUpAndNotMore, ()) {
  const i64 E = *rc::gen::inRange<i64>(1, 7), k = *rc::gen::inRange<i64>(1, E + 1), B = *rc::gen::inRange<i64>(1, 4);
  const i64 S = *rc::gen::inRange<i64>(1, 12), capacity = *rc::gen::inRange<i64>(0, 8);
  const Ints choice = choices(B * S, k, E, *rc::gen::arbitrary<unsigned>());
  const Ints labels = *rc::gen::container<Ints>(static_cast<std::size_t>(B * S), rc::gen::inRange(-1, 2));
  const auto [marked, beyond] = limited(k, E, B, capacity, labels, choice);
  i64 lost = 0;
  for (i64 b = 0; b < B; ++b)
    for (i64 e = 0; e < E; ++e) {
      i64 wanted = 0, of_labels = 0, taken = 0, taken_of_labels = 0;
      for (i64 slot = b * S * k; slot < (b + 1) * S * k; ++slot) {
        const auto at = static_cast<std::size_t>(slot);
        RC_ASSERT(expert_of(marked[at]) == choice[at]);
        if (choice[at] != e) continue;
        const bool takes = !is_dropped(marked[at]), labelled = labels[static_cast<std::size_t>(slot / k)] >= 0;
        // The first tokens are taken, both among the tokens that count and among the others.
        RC_ASSERT(!takes || (labelled ? taken_of_labels == of_labels : taken - taken_of_labels == wanted - of_labels));
        ++wanted, of_labels += labelled, taken += takes, taken_of_labels += takes && labelled;
      }
      RC_ASSERT(taken == std::min(wanted, capacity));
      RC_ASSERT(taken_of_labels == std::min(of_labels, capacity));
      lost += of_labels - taken_of_labels;
    }
  RC_ASSERT(beyond == lost);
}

// Returns the values of the tokens at a rank's positions. `all` has `each` values for every token of B sequences.
Ints at_positions(const Ints& all, i64 B, i64 each, const std::vector<PositionRun>& runs) {
  Ints part;
  const i64 S = std::ssize(all) / (B * each);
  for (i64 b = 0; b < B && !all.empty(); ++b)
    for (const PositionRun& run : runs)
      part.insert(part.end(), all.begin() + (b * S + run.first) * each, all.begin() + (b * S + run.last) * each);
  return part;
}

// Goes through the tokens of each sequence one by one: those with a label in the order of positions, then the others.
std::pair<Ints, Ints> dropped_one_by_one(i64 k, i64 B, i64 capacity, const Ints& labels, const Ints& choice) {
  Ints marked = choice, counted(choice.size(), 0);
  const i64 S = std::ssize(labels) / B;
  for (i64 b = 0; b < B; ++b) {
    std::vector<i64> order(static_cast<std::size_t>(S));
    std::iota(order.begin(), order.end(), b * S);
    std::ranges::stable_partition(order, [&](i64 n) { return labels[static_cast<std::size_t>(n)] >= 0; });
    std::map<std::int32_t, i64> taken;
    for (const i64 n : order)
      for (i64 slot = n * k; slot < (n + 1) * k; ++slot) {
        const auto at = static_cast<std::size_t>(slot);
        if (taken[choice[at]]++ < capacity) continue;
        marked[at] = dropped(choice[at]);
        counted[at] = labels[static_cast<std::size_t>(n)] >= 0;
      }
  }
  return {marked, counted};
}

// Ranks that share sequences drop the choices that a rank with whole sequences drops, whichever positions they have.
RC_GTEST_PROP(ExpertCapacity, RanksThatShareSequencesDropTheSame, ()) {
  const i64 E = *rc::gen::inRange<i64>(1, 7), k = *rc::gen::inRange<i64>(1, E + 1), B = *rc::gen::inRange<i64>(1, 4);
  const i64 ranks = *rc::gen::inRange<i64>(1, 5), capacity = *rc::gen::inRange<i64>(0, 8);
  // A sequence consists of two pieces for each rank, of any lengths; every rank has two of them, in any order of ranks.
  const auto pieces = static_cast<std::size_t>(2 * ranks);
  const auto lengths = *rc::gen::container<std::vector<i64>>(pieces, rc::gen::inRange<i64>(1, 5));
  std::vector<PositionRun> all;
  for (const i64 length : lengths) {
    const i64 first = all.empty() ? 0 : all.back().last;
    all.push_back({first, first + length});
  }
  const i64 S = all.back().last;
  std::vector<std::size_t> order(pieces);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, std::mt19937(*rc::gen::arbitrary<unsigned>()));
  std::vector<std::vector<PositionRun>> runs;
  for (std::size_t i = 0; i < pieces; i += 2) {
    const auto [first, second] = std::minmax(order[i], order[i + 1]);
    runs.push_back({all[first], all[second]});
    // Neighbouring pieces are one run.
    if (first + 1 == second) runs.back() = {{all[first].first, all[second].last}};
  }
  const Ints choice = choices(B * S, k, E, *rc::gen::arbitrary<unsigned>());
  const Ints labels = *rc::gen::container<Ints>(static_cast<std::size_t>(B * S), rc::gen::inRange(-1, 2));
  const auto [marked, counted] = dropped_one_by_one(k, B, capacity, labels, choice);
  RC_ASSERT(limited(k, E, B, capacity, labels, choice).first == marked);

  Ints counts;
  for (const auto& own : runs) {
    Ints of_rank(static_cast<std::size_t>(B * kMostRuns * kTokenKinds * E), -7);
    count_choices(k, E, B, own, at_positions(labels, B, 1, own).data(), at_positions(choice, B, k, own).data(),
                  of_rank.data());
    counts.insert(counts.end(), of_rank.begin(), of_rank.end());
  }
  RC_ASSERT(std::accumulate(counts.begin(), counts.end(), i64{0}) == B * S * k);
  for (i64 rank = 0; rank < ranks; ++rank) {
    const auto& own = runs[static_cast<std::size_t>(rank)];
    Ints of_rank = at_positions(choice, B, k, own), taken(static_cast<std::size_t>(E), -7);
    const i64 beyond = limit_shared_experts(k, E, B, capacity, runs, rank, at_positions(labels, B, 1, own).data(),
                                            counts.data(), of_rank.data(), taken.data());
    RC_ASSERT(of_rank == at_positions(marked, B, k, own));
    const Ints lost = at_positions(counted, B, k, own);
    RC_ASSERT(beyond == std::accumulate(lost.begin(), lost.end(), i64{0}));
  }
}

TEST(ExpertCapacity, WhatCannotBeSharedIsRefused) {
  const std::vector<std::vector<PositionRun>> three{{{0, 1}, {2, 3}, {4, 5}}}, one{{{0, 2}}};
  Ints choice{0, 1, 0}, counts(100), taken(2);
  EXPECT_THROW(count_choices(1, 2, 1, three.front(), nullptr, choice.data(), counts.data()), Error);
  EXPECT_THROW(limit_shared_experts(1, 2, 1, 1, three, 0, nullptr, counts.data(), choice.data(), taken.data()), Error);
  EXPECT_THROW(limit_shared_experts(1, 2, 1, 1, one, 1, nullptr, counts.data(), choice.data(), taken.data()), Error);
  EXPECT_THROW(limit_shared_experts(1, 2, 1, -1, one, 0, nullptr, counts.data(), choice.data(), taken.data()), Error);
  EXPECT_THROW(count_choices(1, 1, 1, one.front(), nullptr, choice.data(), counts.data()), Error);  // expert 1 of 1
}

// --- the reference

// y = combine(weight, W_e dispatch(x)). All gradients are taken through this layer.
template <class T>
Values<T> layer(const Order& o, i64 out, i64 in, const Values<T>& x, const Values<T>& w, const Values<T>& weight) {
  Values<T> rows(static_cast<std::size_t>(o.rows() * in)), results(static_cast<std::size_t>(o.rows() * out)),
      y(static_cast<std::size_t>(o.N * out));
  reference::dispatch(1, o.slots(in), x.data(), rows.data());
  reference::grouped_nt(1, o.groups(out, in), rows.data(), w.data(), results.data());
  reference::combine(1, o.slots(out), weight.data(), results.data(), false, y.data());
  return y;
}

void check_reference(const Order& o) {
  const i64 in = 3, out = 4;
  const Values<double> x = random_values(o.N * in, 1), w = random_values(o.E * out * in, 2),
                       weight = random_values(o.N * o.k, 3), g = random_values(o.N * out, 4);
  const auto objective = [&](const Values<Complex>& x_, const Values<Complex>& w_, const Values<Complex>& weight_) {
    const Values<Complex> y = layer(o, out, in, x_, w_, weight_);
    return std::inner_product(y.begin(), y.end(), g.begin(), Complex(0));
  };
  const auto wide = [](const Values<double>& v) { return as<Complex>(v); };
  Values<double> rows(static_cast<std::size_t>(o.rows() * in)), results(static_cast<std::size_t>(o.rows() * out)),
      d_results(results.size(), NAN), d_rows(rows.size(), NAN), d_weight(weight.size(), NAN);
  reference::dispatch(2, o.slots(in), x.data(), rows.data());
  reference::grouped_nt(2, o.groups(out, in), rows.data(), w.data(), results.data());
  reference::combine_backward(2, o.slots(out), weight.data(), g.data(), results.data(), d_results.data(),
                              d_weight.data());
  reference::grouped_nn(2, o.groups(out, in), d_results.data(), w.data(), d_rows.data());
  for (const bool accumulate : {false, true}) {
    const double start = accumulate ? 0.5 : NAN;
    Values<double> d_x(x.size(), start), d_w(w.size(), start);
    reference::dispatch_backward(2, o.slots(in), d_rows.data(), accumulate, d_x.data());
    reference::grouped_tn(2, o.groups(out, in), d_results.data(), rows.data(), accumulate, d_w.data());
    for (Values<double>* v : {&d_x, &d_w})
      for (double& value : *v) value -= accumulate ? 0.5 : 0.0;
    expect_gradient(d_x, complex_step(x, [&](const auto& v) { return objective(v, wide(w), wide(weight)); }), "d_x");
    expect_gradient(d_w, complex_step(w, [&](const auto& v) { return objective(wide(x), v, wide(weight)); }), "d_w");
  }
  expect_gradient(d_weight, complex_step(weight, [&](const auto& v) { return objective(wide(x), wide(w), v); }),
                  "d_weight");
}

TEST(ReferenceExperts, BackwardIsTheComplexStep) {
  check_reference(order_of(6, 2, 5, kNoCapacity, choices(6, 2, 4, 5)));  // expert 4 has no token
  check_reference(order_of(6, 2, 5, 2, choices(6, 2, 3, 6)));            // some slots are dropped
  check_reference(order_of(6, 2, 5, 1, choices(6, 2, 2, 7)));            // most slots are dropped
  check_reference(order_of(3, 3, 3, kNoCapacity, choices(3, 3, 3, 8)));  // k = E
  check_reference(order_of(4, 1, 1, kNoCapacity, choices(4, 1, 1, 9)));  // E = 1
}

TEST(ReferenceExperts, NothingGoesThroughWhatIsDropped) {
  const Order o = order_of(3, 1, 2, 0, {0, 1, 0});
  const Values<double> x = random_values(6, 1), weight = random_values(3, 2);
  Values<double> rows, kept(6, 2.0), cleared(6, NAN), d_weight(3, NAN), d_w(8, NAN);
  reference::dispatch(2, o.slots(2), x.data(), rows.data());
  reference::combine(2, o.slots(2), weight.data(), rows.data(), true, kept.data());
  reference::combine(2, o.slots(2), weight.data(), rows.data(), false, cleared.data());
  reference::combine_backward(2, o.slots(2), weight.data(), x.data(), rows.data(), rows.data(), d_weight.data());
  reference::grouped_tn(2, o.groups(2, 2), rows.data(), rows.data(), false, d_w.data());
  EXPECT_EQ(kept, Values<double>(6, 2.0));
  EXPECT_EQ(cleared, Values<double>(6, 0.0));
  EXPECT_EQ(d_weight, Values<double>(3, 0.0));
  EXPECT_EQ(d_w, Values<double>(8, 0.0));
}

// --- rows, in fp32 and bf16

template <class S>
struct Moved {
  Values<S> rows, y, d_x, d_rows;
  Floats d_weight;
  bool operator==(const Moved&) const = default;
};
constexpr double kStart = 0.75;  // value that results are added to

template <class S>
Moved<S> move_fast(int threads, const Order& o, i64 d, const Values<double>& x, const Values<double>& outputs,
                   const Values<double>& weight, const Values<double>& g, bool accumulate) {
  const Slots s = o.slots(d);
  const Floats w = as<float>(weight);
  const Values<S> results = stored<S>(outputs), d_y = stored<S>(g), in = stored<S>(x);
  const auto size = static_cast<std::size_t>(o.rows() * d);
  const S start = stored<S>({accumulate ? kStart : NAN})[0];
  Moved<S> m{Values<S>(size), Values<S>(in.size(), start), Values<S>(in.size(), start), Values<S>(size),
             Floats(w.size(), NAN)};
  dispatch(threads, s, in.data(), m.rows.data());
  combine(threads, s, w.data(), results.data(), accumulate, m.y.data());
  dispatch_backward(threads, s, results.data(), accumulate, m.d_x.data());
  combine_backward(threads, s, w.data(), d_y.data(), results.data(), m.d_rows.data(), m.d_weight.data());
  return m;
}
Moved<double> move_reference(const Order& o, i64 d, const Values<double>& x, const Values<double>& outputs,
                             const Values<double>& weight, const Values<double>& g, bool accumulate,
                             Values<double>& d_weight) {
  const Slots s = o.slots(d);
  Moved<double> m{Values<double>(outputs.size()),
                  Values<double>(x.size(), kStart),
                  Values<double>(x.size(), kStart),
                  Values<double>(outputs.size()),
                  {}};
  d_weight.assign(weight.size(), NAN);
  reference::dispatch(2, s, x.data(), m.rows.data());
  reference::combine(2, s, weight.data(), outputs.data(), accumulate, m.y.data());
  reference::dispatch_backward(2, s, outputs.data(), accumulate, m.d_x.data());
  reference::combine_backward(2, s, weight.data(), g.data(), outputs.data(), m.d_rows.data(), d_weight.data());
  return m;
}

// A sum of k terms and a start has k roundings of fp32, and in bf16 one more of 2^-8; a product has one. d_weight is
// rounded once, after sums in double of runs whose lanes add up 32 products each.
template <class S>
void check_moves(const Order& o, i64 d, bool threads_too) {
  const auto exact = [](const Values<double>& v) { return read(stored<S>(v)); };
  const Values<double> x = exact(random_values(o.N * d, 1)), outputs = exact(random_values(o.rows() * d, 2)),
                       weight = random_values(o.N * o.k, 3), g = exact(random_values(o.N * d, 4));
  const double u = std::is_same_v<S, float> ? 0x1p-24 : 0x1p-8;
  for (const bool accumulate : {false, true}) {
    Values<double> d_weight;
    const Moved<double> want = move_reference(o, d, x, outputs, weight, g, accumulate, d_weight);
    const Moved<S> got = move_fast<S>(2, o, d, x, outputs, weight, g, accumulate);
    EXPECT_EQ(read(got.rows), want.rows);
    const double terms = 4.0 * static_cast<double>(o.k);
    EXPECT_TRUE(close(read(got.y), want.y, {u, o.k, 2, u == 0x1p-24 ? terms : 0.0}));
    EXPECT_TRUE(close(read(got.d_x), want.d_x, {u, o.k, 2, u == 0x1p-24 ? terms : 0.0}));
    EXPECT_TRUE(close(read(got.d_rows), want.d_rows, {u, 1, 1}));
    EXPECT_TRUE(close(read(got.d_weight), d_weight, {0x1p-24, d, 2, 1}));
    for (const int threads : {1, 3, 7})
      EXPECT_TRUE(move_fast<S>(threads, o, d, x, outputs, weight, g, accumulate) == got);
  }
}

// Vectors have 4 to 16 lanes, and a run has 32 vectors.
TEST(ExpertRows, FastIsTheReference) {
  for (const i64 d : {1, 3, 16, 17, 33, 512, 513, 1030}) {
    SCOPED_TRACE(d);
    const Order all = order_of(9, 3, 6, kNoCapacity, choices(9, 3, 5, 5)),
                some = order_of(9, 3, 6, 2, choices(9, 3, 6, 6)), one = order_of(5, 1, 1, kNoCapacity, Ints(5, 0));
    for (const Order* o : {&all, &some, &one}) {
      check_moves<float>(*o, d, d == 33);
      check_moves<std::uint16_t>(*o, d, d == 33);
    }
  }
}

// Every instruction set gives the same results within the roundings of fused products. In bf16, the results are those
// of the fp32 kernel on the same values, rounded once.
TEST(ExpertRows, EveryInstructionSet) {
  for (const i64 d : {5, 16, 40, 530}) {
    const Order o = order_of(7, 2, 4, 3, choices(7, 2, 4, 7));
    const Halves rows = stored<std::uint16_t>(random_values(o.rows() * d, 1)),
                 g = stored<std::uint16_t>(random_values(o.N * d, 2));
    const Floats wide = as<float>(read(rows)), wide_g = as<float>(read(g)), weight = as<float>(random_values(14, 3));
    const auto size = static_cast<std::size_t>(o.N * d);
    Floats first;
    for (const VectorKernels* v : tables()) {
      SCOPED_TRACE(v->name);
      Halves y(size), d_rows(rows.size());
      Floats y32(size), d_rows32(rows.size()), d_weight(14, NAN), d_weight32(14, NAN);
      v->combine_forward(2, o.N, o.k, d, o.place.data(), weight.data(), false, wide.data(), y32.data());
      v->narrow.combine_forward(3, o.N, o.k, d, o.place.data(), weight.data(), false, rows.data(), y.data());
      v->combine_backward(2, o.N, o.k, d, o.place.data(), weight.data(), wide_g.data(), wide.data(), d_rows32.data(),
                          d_weight32.data());
      v->narrow.combine_backward(3, o.N, o.k, d, o.place.data(), weight.data(), g.data(), rows.data(), d_rows.data(),
                                 d_weight.data());
      EXPECT_EQ(y, stored<std::uint16_t>(read(y32)));
      EXPECT_EQ(d_rows, stored<std::uint16_t>(read(d_rows32)));
      EXPECT_EQ(d_weight, d_weight32);
      if (first.empty()) first = y32;
      EXPECT_TRUE(close(read(y32), read(first), {0x1p-24, 2, 2, 4}));
    }
  }
}

TEST(ExpertRows, GradientMayOverwriteTheRows) {
  const Order o = order_of(7, 2, 4, kNoCapacity, choices(7, 2, 4, 7));
  const i64 d = 37;
  const Floats g = as<float>(random_values(7 * d, 1)), weight = as<float>(random_values(14, 2));
  Floats rows = as<float>(random_values(14 * d, 3)), d_rows(rows.size()), d_weight(14), again(14);
  combine_backward(2, o.slots(d), weight.data(), g.data(), rows.data(), d_rows.data(), d_weight.data());
  combine_backward(2, o.slots(d), weight.data(), g.data(), rows.data(), rows.data(), again.data());
  EXPECT_EQ(rows, d_rows);
  EXPECT_EQ(again, d_weight);
}

// --- products

template <class S>
struct Products {
  Values<S> y, d_x;
  Floats d_w;
  bool operator==(const Products&) const = default;
};

template <class S>
Products<S> multiply(const Order& o, i64 out, i64 in, const Values<double>& x, const Values<double>& w,
                     const Values<double>& d_y, bool accumulate) {
  const Groups g = o.groups(out, in);
  const Values<S> left = stored<S>(x), right = stored<S>(w), up = stored<S>(d_y);
  const S nan = stored<S>({NAN})[0];
  Products<S> p{Values<S>(up.size(), nan), Values<S>(left.size(), nan),
                Floats(right.size(), accumulate ? static_cast<float>(kStart) : NAN)};
  const int threads = at::get_num_threads();
  GuardedScratch scratch(std::is_same_v<S, float> ? grouped_tn_scratch(threads, out)
                                                  : grouped_tn_narrow_scratch(threads, o.rows(), out, in));
  grouped_nt(g, left.data(), right.data(), p.y.data());
  grouped_nn(g, up.data(), right.data(), p.d_x.data());
  grouped_tn(g, up.data(), left.data(), accumulate, p.d_w.data(), scratch.span());
  EXPECT_TRUE(scratch.intact());
  return p;
}

class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

// Products of n terms in fp32 have n roundings of sums and of terms. In bf16 results are rounded once more; the
// gradient of the weights is so only when the library computes it.
template <class S>
void check_products(const Ints& rows, i64 out, i64 in) {
  SCOPED_TRACE(::testing::Message() << out << " x " << in);
  constexpr bool narrow = std::is_same_v<S, std::uint16_t>;
  const Order o = order_with_rows(rows);
  const auto exact = [](const Values<double>& v) { return read(stored<S>(v)); };
  const Values<double> x = exact(random_values(o.rows() * in, 1)), w = exact(random_values(o.E * out * in, 2)),
                       d_y = exact(random_values(o.rows() * out, 3));
  for (const bool accumulate : {false, true}) {
    Values<double> y(d_y.size()), d_x(x.size()), d_w(w.size(), kStart);
    reference::grouped_nt(2, o.groups(out, in), x.data(), w.data(), y.data());
    reference::grouped_nn(2, o.groups(out, in), d_y.data(), w.data(), d_x.data());
    reference::grouped_tn(2, o.groups(out, in), d_y.data(), x.data(), accumulate, d_w.data());
    const Threads two(2);
    const Products<S> got = multiply<S>(o, out, in, x, w, d_y, accumulate);
    const i64 most = *std::max_element(rows.begin(), rows.end());
    const auto bound = [](i64 n, bool rounds) { return rounds ? Bound{0x1p-8, 1, 2} : Bound{0x1p-24, n, 4, 4}; };
    EXPECT_TRUE(close(read(got.y), y, bound(in, narrow)));
    EXPECT_TRUE(close(read(got.d_x), d_x, bound(out, narrow)));
    EXPECT_TRUE(close(read(got.d_w), d_w, bound(most, narrow && !own_products())));
    const i64 size = out * in;
    for (std::size_t e = 0; e < rows.size(); ++e) {
      if (rows[e] > 0) continue;
      const auto first = got.d_w.begin() + static_cast<i64>(e) * size;
      EXPECT_EQ(Floats(first, first + size),
                Floats(static_cast<std::size_t>(size), accumulate ? static_cast<float>(kStart) : 0.0f));
    }
  }
}

// The sizes are on both sides of a tile's 256 rows and outputs, and of 1024 packed rows.
TEST(GroupedProducts, AreTheReference) {
  const Ints few{0, 1, 2, 17, 0}, tiles{255, 256, 0, 257, 513}, long_sums{1023, 1025, 3};
  for (const auto& [out, in] : {std::pair<i64, i64>{5, 3}, {255, 40}, {256, 7}, {257, 33}, {520, 16}}) {
    check_products<float>(few, out, in);
    check_products<std::uint16_t>(few, out, in);
  }
  check_products<float>(tiles, 96, 72);
  check_products<float>(tiles, 300, 20);
  check_products<std::uint16_t>(tiles, 96, 72);
  check_products<float>(long_sums, 260, 17);
  check_products<float>({600}, 64, 64);  // E = 1
}

TEST(GroupedProducts, SameBitsForAnyNumberOfThreads) {
  const Order o = order_with_rows({300, 0, 17, 1, 700});
  const i64 out = 290, in = 130;
  const Values<double> x = random_values(o.rows() * in, 1), w = random_values(o.E * out * in, 2),
                       d_y = random_values(o.rows() * out, 3);
  Products<float> first;
  Products<std::uint16_t> narrow_first;
  for (const int threads : {1, 2, 3, 5}) {
    const Threads set(threads);
    const Products<float> got = multiply<float>(o, out, in, x, w, d_y, true);
    Products<std::uint16_t> narrow = multiply<std::uint16_t>(o, out, in, x, w, d_y, true);
    const Products<std::uint16_t> again = multiply<std::uint16_t>(o, out, in, x, w, d_y, true);
    EXPECT_TRUE(narrow == again) << threads;
    if (!own_products()) narrow.d_w.clear();  // the library's product runs on all threads
    if (threads == 1) first = got, narrow_first = narrow;
    EXPECT_TRUE(got == first) << threads;
    if (own_products() || !__builtin_cpu_supports("amx-bf16")) {
      EXPECT_TRUE(narrow == narrow_first) << threads;
    } else {  // on tiles the library's products depend on the number of threads; each of the two is rounded once
      const Bound bound{0x1p-8, 1, 4};
      EXPECT_TRUE(close(read(narrow.y), read(narrow_first.y), bound)) << threads;
      EXPECT_TRUE(close(read(narrow.d_x), read(narrow_first.d_x), bound)) << threads;
    }
  }
}

// Products on threads other than the caller's take no memory from the plan, and none that the plan does not know of.
TEST(GroupedProducts, AllocateNothing) {
  AllocationGuard::install();
  const Order o = order_with_rows({300, 40, 300, 300});
  const Values<double> x = random_values(o.rows() * 130, 1), w = random_values(o.E * 140 * 130, 2),
                       d_y = random_values(o.rows() * 140, 3);
  const Threads two(2);
  const i64 before = AllocationGuard::unserved();
  const AllocationGuard guard(nullptr);
  multiply<float>(o, 140, 130, x, w, d_y, false);
  EXPECT_EQ(AllocationGuard::unserved(), before);
}

// When all experts are the same layer and are weighed 1/k each, the result is that layer. Without experts, dispatch and
// combine give back the tokens.
RC_GTEST_PROP(GroupedProducts, EqualExpertsAreOne, ()) {
  const i64 E = *rc::gen::inRange<i64>(1, 7), k = *rc::gen::inRange<i64>(1, E + 1), N = *rc::gen::inRange<i64>(2, 30);
  const i64 in = *rc::gen::inRange<i64>(2, 20), out = *rc::gen::inRange<i64>(2, 20);
  const Order o = order_of(N, k, E, kNoCapacity, choices(N, k, E, *rc::gen::arbitrary<unsigned>()));
  const Floats x = as<float>(random_values(N * in, 1)), one = as<float>(random_values(out * in, 2));
  const Floats weight(static_cast<std::size_t>(N * k), 1.0f / static_cast<float>(k));
  Floats w, rows(static_cast<std::size_t>(N * k * in)), results(static_cast<std::size_t>(N * k * out)),
      y(static_cast<std::size_t>(N * out)), back(x.size());
  for (i64 e = 0; e < E; ++e) w.insert(w.end(), one.begin(), one.end());
  dispatch(1, o.slots(in), x.data(), rows.data());
  combine(1, o.slots(in), weight.data(), rows.data(), false, back.data());
  grouped_nt(o.groups(out, in), rows.data(), w.data(), results.data());
  combine(1, o.slots(out), weight.data(), results.data(), false, y.data());
  Values<double> want(y.size());
  reference::matmul_nt(1, N, out, in, read(x).data(), read(one).data(), false, want.data());
  RC_ASSERT(close(read(back), read(x), {0x1p-24, k, 2}));
  RC_ASSERT(close(read(y), want, {0x1p-24, in + k, 4, 4}));
}

// Fewer bytes of scratch than the query returns are refused, with one message for both types of rows.
TEST(GroupedProducts, RefuseScratchThatIsTooSmall) {
  const Threads two(2);
  const Order o = order_of(4, 1, 2, kNoCapacity, {0, 1, 0, 1});
  const i64 out = 2 * kGroupOutputs, in = 8;
  const auto size = [](i64 n) { return static_cast<std::size_t>(n); };
  const auto refuse = [&]<class S>(S, i64 needed) {
    const Values<S> d_y(size(4 * out)), x(size(4 * in));
    Floats d_w(size(2 * out * in));
    Values<std::byte> scratch(size(needed));
    grouped_tn(o.groups(out, in), d_y.data(), x.data(), false, d_w.data(), scratch);
    scratch.pop_back();
    EXPECT_THROW(grouped_tn(o.groups(out, in), d_y.data(), x.data(), false, d_w.data(), scratch), Error);
  };
  refuse(0.0f, grouped_tn_scratch(2, out));
  refuse(std::uint16_t{}, grouped_tn_narrow_scratch(2, 4, out, in));
}

// A NaN in a row stays with its token, its expert's gradient, and its weights.
TEST(GroupedProducts, NaNStaysWithItsTokenAndExpert) {
  const Order o = order_of(4, 1, 2, kNoCapacity, {0, 1, 0, 1});
  Floats x = as<float>(random_values(4 * 8, 1)), y(4 * 8), d_w(2 * 64);
  const Floats w = as<float>(random_values(2 * 64, 2)), weight(4, 1.0f);
  x[8] = NAN;  // token 1
  Floats rows(x.size()), results(x.size());
  dispatch(2, o.slots(8), x.data(), rows.data());
  grouped_nt(o.groups(8, 8), rows.data(), w.data(), results.data());
  combine(2, o.slots(8), weight.data(), results.data(), false, y.data());
  grouped_tn(o.groups(8, 8), results.data(), rows.data(), false, d_w.data(), {});
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 8 == 1) << i;
  for (std::size_t i = 0; i < d_w.size(); ++i) EXPECT_EQ(std::isnan(d_w[i]), i >= 64) << i;
}

}  // namespace
}  // namespace molen::math
