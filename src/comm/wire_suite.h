// Tests the wire bytes of a communicator that counts them. For n ranks with equal blocks they must be the textbook's
// share of the payload; for unequal blocks the sums over ranks must be right (Thakur, Rabenseifner and Gropp,
// "Optimization of collective communication operations in MPICH", 2005):
//   all_reduce 2(n-1)/n, reduce_scatter, all_gather and all_to_all (n-1)/n, send and recv 1; broadcast n-1 in total.
// Call it on every rank; it returns the failures as text, empty if there are none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace molen::comm::suite {

class WireSuite {
 public:
  // An all_reduce of up to `gathered` bytes may gather all data on every rank, n-1 times the payload.
  explicit WireSuite(Communicator& c, std::int64_t gathered = 0) : c_(c), n_(c.size()), gathered_(gathered) {}

  std::string run() {
    whole();
    groups();
    return wrong_;
  }

 private:
  struct Moved {
    std::int64_t sent = 0, received = 0;
    bool operator==(const Moved&) const = default;
  };
  using Counts = std::vector<std::int64_t>;

  void whole() {
    for (const DType t : {DType::kF64, DType::kBF16, DType::kU8})
      for (const std::int64_t share : {0, 1, 40, 30011}) {
        equal_blocks(t, share);
        unequal_blocks(t, share);
      }
    equal_blocks(DType::kU8, 4'500'000);  // blocks of megabytes may take another path
    unequal_blocks(DType::kU8, 4'500'000);
    messages();
    if (moved([&] { c_.barrier(); }) != Moved{}) fail("barrier");
  }

  // Blocks of `share` elements: the payload is n blocks.
  void equal_blocks(DType t, std::int64_t share) {
    const Counts counts(static_cast<std::size_t>(n_), share);
    const std::int64_t block = share * size_of(t), payload = n_ * block, most = (n_ - 1) * block;
    std::vector<char> x(static_cast<std::size_t>(payload)), y(x.size());
    const std::int64_t twice = payload <= gathered_ ? (n_ - 1) * payload : 2 * most;
    expect("all_reduce", t, share, {twice, twice}, [&] { c_.all_reduce(x.data(), n_ * share, t, Reduce::kMax); });
    expect("reduce_scatter", t, share, {most, most},
           [&] { c_.reduce_scatter(x.data(), y.data(), counts, t, Reduce::kMax); });
    expect("all_gather", t, share, {most, most}, [&] { c_.all_gather(x.data(), y.data(), counts, t); });
    expect("all_to_all", t, share, {most, most}, [&] { c_.all_to_all(x.data(), counts, y.data(), counts, t); });
    for (int root = 0; root < n_; ++root) {
      const Moved m = moved([&] { c_.broadcast(x.data(), n_ * share, t, root); }), total = sums(m);
      if (m.received != (c_.rank() == root ? 0 : payload) || total != Moved{(n_ - 1) * payload, (n_ - 1) * payload})
        fail(fmt::format("broadcast of {} x {} from {}", n_ * share, name_of(t), root));
    }
  }

  void unequal_blocks(DType t, std::int64_t share) {
    const std::int64_t width = size_of(t), me = c_.rank();
    Counts counts, to, from;
    for (std::int64_t r = 0; r < n_; ++r) {
      counts.push_back(r == n_ / 2 ? 0 : share + 5 * r);
      to.push_back(share / 2 + 3 * me + r);
      from.push_back(share / 2 + 3 * r + me);
    }
    const auto sum = [](const Counts& c) { return std::accumulate(c.begin(), c.end(), std::int64_t{0}); };
    const std::int64_t all = sum(counts), own = counts[static_cast<std::size_t>(me)];
    std::vector<char> x(static_cast<std::size_t>(std::max({all, sum(to), sum(from)}) * width)), y(x.size());
    const auto mine = to[static_cast<std::size_t>(me)];
    expect("uneven reduce_scatter", t, share, {(all - own) * width, (n_ - 1) * own * width},
           [&] { c_.reduce_scatter(x.data(), y.data(), counts, t, Reduce::kMax); });
    expect("uneven all_to_all", t, share, {(sum(to) - mine) * width, (sum(from) - mine) * width},
           [&] { c_.all_to_all(x.data(), to, y.data(), from, t); });
    const Moved m = moved([&] { c_.all_gather(x.data(), y.data(), counts, t); }), total = sums(m);
    if (m.received != (all - own) * width || total != Moved{(n_ - 1) * all * width, (n_ - 1) * all * width})
      fail(fmt::format("uneven all_gather of {} x {}", all, name_of(t)));
    if (all * width > gathered_) {
      const std::int64_t twice = 2 * (n_ - 1) * all * width;
      if (sums(moved([&] { c_.all_reduce(x.data(), all, t, Reduce::kMax); })) != Moved{twice, twice})
        fail(fmt::format("uneven all_reduce of {} x {}", all, name_of(t)));
    }
  }

  // Pairs of neighbours: the even rank sends.
  void messages() {
    const int peer = c_.rank() ^ 1;
    if (peer >= n_) return;
    for (const std::int64_t count : {0, 1, 50000}) {
      std::vector<char> x(static_cast<std::size_t>(count) * 4);
      if (c_.rank() < peer)
        expect("send", DType::kF32, count, {count * 4, 0}, [&] { c_.send(x.data(), count, DType::kF32, peer); });
      else
        expect("recv", DType::kF32, count, {0, count * 4}, [&] { c_.recv(x.data(), count, DType::kF32, peer); });
    }
  }

  // A new group counts from zero, and its traffic does not change the counts of the group that it was split from.
  void groups() {
    const Traffic before = c_.traffic();
    const auto part = c_.split(c_.rank() % 2, c_.rank());
    if (part->traffic().wire_bytes != 0 || part->traffic().wire_received != 0) fail("a new group");
    WireSuite suite(*part, gathered_);
    suite.whole();
    if (!suite.wrong_.empty()) fail("in a split group, " + suite.wrong_);
    const Traffic after = c_.traffic();
    if (after.wire_bytes != before.wire_bytes || after.wire_received != before.wire_received) fail("a group's parent");
  }

  template <class Call>
  Moved moved(Call call) {
    const Traffic before = c_.traffic();
    call();
    const Traffic after = c_.traffic();
    if (!before.wire_bytes || !before.wire_received || !after.wire_bytes || !after.wire_received) {
      fail("the communicator counts no wire bytes");
      return {};
    }
    return {*after.wire_bytes - *before.wire_bytes, *after.wire_received - *before.wire_received};
  }
  Moved sums(Moved m) {
    c_.all_reduce(&m.sent, 1, DType::kI64, Reduce::kSum);
    c_.all_reduce(&m.received, 1, DType::kI64, Reduce::kSum);
    return m;
  }
  template <class Call>
  void expect(const char* what, DType t, std::int64_t share, Moved expected, Call call) {
    const Moved m = moved(call);
    if (m == expected) return;
    fail(fmt::format("{} of blocks of {} x {}: {} bytes sent, {} received, where the formula says {} and {}", what,
                     share, name_of(t), m.sent, m.received, expected.sent, expected.received));
  }
  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = fmt::format("rank {} of {}: wire bytes: {}", c_.rank(), n_, what);
  }

  Communicator& c_;
  std::int64_t n_, gathered_;
  std::string wrong_;
};

}  // namespace molen::comm::suite
