// One test suite for every communicator. It compares each collective with a plain reference, for all types and for
// even, uneven and empty counts. Call it on every rank; it returns the failures as text, empty if there are none.
#pragma once

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "comm/communicator.h"

namespace molen::comm::suite {

// Returns element `i` of rank `r`'s data: small integers that every type holds and sums exactly.
inline double value(int rank, std::int64_t i) {
  return static_cast<double>((rank * 7 + i * 3) % 11) - (rank % 2 == 0 ? 0 : 2);
}

inline void store(DType t, void* data, std::int64_t i, double x) {
  const auto float_bits = [](float f) {
    std::uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
  };
  switch (t) {
    case DType::kF64:
      static_cast<double*>(data)[i] = x;
      return;
    case DType::kF32:
      static_cast<float*>(data)[i] = static_cast<float>(x);
      return;
    case DType::kI64:
      static_cast<std::int64_t*>(data)[i] = static_cast<std::int64_t>(x);
      return;
    case DType::kI32:
      static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(x);
      return;
    case DType::kU8:
      static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(x + 2);
      return;
    case DType::kBF16:
      static_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(float_bits(static_cast<float>(x)) >> 16);
      return;
    case DType::kF16: {
      const auto half = static_cast<_Float16>(x);
      std::memcpy(static_cast<std::uint16_t*>(data) + i, &half, 2);
      return;
    }
    default:
      throw Error("suite: type");
  }
}

inline double load(DType t, const void* data, std::int64_t i) {
  switch (t) {
    case DType::kF64:
      return static_cast<const double*>(data)[i];
    case DType::kF32:
      return static_cast<const float*>(data)[i];
    case DType::kI64:
      return static_cast<double>(static_cast<const std::int64_t*>(data)[i]);
    case DType::kI32:
      return static_cast<const std::int32_t*>(data)[i];
    case DType::kU8:
      return static_cast<const std::uint8_t*>(data)[i];
    case DType::kBF16: {
      const std::uint32_t bits = static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(data)[i]) << 16;
      float f;
      std::memcpy(&f, &bits, 4);
      return f;
    }
    case DType::kF16: {
      _Float16 half;
      std::memcpy(&half, static_cast<const std::uint16_t*>(data) + i, 2);
      return static_cast<double>(half);
    }
    default:
      throw Error("suite: type");
  }
}

// Properties that a communicator may have beyond exact sums of small integers.
struct Promises {
  bool nan_survives = true;  // kMax and kMin of a NaN and a number is NaN
  bool rounds_once = true;   // bf16 and fp16 sums are kept in fp32 until the end
};

class Suite {
 public:
  explicit Suite(Communicator& c, Promises promises = {}) : c_(c), promises_(promises) {}

  std::string run() {
    for (const DType t : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kU8})
      for (const std::int64_t n : {0, 1, 3, 17, 4096, 70001}) {
        all_reduce(t, n);
        broadcast(t, n);
        for (const int shape : {0, 1, 2}) {
          gather(t, n, shape);
          scatter(t, n, shape);
          exchange(t, n, shape);
        }
        if (!wrong_.empty()) return wrong_;
      }
    megabytes();
    point_to_point();
    groups();
    at_once();
    rounding();
    if (promises_.nan_survives) not_a_number();
    if (promises_.rounds_once) one_rounding();
    refusals();
    return wrong_;
  }

 private:
  using Bytes = std::vector<char>;

  Bytes filled(DType t, std::int64_t n, int rank) const {
    Bytes b(static_cast<std::size_t>(n * size_of(t)) + 8, 0x5a);
    for (std::int64_t i = 0; i < n; ++i) store(t, b.data(), i, value(rank, i));
    return b;
  }
  static double as(DType t, double x) { return t == DType::kU8 ? x + 2 : x; }
  void expect(bool ok, const std::string& what) {
    if (!ok && wrong_.empty()) wrong_ = fmt::format("rank {}: {}", c_.rank(), what);
  }
  double combined(DType t, std::int64_t i, Reduce op) const {
    double x = as(t, value(0, i));
    for (int r = 1; r < c_.size(); ++r) {
      const double y = as(t, value(r, i));
      x = op == Reduce::kSum ? x + y : op == Reduce::kMax ? std::max(x, y) : std::min(x, y);
    }
    return x;
  }

  // Megabytes take other code paths than the few kilobytes above: they move in pieces, along rings, or through memory
  // that ranks share.
  void megabytes() {
    constexpr std::int64_t n = (std::int64_t{1} << 19) + 7;
    all_reduce(DType::kF64, n);
    all_reduce(DType::kBF16, n);
    broadcast(DType::kF64, n);
    for (const int shape : {1, 2}) gather(DType::kF64, 900007, shape);
    scatter(DType::kF32, n, 0);
    exchange(DType::kF32, 4 * n, 0);
  }

  // Returns counts per rank: even, uneven, or all on the last rank.
  std::vector<std::int64_t> counts(std::int64_t n, int shape) const {
    std::vector<std::int64_t> result;
    for (int r = 0; r < c_.size(); ++r)
      result.push_back(shape == 0 ? n : shape == 1 ? (n * (r + 1)) / 3 : r + 1 == c_.size() ? n : 0);
    return result;
  }
  static std::int64_t sum(const std::vector<std::int64_t>& v, int until = -1) {
    std::int64_t total = 0;
    for (std::size_t i = 0; i < (until < 0 ? v.size() : static_cast<std::size_t>(until)); ++i) total += v[i];
    return total;
  }

  void all_reduce(DType t, std::int64_t n) {
    for (const Reduce op : {Reduce::kSum, Reduce::kMax, Reduce::kMin}) {
      Bytes data = filled(t, n, c_.rank());
      counted("all_reduce", n * size_of(t), [&] { c_.all_reduce(data.data(), n, t, op); });
      bool ok = true;
      for (std::int64_t i = 0; i < n; ++i) ok = ok && load(t, data.data(), i) == combined(t, i, op);
      expect(ok && data[static_cast<std::size_t>(n * size_of(t))] == 0x5a,
             fmt::format("all_reduce of {} x {} is wrong", n, name_of(t)));
    }
  }

  void broadcast(DType t, std::int64_t n) {
    for (int root = 0; root < c_.size(); ++root) {
      Bytes data = filled(t, n, c_.rank());
      counted("broadcast", n * size_of(t), [&] { c_.broadcast(data.data(), n, t, root); });
      expect(data == filled(t, n, root), fmt::format("broadcast of {} x {} from {} is wrong", n, name_of(t), root));
    }
  }

  void gather(DType t, std::int64_t n, int shape) {
    const auto k = counts(n, shape);
    const std::int64_t mine = k[static_cast<std::size_t>(c_.rank())], all = sum(k), width = size_of(t);
    for (const bool in_place : {false, true}) {
      Bytes send = filled(t, mine, c_.rank()), receive(static_cast<std::size_t>(all * width) + 8, 0x5a);
      char* place = receive.data() + sum(k, c_.rank()) * width;
      if (in_place) std::memcpy(place, send.data(), static_cast<std::size_t>(mine * width));
      counted("all_gather", all * width, [&] { c_.all_gather(in_place ? place : send.data(), receive.data(), k, t); });
      bool ok = receive[static_cast<std::size_t>(all * width)] == 0x5a;
      for (int r = 0; r < c_.size(); ++r)
        for (std::int64_t i = 0; i < k[static_cast<std::size_t>(r)]; ++i)
          ok = ok && load(t, receive.data(), sum(k, r) + i) == as(t, value(r, i));
      expect(ok, fmt::format("all_gather of {} x {}, shape {}, in place {} is wrong", n, name_of(t), shape, in_place));
    }
  }

  void scatter(DType t, std::int64_t n, int shape) {
    const auto k = counts(n, shape);
    const std::int64_t mine = k[static_cast<std::size_t>(c_.rank())], all = sum(k), width = size_of(t),
                       first = sum(k, c_.rank());
    for (int form = 0; form < 4; ++form) {
      const bool in_place = form % 2 == 1;
      const Reduce op = form < 2 ? Reduce::kSum : in_place ? Reduce::kMax : Reduce::kMin;
      Bytes send = filled(t, all, c_.rank()), receive(static_cast<std::size_t>(mine * width) + 8, 0x5a);
      char* into = in_place ? send.data() + first * width : receive.data();
      counted("reduce_scatter", all * width, [&] { c_.reduce_scatter(send.data(), into, k, t, op); });
      bool ok = in_place || receive[static_cast<std::size_t>(mine * width)] == 0x5a;
      for (std::int64_t i = 0; i < mine; ++i) ok = ok && load(t, into, i) == combined(t, first + i, op);
      // Other ranks' blocks keep their values.
      if (in_place)
        for (std::int64_t i = 0; i < all; ++i)
          if (i < first || i >= first + mine) ok = ok && load(t, send.data(), i) == as(t, value(c_.rank(), i));
      expect(ok,
             fmt::format("reduce_scatter of {} x {}, shape {}, in place {} is wrong", n, name_of(t), shape, in_place));
    }
  }

  void exchange(DType t, std::int64_t n, int shape) {
    // Rank r sends (base + r) elements to every rank, so the length of a received block depends on its sender.
    const std::int64_t base = shape == 2 ? 0 : n / 4 + shape;
    const std::vector<std::int64_t> out(static_cast<std::size_t>(c_.size()), base + c_.rank());
    std::vector<std::int64_t> in;
    for (int r = 0; r < c_.size(); ++r) in.push_back(base + r);
    const Bytes send = filled(t, sum(out), c_.rank());
    Bytes receive(static_cast<std::size_t>(sum(in) * size_of(t)) + 8, 0x5a);
    counted("all_to_all", sum(out) * size_of(t), [&] { c_.all_to_all(send.data(), out, receive.data(), in, t); });
    bool ok = receive[static_cast<std::size_t>(sum(in) * size_of(t))] == 0x5a;
    for (int r = 0; r < c_.size(); ++r)
      for (std::int64_t i = 0; i < in[static_cast<std::size_t>(r)]; ++i)
        ok = ok && load(t, receive.data(), sum(in, r) + i) == as(t, value(r, (base + r) * c_.rank() + i));
    expect(ok, fmt::format("all_to_all of {} x {}, shape {} is wrong", n, name_of(t), shape));
    for (const int which : {0, 1, 2}) exchange_apart(t, n, base, which);
  }

  // The same exchange with blocks that lie apart and in the opposite order of ranks. `kGap` elements before each block
  // belong to no block. If `which` is 0, even ranks give offsets for what they send, and odd ranks for what they
  // receive; if it is 1, the other way round; if it is 2, all ranks give both.
  void exchange_apart(DType t, std::int64_t n, std::int64_t base, int which) {
    constexpr std::int64_t kGap = 3;
    const auto sends_apart = [&](int rank) { return which == 2 || rank % 2 == which; };
    const bool receives_apart = which == 2 || !sends_apart(c_.rank());
    const std::vector<std::int64_t> out(static_cast<std::size_t>(c_.size()), base + c_.rank());
    std::vector<std::int64_t> in, out_at(out.size()), in_at(out.size());
    for (int r = 0; r < c_.size(); ++r) in.push_back(base + r);
    std::int64_t sent = 0, received = 0;
    for (std::size_t r = out.size(); r-- > 0; sent += out[r], received += in[r])
      out_at[r] = sent += kGap, in_at[r] = received += kGap;
    const std::int64_t width = size_of(t);
    const Bytes send = filled(t, sent, c_.rank());
    Bytes receive(static_cast<std::size_t>(received * width), 0x5a);
    const Blocks from = sends_apart(c_.rank()) ? Blocks(out, out_at) : Blocks(out),
                 to = receives_apart ? Blocks(in, in_at) : Blocks(in);
    counted("all_to_all", sum(out) * width, [&] { c_.all_to_all(send.data(), from, receive.data(), to, t); });
    bool ok = true;
    std::int64_t filled_bytes = 0;
    for (int r = 0; r < c_.size(); ++r) {
      // If the sender's blocks lie apart, this rank's block is behind those of all later ranks.
      const std::int64_t after = c_.size() - 1 - c_.rank(), count = base + r;
      const std::int64_t first = sends_apart(r) ? (after + 1) * kGap + after * count : c_.rank() * count;
      const std::int64_t at = to.offset(r);
      for (std::int64_t i = 0; i < count; ++i) ok = ok && load(t, receive.data(), at + i) == as(t, value(r, first + i));
      filled_bytes += count * width;
    }
    if (receives_apart)  // the gaps keep what they held; in order, the end of the buffer does
      for (int r = 0; r < c_.size(); ++r)
        for (std::int64_t b = -kGap * width; b < 0; ++b)
          ok = ok && receive[static_cast<std::size_t>(to.offset(r) * width + b)] == 0x5a;
    else
      for (std::int64_t b = filled_bytes; b < received * width; ++b)
        ok = ok && receive[static_cast<std::size_t>(b)] == 0x5a;
    expect(ok, fmt::format("all_to_all of {} x {} between blocks that lie apart is wrong", n, name_of(t)));
  }

  // Sends around a ring. Even ranks send first, so that blocking calls cannot wait for each other; of an odd number of
  // ranks the last one receives first.
  void point_to_point() {
    if (c_.size() < 2) return;
    for (const DType t : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kU8})
      for (const std::int64_t n : {0, 1, 5003}) ring(t, n);
    ring(DType::kF32, 900007);
  }

  void ring(DType t, std::int64_t n) {
    const int next = (c_.rank() + 1) % c_.size(), before = (c_.rank() + c_.size() - 1) % c_.size();
    const Bytes mine = filled(t, n, c_.rank());
    Bytes got(mine.size(), 0x5a);
    const auto send = [&] { counted("send", n * size_of(t), [&] { c_.send(mine.data(), n, t, next); }); };
    const auto receive = [&] { counted("recv", n * size_of(t), [&] { c_.recv(got.data(), n, t, before); }); };
    if (c_.rank() % 2 == 0 && c_.rank() + 1 < c_.size()) {
      send();
      receive();
    } else {
      receive();
      send();
    }
    expect(got == filled(t, n, before),
           fmt::format("send and receive of {} x {} around the ring is wrong", n, name_of(t)));
    const Traffic quiet = c_.traffic();
    c_.barrier();
    expect(c_.traffic().calls == quiet.calls, "barrier is counted");
  }

  void groups() {
    const auto half = c_.split(c_.rank() % 2, -c_.rank());  // keys reverse the order
    std::int64_t ranks = c_.rank();
    half->all_reduce(&ranks, 1, DType::kI64, Reduce::kSum);
    std::int64_t want = 0;
    int members = 0, larger = 0;
    for (int r = c_.rank() % 2; r < c_.size(); r += 2) {
      want += r;
      ++members;
      larger += r > c_.rank();
    }
    expect(half->traffic().calls == 1 && half->traffic().bytes == 8, "a split group's traffic is counted wrongly");
    // A split of the split group: each rank alone.
    const auto alone = half->split(half->rank(), 0);
    std::int64_t one = 1;
    alone->all_reduce(&one, 1, DType::kI64, Reduce::kSum);
    expect(alone->size() == 1 && alone->rank() == 0 && one == 1, "a group of one is wrong");
    expect(ranks == want && half->size() == members && half->rank() == larger, "a split group is wrong");
    c_.barrier();
  }

  // Each rank has two threads, which call a group each. Which thread calls first differs from rank to rank and from
  // call to call.
  void at_once() {
    if (c_.one_at_a_time()) return;
    constexpr int kCalls = 60;
    const auto first = c_.split(0, c_.rank()), second = c_.split(0, c_.rank());
    std::array<std::string, 2> wrong;
    const auto calls = [&](int which) {
      Communicator& group = which == 0 ? *first : *second;
      try {
        for (int k = 0; k < kCalls && wrong[static_cast<std::size_t>(which)].empty(); ++k) {
          if ((c_.rank() + k + which) % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
          const std::int64_t n = which == 0 ? 5 : 30011;
          std::vector<double> x(static_cast<std::size_t>(n));
          for (std::int64_t i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] = value(c_.rank(), i + k);
          group.all_reduce(x.data(), n, DType::kF64, Reduce::kSum);
          for (std::int64_t i = 0; i < n; ++i)
            if (x[static_cast<std::size_t>(i)] != combined(DType::kF64, i + k, Reduce::kSum))
              wrong[static_cast<std::size_t>(which)] = fmt::format("group {}, call {}, element {}", which, k, i);
        }
      } catch (const std::exception& error) {
        wrong[static_cast<std::size_t>(which)] = error.what();
      }
    };
    c_.add_callers(1);
    {
      const std::jthread beside([&] {
        calls(1);
        c_.add_callers(-1);
      });
      calls(0);
    }
    for (const std::string& what : wrong) expect(what.empty(), "two groups at once: " + what);
  }

  // Sums that round, small and large, must have the same bits on every rank, on a second call, and from reduce_scatter.
  void rounding() {
    for (const DType t : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16})
      for (const std::int64_t n : {1, 301, 600011}) same_bits(t, n);
  }

  void same_bits(DType t, std::int64_t n) {
    const std::int64_t width = size_of(t);
    Bytes mine(static_cast<std::size_t>(n * width)), first;
    for (std::int64_t i = 0; i < n; ++i)
      store(t, mine.data(), i, normal_at(static_cast<std::uint64_t>(c_.rank() + 1), static_cast<std::uint64_t>(i)));
    for (int repeat = 0; repeat < 2; ++repeat) {
      Bytes x = mine;
      c_.all_reduce(x.data(), n, t, Reduce::kSum);
      Bytes zero = x;
      c_.broadcast(zero.data(), n, t, 0);
      expect(x == zero, fmt::format("ranks hold different bits after all_reduce of {} x {}", n, name_of(t)));
      if (repeat == 0) first = x;
      expect(x == first, fmt::format("all_reduce of {} x {} repeated gives other bits", n, name_of(t)));
    }
    const auto k = counts(n / c_.size(), 0);
    const std::int64_t share = n / c_.size(), at = share * c_.rank();
    Bytes block(static_cast<std::size_t>(share * width));
    c_.reduce_scatter(mine.data(), block.data(), k, t, Reduce::kSum);
    expect(std::equal(block.begin(), block.end(), first.begin() + at * width),
           fmt::format("reduce_scatter and all_reduce of {} x {} give different bits", n, name_of(t)));
  }

  // No reduction may lose a NaN, so that all ranks see that a loss diverged.
  void not_a_number() {
    for (const DType t : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16})
      for (const Reduce op : {Reduce::kSum, Reduce::kMax, Reduce::kMin})
        for (int bad = 0; bad < c_.size(); ++bad) {
          constexpr std::int64_t n = 300;
          Bytes data = filled(t, n, c_.rank());
          if (c_.rank() == bad) store(t, data.data(), 7, std::nan(""));
          c_.all_reduce(data.data(), n, t, op);
          expect(std::isnan(load(t, data.data(), 7)) && load(t, data.data(), 8) == combined(t, 8, op),
                 fmt::format("all_reduce loses a NaN of rank {} in {}", bad, name_of(t)));
        }
  }

  // 256 + 1 + 1 + ...: bf16 cannot hold 257, so a sum that rounds at every step stays at 256; fp16 likewise at 2048.
  void one_rounding() {
    for (const auto& [t, large] : {std::pair{DType::kBF16, 256.0}, std::pair{DType::kF16, 2048.0}})
      for (const std::int64_t n : {5, 100003}) {
        Bytes data(static_cast<std::size_t>(n * 2));
        for (std::int64_t i = 0; i < n; ++i) store(t, data.data(), i, c_.rank() == 0 ? large : 1.0);
        c_.all_reduce(data.data(), n, t, Reduce::kSum);
        const int ones = c_.size() - 1;  // large + 1 ties to even: large; + 2 is exact; + 3 ties to + 4
        const double want = large + (ones <= 1 ? 0 : ones == 2 ? 2 : 4);
        bool ok = c_.size() > 4;
        if (!ok) {
          ok = true;
          for (std::int64_t i = 0; i < n; ++i) ok = ok && load(t, data.data(), i) == want;
        }
        expect(ok, fmt::format("all_reduce of {} rounds more than once", name_of(t)));
      }
  }

  // Invalid calls that each rank can detect alone are refused before anything is sent, and later calls work.
  void refusals() {
    const auto refuse = [&](const char* what, const auto& call) {
      try {
        call();
        expect(false, fmt::format("{} is accepted", what));
      } catch (const Error&) {
      }
    };
    std::vector<std::int64_t> data(static_cast<std::size_t>(c_.size()) + 2),
        many(static_cast<std::size_t>(c_.size()) + 1, 1);
    std::vector<std::int64_t> negative(static_cast<std::size_t>(c_.size()), 1);
    negative.back() = -1;
    auto out = data;
    refuse("a count too many", [&] { c_.all_gather(data.data(), out.data(), many, DType::kI64); });
    refuse("a negative count",
           [&] { c_.reduce_scatter(data.data(), out.data(), negative, DType::kI64, Reduce::kSum); });
    std::vector<std::int64_t> ones(static_cast<std::size_t>(c_.size()), 1), before(ones.size(), -1);
    refuse("an offset too many",
           [&] { c_.all_to_all(data.data(), Blocks(ones, many), out.data(), ones, DType::kI64); });
    refuse("a negative offset",
           [&] { c_.all_to_all(data.data(), ones, out.data(), Blocks(ones, before), DType::kI64); });
    refuse("a sum of u16", [&] { c_.all_reduce(data.data(), 1, DType::kU16, Reduce::kSum); });
    refuse("a root beyond the group", [&] { c_.broadcast(data.data(), 1, DType::kI64, c_.size()); });
    refuse("a message to oneself", [&] { c_.send(data.data(), 1, DType::kI64, c_.rank()); });
    refuse("a message from nobody", [&] { c_.recv(data.data(), 1, DType::kI64, c_.size()); });
    refuse("a negative color", [&] { (void)c_.split(-1, 0); });
    c_.barrier();
  }

  template <class Call>
  void counted(const char* what, std::int64_t bytes, Call call) {
    const auto by_kind = [&] {
      std::vector<Traffic> all;
      for (const CallKind kind : kAllCallKinds) all.push_back(c_.traffic_of(kind));
      return all;
    };
    const auto before = by_kind();
    call();
    const auto now = by_kind();
    for (const CallKind kind : kAllCallKinds) {
      const auto k = static_cast<std::size_t>(kind);
      const bool called = name_of(kind) == what;
      expect(now[k].calls == before[k].calls + called && now[k].bytes == before[k].bytes + (called ? bytes : 0) &&
                 (called || now[k] == before[k]),
             fmt::format("{} is counted wrongly as {}", what, name_of(kind)));
    }
  }

  Communicator& c_;
  Promises promises_;
  std::string wrong_;
};

}  // namespace molen::comm::suite
