// Tests the error texts for invalid calls, with threads as ranks and with a single rank (tests/golden/messages).
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/test_golden.h"
#include "comm/self/self.h"
#include "comm/threads/threads.h"

namespace molen::comm {
namespace {

// Notes the error text of each of two ranks.
template <class Body>
void note_both(Body body) {
  ThreadWorld world(2, {});
  std::vector<std::unique_ptr<Communicator>> c;
  for (int r = 0; r < 2; ++r) c.push_back(world.communicator(r));
  std::vector<std::string> said(2, "nothing");
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        try {
          body(*c[r]);
        } catch (const Error& error) {
          said[r] = error.what();
        }
        c[r].reset();
      });
  }
  for (const std::string& text : said) GoldenMessages::note(text);
}

TEST(CommMessages, OfThreads) {
  const GoldenMessages golden;
  double x[8] = {}, y[8] = {};
  for (const int root : {2, -1}) note_both([&](Communicator& c) { c.broadcast(x, 1, DType::kF64, root); });
  for (const int peer : {2, -1}) {
    note_both([&](Communicator& c) { c.send(x, 1, DType::kF64, peer); });
    note_both([&](Communicator& c) { c.recv(x, 1, DType::kF64, peer); });
  }
  note_both([&](Communicator& c) { c.send(x, 1, DType::kF64, c.rank()); });
  note_both([](Communicator& c) { (void)c.split(-3 - c.rank(), 0); });
  note_both([&](Communicator& c) {
    double own[8] = {};
    if (c.rank() == 0)
      c.send(own, 5, DType::kF32, 1);
    else
      c.recv(own, 3, DType::kF64, 0);
  });
  note_both([&](Communicator& c) {
    if (c.rank() == 0) c.send(x, 1, DType::kF64, 1);
  });
  note_both([&](Communicator& c) {
    if (c.rank() == 0) c.recv(x, 1, DType::kF64, 1);
  });
  note_both([&](Communicator& c) {
    if (c.rank() == 0) c.barrier();
  });
  const std::vector<std::int64_t> one{1}, negative{1, -3};
  for (const auto& counts : {one, negative})
    note_both([&](Communicator& c) { c.all_gather(x, y, counts, DType::kF64); });
  note_both([&](Communicator& c) {
    float out[9] = {}, in[9] = {};
    const std::vector<std::int64_t> sent{2, 2}, wanted{c.rank() == 1 ? 4 : 2, c.rank() == 0 ? 3 : 2};
    c.all_to_all(out, sent, in, wanted, DType::kF32);
  });
  note_both([&](Communicator& c) {
    float own[8] = {};
    c.all_reduce(own, 5 + c.rank(), c.rank() == 0 ? DType::kF32 : DType::kBF16, Reduce::kSum);
  });
  note_both([&](Communicator& c) {
    float own[8] = {};
    if (c.rank() == 0)
      c.barrier();
    else
      c.broadcast(own, 7, DType::kF32, 0);
  });
}

TEST(CommMessages, OfARankAlone) {
  const GoldenMessages golden;
  double x[8] = {}, y[8] = {};
  const auto self = make_self();
  const std::vector<std::int64_t> one{1}, two{2}, both{1, 2}, negative{-3};
  EXPECT_NOTED(self->all_to_all(x, one, y, two, DType::kF64), Error);
  EXPECT_NOTED(self->all_gather(x, y, both, DType::kF64), Error);
  EXPECT_NOTED(self->all_gather(x, y, negative, DType::kF64), Error);
  for (const int root : {1, -1}) EXPECT_NOTED(self->broadcast(x, 1, DType::kF64, root), Error);
  for (const int peer : {0, 1}) {
    EXPECT_NOTED(self->send(x, 1, DType::kF64, peer), Error);
    EXPECT_NOTED(self->recv(x, 1, DType::kF64, peer), Error);
  }
  for (const DType integer : {DType::kI8, DType::kI16}) {
    EXPECT_THROW(self->all_reduce(x, 1, integer, Reduce::kSum), Error);
    EXPECT_THROW(self->reduce_scatter(x, y, one, integer, Reduce::kSum), Error);
  }
  EXPECT_NOTED((void)self->split(-4, 0), Error);
  self->abort("");
  EXPECT_NOTED(self->barrier(), Error);
  self->abort("again");
  EXPECT_NOTED(self->barrier(), Error);
}

}  // namespace
}  // namespace molen::comm
