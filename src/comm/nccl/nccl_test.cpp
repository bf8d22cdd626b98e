// Tests the NCCL communicator on the fake libraries of nccl/fake, for NVIDIA and AMD: ranks are threads, device memory
// is host memory.
#include "comm/nccl/nccl.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/test_golden.h"
#include "base/test_sanitized.h"
#include "comm/comm_suite.h"
#include "comm/nccl/api.h"
#include "comm/nccl/fake/fake.h"
#include "comm/nccl/link.h"
#include "comm/self/self.h"
#include "comm/staged.h"
#include "comm/threads/threads.h"

namespace molen::comm {
namespace {

// A fake library and its test controls.
struct Fake {
  explicit Fake(const std::string& file) : handle(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) throw Error("{}", ::dlerror());
  }
  // Returns a function by its name. The first argument only gives its type.
  template <class F>
  F* get(F* /*type*/, const char* name) const {
    return reinterpret_cast<F*>(::dlsym(handle, name));
  }
  void* handle;
};
#define FAKE(library, function) (library).get(static_cast<decltype(&function)>(nullptr), #function)

// The fake libraries of one GPU maker.
struct Maker {
  const char *name, *device, *prefix, *runtime, *collectives;
  bool hip;
  std::string without(const char* what) const {  // the library that lacks a function, e.g. "split"
    std::string file = collectives;
    return file.insert(file.rfind(".so"), fmt::format("_no_{}", what));
  }
};
const Maker kNvidia{"Nvidia", "CUDA", "cuda", MOLEN_FAKE_CUDART, MOLEN_FAKE_NCCL, false};
const Maker kAmd{"Amd", "HIP", "hip", MOLEN_FAKE_HIP, MOLEN_FAKE_RCCL, true};

class Nccl : public ::testing::TestWithParam<Maker> {
 protected:
  void SetUp() override {
    FAKE(runtime, fake_runtime_reset)(8);
    for (const Fake& f : {nccl, no_split, no_send}) FAKE(f, fake_nccl_reset)(22703, 2);
    alive_before = FAKE(runtime, fake_runtime_state)().alive;
  }
  void TearDown() override {
    EXPECT_EQ(FAKE(nccl, fake_nccl_alive)(), 0) << "communicators left";
    EXPECT_EQ(FAKE(no_split, fake_nccl_alive)(), 0) << "communicators left";
    EXPECT_EQ(FAKE(runtime, fake_runtime_state)().alive, alive_before) << "streams or device memory left";
  }
  int count(const char* name) const { return FAKE(nccl, fake_nccl_count)(name); }
  int last_error() const {  // of this thread
    return runtime.get(static_cast<int (*)()>(nullptr), fmt::format("{}GetLastError", GetParam().prefix).c_str())();
  }

  static NcclOptions options() { return options(GetParam().collectives); }
  // Options with another collectives library than the maker's own; the other maker's list is empty.
  static NcclOptions options(const std::string& library) {
    NcclOptions o;
    o.runtime = {GetParam().runtime};
    o.nccl = o.rccl = {"libof-another-maker.so"};
    collectives(o) = {library};
    o.timeout = Seconds(60);  // a hang becomes a failure with a name
    return o;
  }

  static std::vector<std::string>& collectives(NcclOptions& o) { return GetParam().hip ? o.rccl : o.nccl; }
  static std::string device_text(const char* rest) { return fmt::format("{} device {}", GetParam().device, rest); }

  // Runs `body` on each rank; returns the text of each rank's error, "" if it threw none.
  template <class Body>
  static std::vector<std::string> on_ranks(int ranks, NcclOptions o, Body body) {
    return on_ranks(ranks, std::vector<NcclOptions>(static_cast<std::size_t>(ranks), o), body);
  }
  template <class Body>
  static std::vector<std::string> on_ranks(int ranks, std::vector<NcclOptions> o, Body body) {
    ThreadWorld world(ranks);
    std::vector<std::unique_ptr<Communicator>> bootstrap;
    for (int r = 0; r < ranks; ++r) bootstrap.push_back(world.communicator(r));
    std::vector<std::string> errors(static_cast<std::size_t>(ranks));
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        const auto at = static_cast<std::size_t>(r);
        try {
          const auto c = open_nccl(*bootstrap[at], r, o[at]);
          body(*c);
        } catch (const Error& e) {
          errors[at] = e.what();
        }
      });
    threads.clear();
    return errors;
  }
  static void expect_all(const std::vector<std::string>& errors, const std::string& part) {
    for (const std::string& e : errors)
      EXPECT_NE(e.find(part), std::string::npos) << "'" << e << "' lacks '" << part << "'";
  }
  // Returns the error text of open_nccl with these options, on one rank.
  template <class Kind>
  static std::string refusal(const NcclOptions& o, int device = 0) {
    const auto self = make_self();
    try {
      open_nccl(*self, device, o);
    } catch (const Kind& e) {
      return GoldenMessages::note(e.what());
    }
    return "";
  }

  Fake runtime{GetParam().runtime}, nccl{GetParam().collectives}, no_split{GetParam().without("split")},
      no_send{GetParam().without("send")};
  int alive_before = 0;
};
INSTANTIATE_TEST_SUITE_P(Of, Nccl, ::testing::Values(kNvidia, kAmd),
                         [](const auto& maker) { return std::string(maker.param.name); });

void run_suite(Communicator& c) {
  if (c.name() != "nccl") throw Error("another communicator");
  suite::Promises promises;
  promises.rounds_once = false;  // NCCL's sums; see nccl.h
  if (const std::string wrong = suite::Suite(c, promises).run(); !wrong.empty()) throw Error("{}", wrong);
}

TEST_P(Nccl, Suite) {
  for (const int ranks : {1, 2, 3, 4}) {
    if (kSanitized && ranks != 3) continue;
    SCOPED_TRACE(ranks);
    FAKE(nccl, fake_nccl_reset)(22703, 2);
    for (const std::string& e : on_ranks(ranks, options(), run_suite)) EXPECT_EQ(e, "");
    EXPECT_GT(count("ncclCommSplit"), 0);
    EXPECT_EQ(count("ncclGetUniqueId"), 1) << "groups are split, not made anew";
    EXPECT_EQ(count("ncclCommAbort"), 0) << "an orderly end";
  }
}

// Buffers of the suite in memory allocated by the runtime, as a real library requires.
class Allocated final : public suite::Staging {
 public:
  Allocated(const NcclOptions& options, int ordinal) : device_(nccl::load(options), ordinal, options) {
    void* data = nullptr;
    device_.check(device_.api->allocate(&data, kBytes), "Malloc");
    all_ = static_cast<char*>(data);
  }
  ~Allocated() override { device_.api->free(all_); }
  Allocated(const Allocated&) = delete;
  Allocated& operator=(const Allocated&) = delete;
  void begin() override { used_ = 0; }
  char* take(std::int64_t bytes) override {
    char* there = all_ + used_;
    if ((used_ += (bytes + 255) / 256 * 256) > kBytes) throw Error("the suite's buffers are larger than thought");
    return there;
  }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    const nccl::Api& api = *device_.api;
    device_.check(api.copy(to, from, static_cast<std::size_t>(bytes), nccl::kCopyDefault, device_.stream),
                  "MemcpyAsync");
    int state = 0;
    while ((state = api.stream_query(device_.stream)) == nccl::kNotReady) api.clear_error();
    device_.check(state, "StreamQuery");
  }

 private:
  static constexpr std::int64_t kBytes = 64 << 20;
  nccl::Device device_;
  char* all_ = nullptr;
  std::int64_t used_ = 0;
};

void run_suite_on_device(Communicator& c, const NcclOptions& options) {
  Allocated memory(options, c.rank());
  suite::Staged staged(c, memory);
  run_suite(staged);
}

TEST_P(Nccl, SuiteInMemoryOfTheDevice) {
  for (const int ranks : {1, 2}) {
    FAKE(runtime, fake_runtime_strict)();
    for (const std::string& e : on_ranks(ranks, options(), [this](Communicator& c) {
           run_suite_on_device(c, options());
           double host = 1;
           EXPECT_THROW(c.all_reduce(&host, 1, DType::kF64, Reduce::kSum), Error);
           EXPECT_EQ(last_error(), 0);
         }))
      EXPECT_EQ(e, "");
  }
}

// Runs on the libraries of this machine, if it has a device.
TEST(NcclHere, SuiteOfOneRank) {
  const NcclOptions here;
  try {
    int devices = 0;
    if (const int error = nccl::load(here)->device_count(&devices); error != 0 || devices == 0)
      GTEST_SKIP() << "libraries, and no device";
  } catch (const UsageError& e) {
    GTEST_SKIP() << e.what();
  }
  const auto self = make_self();
  const auto c = open_nccl(*self, 0, here);
  run_suite_on_device(*c, here);
}

TEST_P(Nccl, SuiteWithoutSplit) {
  FAKE(no_split, fake_nccl_reset)(21403, 0);  // a library that is never in progress
  for (const std::string& e : on_ranks(3, options(GetParam().without("split")), run_suite)) EXPECT_EQ(e, "");
  EXPECT_GT(FAKE(no_split, fake_nccl_count)("ncclGetUniqueId"), 1);
}

TEST_P(Nccl, EqualCountsTakeTheNativeCall) {
  for (const std::string& e : on_ranks(2, options(), [](Communicator& c) {
         std::vector<float> x(6), y(6);
         const std::vector<std::int64_t> even{3, 3};
         c.all_gather(x.data(), y.data(), even, DType::kF32);
         c.reduce_scatter(x.data(), y.data(), even, DType::kF32, Reduce::kSum);
         c.all_reduce(x.data(), 6, DType::kF32, Reduce::kSum);
       }))
    EXPECT_EQ(e, "");
  EXPECT_EQ(count("ncclAllGather"), 2);
  EXPECT_EQ(count("ncclReduceScatter"), 2);
  EXPECT_EQ(count("ncclAllReduce"), 2);
  EXPECT_EQ(count("ncclReduce") + count("ncclBroadcast") + count("ncclGroupStart"), 0);
  for (const std::string& e : on_ranks(2, options(), [](Communicator& c) {
         std::vector<float> x(6), y(6);
         const std::vector<std::int64_t> uneven{2, 4};
         c.all_gather(x.data(), y.data(), uneven, DType::kF32);
         c.reduce_scatter(x.data(), y.data(), uneven, DType::kF32, Reduce::kSum);
       }))
    EXPECT_EQ(e, "");
  EXPECT_EQ(count("ncclBroadcast"), 4);
  EXPECT_EQ(count("ncclReduce"), 4);
  EXPECT_EQ(count("ncclAllGather") + count("ncclReduceScatter"), 4) << "none more";
}

// In an exchange each rank copies its own block without the library, and sends no empty block.
TEST_P(Nccl, AnExchangeSendsToOthersAlone) {
  for (const std::string& e : on_ranks(3, options(), [](Communicator& c) {
         std::vector<float> x(9, static_cast<float>(c.rank())), y(9);
         const std::vector<std::int64_t> three{3, 3, 3};
         c.all_to_all(x.data(), three, y.data(), three, DType::kF32);
         if (y != std::vector<float>{0, 0, 0, 1, 1, 1, 2, 2, 2}) throw Error("other blocks");
       }))
    EXPECT_EQ(e, "");
  EXPECT_EQ(count("ncclSend"), 6);
  EXPECT_EQ(count("ncclRecv"), 6);
  for (const std::string& e : on_ranks(2, options(), [](Communicator& c) {
         std::vector<float> x(4), y(4);
         const std::vector<std::int64_t> own =
             c.rank() == 0 ? std::vector<std::int64_t>{2, 0} : std::vector<std::int64_t>{0, 2};
         c.all_to_all(x.data(), own, y.data(), own, DType::kF32);
         const std::vector<std::int64_t> uneven{1, 2};
         if (c.rank() == 0) c.all_to_all(x.data(), uneven, y.data(), uneven, DType::kF32);
         if (c.rank() == 1) {
           const std::vector<std::int64_t> mine{2, 1};
           c.all_to_all(x.data(), mine, y.data(), mine, DType::kF32);
         }
       }))
    EXPECT_EQ(e, "");
  EXPECT_EQ(count("ncclSend"), 8) << "two of the uneven ones";
}

// A maximum of several chunks, written over its own input.
TEST_P(Nccl, MaximaOfManyElementsKeepNaN) {
  constexpr std::int64_t n = 1'500'000;
  for (const std::string& e : on_ranks(2, options(), [](Communicator& c) {
         std::vector<float> x(n);
         for (std::int64_t i = 0; i < n; ++i)
           x[static_cast<std::size_t>(i)] = static_cast<float>(c.rank() == i % 2 ? i : -i);
         x[static_cast<std::size_t>(c.rank() == 0 ? 17 : n - 1)] = std::nanf("");
         const std::vector<std::int64_t> counts{n / 3, n - n / 3};
         c.reduce_scatter(x.data(), x.data() + (c.rank() == 0 ? 0 : n / 3), counts, DType::kF32, Reduce::kMax);
         for (std::int64_t i = c.rank() == 0 ? 0 : n / 3; i < (c.rank() == 0 ? n / 3 : n); ++i) {
           const float got = x[static_cast<std::size_t>(i)];
           const bool bad = i == 17 || i == n - 1;
           if (bad ? !std::isnan(got) : got != static_cast<float>(i)) throw Error("element {} is {}", i, got);
         }
       }))
    EXPECT_EQ(e, "");
  EXPECT_EQ(count("ncclReduceScatter") + count("ncclReduce") + count("ncclAllReduce"), 0)
      << "NCCL's own maximum drops a NaN";
}

TEST_P(Nccl, MissingLibrariesAreNamed) {
  const GoldenMessages golden;
  NcclOptions o = options();
  collectives(o) = {"libno-such-nccl.so.2", "libnot-this-either.so"};
  const std::string nccl_missing = refusal<UsageError>(o);
  EXPECT_NE(nccl_missing.find("libno-such-nccl.so.2"), std::string::npos) << nccl_missing;
  EXPECT_NE(nccl_missing.find("libnot-this-either.so"), std::string::npos) << nccl_missing;
  o = options();
  o.runtime = {"libno-such-runtime.so.13"};
  EXPECT_NE(refusal<UsageError>(o).find("libno-such-runtime.so.13"), std::string::npos);
  o.runtime = {};
  EXPECT_NE(refusal<UsageError>(o), "");
  // If the first choice is missing, the second is used.
  o.runtime = {"libno-such-runtime.so.13", GetParam().runtime};
  EXPECT_EQ(refusal<Error>(o), "");
}

TEST_P(Nccl, MissingFunctionVersionAndDevice) {
  const GoldenMessages golden;
  EXPECT_NE(refusal<UsageError>(options(GetParam().without("send"))).find("lacks ncclSend"), std::string::npos);
  NcclOptions swapped = options();
  collectives(swapped) = {GetParam().runtime};
  EXPECT_NE(refusal<UsageError>(swapped).find("lacks ncclGetVersion"), std::string::npos);
  for (const auto& [version, text] :
       {std::pair{21304, "2.13.4"}, std::pair{2708, "2.7.8"}, std::pair{30000, "3.0.0"}}) {
    FAKE(nccl, fake_nccl_reset)(version, 0);
    const std::string e = refusal<UsageError>(options());
    EXPECT_NE(e.find(text), std::string::npos) << e;
  }
  FAKE(nccl, fake_nccl_reset)(21400, 0);
  EXPECT_EQ(refusal<Error>(options()), "");
  EXPECT_NE(refusal<UsageError>(options(), 8).find(device_text("8; there are 8 ")), std::string::npos);
  EXPECT_NE(refusal<UsageError>(options(), -1).find(device_text("-1; there are 8 ")), std::string::npos);
  FAKE(runtime, fake_runtime_reset)(0);
  EXPECT_NE(refusal<Error>(options()).find(GetParam().prefix + std::string("GetDeviceCount")), std::string::npos);
}

TEST_P(Nccl, OneRankThatCannotOpenFailsAll) {
  NcclOptions bad = options();
  collectives(bad) = {"libno-such-nccl.so.2"};
  const auto errors = on_ranks(3, {options(), bad, options()}, [](Communicator&) {});
  EXPECT_NE(errors[1].find("libno-such-nccl.so.2"), std::string::npos) << errors[1];
  EXPECT_NE(errors[0].find("rank 1 cannot open"), std::string::npos) << errors[0];
  EXPECT_NE(errors[2].find("rank 1 cannot open"), std::string::npos) << errors[2];
  FAKE(no_split, fake_nccl_reset)(21803, 0);
  expect_all(on_ranks(2, {options(), options(GetParam().without("split"))}, [](Communicator&) {}),
             fmt::format("rank 0 has {0} 2.27.3, rank 1 has {0} 2.18.3", GetParam().hip ? "RCCL" : "NCCL"));
}

TEST_P(Nccl, AnErrorAtCreationEndsAll) {
  FAKE(nccl, fake_nccl_fail)("ncclGetUniqueId", 2, -1);
  expect_all(on_ranks(2, options(), [](Communicator&) {}), "ncclGetUniqueId on rank 0: unhandled system error");
  FAKE(nccl, fake_nccl_reset)(22703, 2);
  FAKE(nccl, fake_nccl_fail)("ncclCommInitRankConfig", 2, 1);
  expect_all(on_ranks(3, options(), [](Communicator&) {}),
             "creating a communicator on rank 1 of 3: unhandled system error");
}

TEST_P(Nccl, AnErrorOfACallIsNamedAndEndsAll) {
  for (const char* name : {"ncclAllReduce", "ncclCommGetAsyncError"}) {
    FAKE(nccl, fake_nccl_reset)(22703, 2);
    expect_all(on_ranks(3, options(),
                        [&](Communicator& c) {
                          std::vector<float> x(10);
                          c.all_reduce(x.data(), 10, DType::kF32, Reduce::kSum);
                          if (c.rank() == 1) FAKE(nccl, fake_nccl_fail)(name, 2, 1);
                          for (int i = 0; i < 3; ++i) c.all_reduce(x.data(), 10, DType::kF32, Reduce::kSum);
                        }),
               "all_reduce of 10 x fp32 on rank 1 of 3: unhandled system error: the last words");
  }
}

// A group is made by all its ranks, and after an error they no longer call alike.
TEST_P(Nccl, NoGroupIsMadeAfterAnError) {
  FAKE(nccl, fake_nccl_fail)("ncclAllReduce", 2, 1);
  expect_all(on_ranks(2, options(),
                      [](Communicator& c) {
                        std::vector<float> x(10);
                        EXPECT_THROW(c.all_reduce(x.data(), 10, DType::kF32, Reduce::kSum), Error);
                        c.split(0, 0);
                      }),
             "all_reduce of 10 x fp32 on rank 1 of 2: unhandled system error");
  EXPECT_EQ(count("ncclCommSplit"), 0);
}

// After an error inside a group the group is closed, and the next communicator of the thread works.
TEST_P(Nccl, AnErrorInsideAGroup) {
  FAKE(nccl, fake_nccl_fail)("ncclSend", 2, 0);
  expect_all(on_ranks(2, options(),
                      [&](Communicator& c) {
                        std::vector<float> x(4), y(4);
                        const std::vector<std::int64_t> two{2, 2};
                        c.all_to_all(x.data(), two, y.data(), two, DType::kF32);
                      }),
             "all_to_all of 4 x fp32 on rank 0 of 2: unhandled system error");
  EXPECT_EQ(count("ncclGroupStart"), count("ncclGroupEnd"));
}

TEST_P(Nccl, AnAsynchronousErrorWakesAll) {
  FAKE(nccl, fake_nccl_async)(6, 2);
  expect_all(on_ranks(4, options(), [](Communicator& c) { c.barrier(); }),
             "barrier on rank 2 of 4: remote process exited");
}

TEST_P(Nccl, AnErrorOfTheStreamIsSeen) {
  expect_all(on_ranks(1, options(),
                      [this](Communicator& c) {
                        FAKE(runtime, fake_runtime_stream_error)(700);
                        double x = 1;
                        c.all_reduce(&x, 1, DType::kF64, Reduce::kSum);
                      }),
             device_text("0: an illegal memory access"));
}

TEST_P(Nccl, AbortWakesWaitersAndEndsLaterCallsOfEveryGroup) {
  const auto errors = on_ranks(3, options(), [](Communicator& c) {
    const auto pair = c.split(c.rank() / 2, 0);
    if (c.rank() == 0) {
      float x = 0;
      EXPECT_THROW(c.recv(&x, 1, DType::kF32, 1), Error);  // rank 1 never sends
      c.barrier();
    } else if (c.rank() == 1) {
      pair->barrier();  // rank 0 never comes
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      c.abort("rank 2 is on fire");
      EXPECT_THROW(pair->barrier(), Error);
      c.barrier();
    }
  });
  expect_all(errors, "rank 2 is on fire");
}

// The buffers are freed as soon as the call throws; the sanitizers see a late use.
TEST_P(Nccl, AbortFromAnotherThreadLeavesNoUseBehind) {
  for (int at = 0; at < 20; ++at)
    expect_all(on_ranks(2, options(),
                        [at](Communicator& c) {
                          std::jthread other([&, at] {
                            std::this_thread::sleep_for(std::chrono::microseconds(at * 100));
                            if (c.rank() == 0) c.abort("stop");
                          });
                          for (;;) {
                            std::vector<float> x(20000, 1.0f);
                            c.all_reduce(x.data(), 20000, DType::kF32, Reduce::kSum);
                            if (x[19999] != 2) throw Error("a wrong sum");
                          }
                        }),
               "stop");
}

TEST_P(Nccl, AbortReachesTheBootstrap) {
  ThreadWorld world(2);
  const auto a = world.communicator(0), b = world.communicator(1);
  std::string error;
  std::thread other([&] {
    try {
      const auto c = open_nccl(*b, 1, options());
      b->barrier();  // waits on the bootstrap, not in NCCL
    } catch (const Error& e) {
      error = e.what();
    }
  });
  {
    const auto c = open_nccl(*a, 0, options());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    c->abort("enough");
    EXPECT_THROW(c->barrier(), Error);
    other.join();
  }
  EXPECT_EQ(error, "enough");
}

TEST_P(Nccl, AHangIsNamedAfterTheTimeout) {
  NcclOptions o = options();
  o.timeout = Seconds(0.2);
  const double start = now().value;
  const auto errors = on_ranks(2, o, [](Communicator& c) {
    float x = 0;
    if (c.rank() == 0) c.recv(&x, 1, DType::kF32, 1);
  });
  EXPECT_NE(errors[0].find("recv of 1 x fp32, rank 1 on rank 0 of 2: not done after 0.2 s"), std::string::npos)
      << errors[0];
  EXPECT_LT(now().value - start, 30);
}

TEST_P(Nccl, DifferentCollectivesAreNoHang) {
  expect_all(on_ranks(2, options(),
                      [](Communicator& c) {
                        std::vector<float> x(4);
                        if (c.rank() == 0)
                          c.all_reduce(x.data(), 4, DType::kF32, Reduce::kSum);
                        else
                          c.broadcast(x.data(), 4, DType::kF32, 0);
                      }),
             "fp32");
}

TEST_P(Nccl, MemoryItCannotReachIsRefusedBeforehand) {
  double host = 1, foreign = 2, mine = 3;
  FAKE(runtime, fake_runtime_pointers)(&host, &foreign);
  for (const std::string& e : on_ranks(1, options(), [&](Communicator& c) {
         const auto text = [&](double* x) -> std::string {
           try {
             c.all_reduce(x, 1, DType::kF64, Reduce::kSum);
           } catch (const Error& e) {
             return e.what();
           }
           return "";
         };
         EXPECT_NE(text(&host).find("plain host memory"), std::string::npos);
         EXPECT_EQ(last_error(), 0) << "what the runtime said of the address is answered";
         EXPECT_NE(text(&foreign).find("memory of " + device_text("1; this communicator is on device 0")),
                   std::string::npos);
         EXPECT_EQ(text(&mine), "") << "and no harm is done";
         EXPECT_THROW(c.all_reduce(&mine, -1, DType::kF64, Reduce::kSum), Error);
         EXPECT_EQ(c.traffic().calls, 1);
         EXPECT_FALSE(c.traffic().wire_bytes || c.traffic().wire_received) << "NCCL cannot be asked";
       }))
    EXPECT_EQ(e, "");
}

// Every call checks its memory before it starts any operation.
TEST_P(Nccl, NoCallTakesMemoryItCannotReach) {
  double host[2] = {1, 2}, mine[2] = {3, 4};
  FAKE(runtime, fake_runtime_pointers)(host, nullptr);
  const std::vector<std::int64_t> ones{1, 1};
  for (const std::string& e : on_ranks(2, options(), [&](Communicator& c) {
         const auto refused = [&](const char* what, auto call) {
           std::string said = "took it";
           try {
             call();
           } catch (const Error& e) {
             said = e.what();
           }
           if (said.find("plain host memory") == std::string::npos) throw Error("{}: {}", what, said);
         };
         const int peer = 1 - c.rank();
         constexpr DType kType = DType::kF64;
         refused("all_reduce", [&] { c.all_reduce(host, 1, kType, Reduce::kSum); });
         refused("reduce_scatter from", [&] { c.reduce_scatter(host, mine, ones, kType, Reduce::kSum); });
         refused("reduce_scatter to", [&] { c.reduce_scatter(mine, host, ones, kType, Reduce::kSum); });
         refused("all_gather from", [&] { c.all_gather(host, mine, ones, kType); });
         refused("all_gather to", [&] { c.all_gather(mine, host, ones, kType); });
         refused("all_to_all from", [&] { c.all_to_all(host, ones, mine, ones, kType); });
         refused("all_to_all to", [&] { c.all_to_all(mine, ones, host, ones, kType); });
         refused("broadcast", [&] { c.broadcast(host, 1, kType, 0); });
         refused("send", [&] { c.send(host, 1, kType, peer); });
         refused("recv", [&] { c.recv(host, 1, kType, peer); });
       }))
    EXPECT_EQ(e, "");
}

// libtorch asks for the thread's last error after each kernel launch.
TEST_P(Nccl, NoErrorOfTheRuntimeStaysBehind) {
  for (const std::string& e : on_ranks(2, options(), [this](Communicator& c) {
         double x = 1;
         if (c.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // rank 1 sees "not ready"
         c.all_reduce(&x, 1, DType::kF64, Reduce::kMax);
         c.barrier();
         EXPECT_EQ(last_error(), 0);
       }))
    EXPECT_EQ(e, "");
}

TEST_P(Nccl, TheHookComesBeforeEachCall) {
  int seen = 0;
  NcclOptions o = options();
  o.before = [&](void* stream) { seen += stream != nullptr; };
  for (const std::string& e : on_ranks(1, o, [](Communicator& c) {
         float x = 1;
         c.all_reduce(&x, 1, DType::kF32, Reduce::kSum);
         c.broadcast(&x, 1, DType::kF32, 0);
         c.barrier();
       }))
    EXPECT_EQ(e, "");
  EXPECT_EQ(seen, 3);
}

TEST_P(Nccl, RanksOfTwoMakersAreRefused) {
  NcclOptions other = options();
  const Maker& maker = GetParam().hip ? kNvidia : kAmd;
  other.runtime = {maker.runtime};
  (maker.hip ? other.rccl : other.nccl) = {maker.collectives};
  const auto errors = on_ranks(2, {options(), other}, [](Communicator&) {});
  expect_all(errors, GetParam().hip ? "rank 0 has RCCL 2.27.3, rank 1 has NCCL 2.27.3"
                                    : "rank 0 has NCCL 2.27.3, rank 1 has RCCL 2.27.3");
}

// Before ROCm 6 the memory type of a device had the number of the host's.
TEST_P(Nccl, AnOldHipIsRefused) {
  const GoldenMessages golden;
  for (const auto& [version, text] : {std::pair{50'731'921, "5.7"}, {50'700'000, "5.7"}, {50'000'000, "5.0"}}) {
    FAKE(runtime, fake_runtime_version)(version);
    const std::string e = refusal<UsageError>(options());
    if (GetParam().hip)
      EXPECT_NE(e.find(fmt::format("is HIP {}; ROCm 6 or newer", text)), std::string::npos) << e;
    else
      EXPECT_EQ(e, "");
  }
}

TEST(NcclApi, VersionsAsText) {
  EXPECT_EQ(nccl::version_text(21403), "2.14.3");
  EXPECT_EQ(nccl::version_text(22703), "2.27.3");
  EXPECT_EQ(nccl::version_text(2708), "2.7.8");
}

}  // namespace
}  // namespace molen::comm
