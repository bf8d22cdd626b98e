// Made tests/golden/checkpoint/version-1 with the sources of commit 0f58bcb, the last that writes format version 1:
//   git archive 0f58bcb src | tar -x -C old
//   g++ -std=c++20 -Iold/src -I. tests/golden/checkpoint/make_version_1.cpp old/src/checkpoint/{checkpoint,naming,save,
//       safetensors,safetensors_io}.cpp old/src/base/{dtype,error,file,json,suggest}.cpp -lfmt -lcrypto -lxxhash -o
//       make
//   ./make tests/golden/checkpoint/version-1
// Three ranks, as layouts of then cut them: whole, by rows of columns (tensor ranks), and flat (ZeRO).
#include <atomic>
#include <barrier>
#include <cstdio>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "src/checkpoint/test_golden.h"

using namespace molen;
namespace golden = molen::checkpoint::golden;

int main(int, char** argv) {
  constexpr int kRanks = 3;
  std::vector<std::vector<char>> values;
  std::vector<std::vector<checkpoint::Span>> spans(kRanks);
  for (const auto& tensor : golden::tensors()) values.push_back(golden::bytes_of(tensor));
  const auto give = [&](int rank, std::size_t t, std::int64_t offset, std::int64_t count) {
    const auto& tensor = golden::tensors()[t];
    const char* data = values[t].data() + offset * size_of(tensor.dtype);
    spans[static_cast<std::size_t>(rank)].push_back(
        {std::string(tensor.name), tensor.dtype, tensor.shape, offset, count, data, {}});
  };
  give(0, 0, 0, 72);
  for (int row = 0; row < 5; ++row) give(1, 1, row * 8, 5), give(2, 1, row * 8 + 5, 3);
  give(2, 2, 0, 16), give(0, 2, 16, 16), give(1, 2, 32, 1);
  give(0, 3, 0, 20), give(1, 3, 20, 21), give(2, 3, 41, 22);
  give(0, 4, 0, 17), give(2, 4, 17, 30), give(1, 4, 47, 13);
  give(1, 5, 0, 4), give(0, 5, 4, 5);
  give(2, 6, 0, 1);
  give(0, 7, 0, 0);
  std::barrier barrier(kRanks);
  std::atomic<int> failures = 0;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const checkpoint::SetFlag agree = [&](bool ok) {
        if (!ok) ++failures;
        barrier.arrive_and_wait();
        const bool all = failures == 0;
        barrier.arrive_and_wait();
        return all;
      };
      checkpoint::save(spans[static_cast<std::size_t>(rank)],
                       {argv[1],
                        42,
                        rank,
                        kRanks,
                        agree,
                        Json{{"step_done", 42}, {"text", "een \xc3\xa9\xc3\xa9n"}, {"loss", 0.1}},
                        {{"tokenizer.json", "{\"version\": \"1.0\"}\n"}, {"config.toml", "[run]\nname = \"golden\"\n"}},
                        0});
    });
  threads.clear();
  return failures;
}
