// Tests the reading of a checkpoint by a group of ranks: random cuts, many rounds, every byte read once.
#include "launch/group_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "arch/parameters.h"
#include "base/filesystem.h"
#include "launch/checkpointing.h"
#include "launch/world.h"

namespace molen::launch {
namespace {

// Counts the bytes that each thread, which is a rank, reads. Does not sync.
class CountingByRank : public FileSystem {
 public:
  std::int64_t read(int fd, void* to, std::size_t size, std::int64_t offset) override {
    const std::int64_t got = FileSystem::read(fd, to, size, offset);
    const std::lock_guard lock(mutex_);
    bytes_[std::this_thread::get_id()] += got;
    return got;
  }
  int sync(int) override { return 0; }
  std::int64_t of(std::thread::id rank) {
    const std::lock_guard lock(mutex_);
    return bytes_[rank];
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    bytes_.clear();
  }

 private:
  std::mutex mutex_;
  std::map<std::thread::id, std::int64_t> bytes_;
};

arch::Architecture small_model() {
  auto a = arch::preset("llama-tiny");
  a.layers = 2, a.hidden = 30, a.ffn = 44, a.heads = 6, a.kv_heads = 3, a.head_dim = 10, a.vocabulary = 71;
  return a;
}

// Cuts a box into `pieces` along dimension `d`, evenly.
std::vector<Box> cut(const Box& box, std::size_t d, std::int64_t pieces) {
  std::vector<Box> parts;
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t first = box.sizes[d] * i / pieces, last = box.sizes[d] * (i + 1) / pieces;
    if (first == last) continue;
    parts.push_back(box);
    parts.back().offsets[d] += first, parts.back().sizes[d] = last - first;
  }
  return parts;
}

class GroupReading : public ::testing::Test {
 protected:
  GroupReading() : parameters_(arch::parameters(arch_)) {}
  ~GroupReading() override { remove_tree(folder_); }

  static float value(std::size_t prefix, std::size_t parameter, std::int64_t position) {
    return static_cast<float>(prefix * 1000000 + parameter * 10000 + static_cast<std::size_t>(position % 9973));
  }

  // Saves all tensors from `ranks` ranks, each tensor cut along one of its dimensions.
  void save(int ranks, const std::function<std::size_t(std::size_t parameter)>& dimension) {
    std::vector<std::vector<checkpoint::Span>> spans(static_cast<std::size_t>(ranks));
    std::deque<std::vector<float>> values;
    for (std::size_t prefix = 0; prefix < prefixes_.size(); ++prefix)
      for (std::size_t p = 0; p < parameters_.size(); ++p) {
        const std::vector<std::int64_t>& shape = parameters_[p].shape;
        const Box whole = whole_box(shape);
        std::vector<float> all(static_cast<std::size_t>(whole.elements()));
        for (std::size_t i = 0; i < all.size(); ++i) all[i] = value(prefix, p, static_cast<std::int64_t>(i));
        const std::vector<Box> parts = cut(whole, dimension(p), ranks);
        for (std::size_t r = 0; r < parts.size(); ++r) {
          std::vector<float>& part = values.emplace_back(static_cast<std::size_t>(parts[r].elements()));
          copy_box(parts[r], whole, all.data(), parts[r], part.data(), 4);
          spans[r].push_back({prefixes_[prefix] + parameters_[p].name, DType::kF32, shape, parts[r], part.data(), {}});
        }
      }
    remove_tree(folder_);
    run_ranks(launch_threads(ranks), [&](comm::Communicator& world) {
      checkpoint::save(spans[static_cast<std::size_t>(world.rank())],
                       {folder_, 1, world.rank(), ranks, agree_over(world), Json{{"x", 1}}, {}, 0});
    });
  }

  struct Read {
    std::int64_t bytes = 0;    // bytes that this rank read
    std::int64_t rounds = 0;   // rounds with an exchange
    std::int64_t largest = 0;  // bytes received in one round
  };
  // Reads needed[rank] on each rank and compares each element.
  std::vector<Read> read(const std::vector<std::vector<program::GlobalBox>>& needed, std::int64_t round_bytes) {
    std::vector<Read> reads(needed.size());
    counting_.forget();
    const checkpoint::Checkpoint from(folder_ / "step-000000001");
    run_ranks(launch_threads(static_cast<int>(needed.size())), [&](comm::Communicator& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      GroupReader reader(from, arch::parameters(arch_), prefixes_, group, round_bytes);
      std::map<std::pair<std::size_t, std::size_t>, std::vector<float>> taken;
      for (std::size_t prefix = 0; prefix < prefixes_.size(); ++prefix)
        for (std::size_t i = 0; i < needed[rank].size(); ++i)
          taken[{prefix, i}].resize(static_cast<std::size_t>(needed[rank][i].box.elements()), -1);
      std::int64_t received = 0;
      const bool all = reader.read(needed[rank], [&](const GroupReader::Piece& piece) {
        EXPECT_EQ(piece.dtype, DType::kF32);
        const Box& box = needed[rank][piece.i].box;
        copy_box(piece.part, piece.held, piece.data, box, taken[{piece.prefix, piece.i}].data(), 4);
        const std::int64_t now = group.traffic_of(comm::CallKind::kAllToAll).wire_received.value();
        reads[rank].largest = std::max(reads[rank].largest, now - std::exchange(received, now));
      });
      EXPECT_TRUE(all);
      reads[rank].bytes = counting_.of(std::this_thread::get_id());
      reads[rank].rounds = group.traffic_of(comm::CallKind::kAllToAll).calls;
      for (const auto& [key, values] : taken) {
        const program::GlobalBox& g = needed[rank][key.second];
        const auto p = static_cast<std::size_t>(g.parameter);
        const Box whole = whole_box(parameters_[p].shape);
        std::vector<float> expected(static_cast<std::size_t>(whole.elements())), part(values.size());
        for (std::size_t i = 0; i < expected.size(); ++i)
          expected[i] = value(key.first, p, static_cast<std::int64_t>(i));
        copy_box(g.box, whole, expected.data(), g.box, part.data(), 4);
        EXPECT_EQ(values, part) << prefixes_[key.first] << parameters_[p].name << " " << text_of(g.box);
      }
    });
    return reads;
  }

  std::int64_t file_bytes() const {
    std::int64_t sum = 0;
    for (const auto& entry : fs::directory_iterator(folder_ / "step-000000001"))
      if (entry.path().extension() == ".safetensors") sum += static_cast<std::int64_t>(entry.file_size());
    return sum;
  }

  const arch::Architecture arch_ = small_model();
  const std::vector<arch::Parameter> parameters_;
  const std::vector<std::string> prefixes_{"", "optimizer.m/"};
  const fs::path folder_ = fs::path(::testing::TempDir()) / fmt::format("molen_group_{}", ::getpid());
  CountingByRank counting_;
  const FileSystemOverride instead_{counting_};
};

std::int64_t total(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

// Each parameter is cut in one way for the ranks that save and in another for those that read. Two ranks may need the
// same box, and a rank may need nothing.
RC_GTEST_FIXTURE_PROP(GroupReading, AnyCutIsReadOnce, ()) {
  save(*rc::gen::inRange(1, 4),
       [&](std::size_t p) { return *rc::gen::inRange<std::size_t>(0, parameters_[p].shape.size()); });
  const int ranks = *rc::gen::inRange(1, 5);
  std::vector<std::vector<program::GlobalBox>> needed(static_cast<std::size_t>(ranks));
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto d = *rc::gen::inRange<std::size_t>(0, parameters_[p].shape.size());
    for (const Box& part : cut(whole_box(parameters_[p].shape), d, *rc::gen::inRange(1, 5)))
      for (int copy = *rc::gen::inRange(0, 2); copy < 2; ++copy) {
        auto& own = needed[*rc::gen::inRange<std::size_t>(0, needed.size())];
        const bool held = std::any_of(own.begin(), own.end(), [&](const program::GlobalBox& g) {
          return g.parameter == static_cast<int>(p) && g.box == part;
        });
        if (!held) own.push_back({static_cast<int>(p), 0, part});
      }
  }
  std::vector<std::int64_t> bytes;
  for (const Read& r : read(needed, *rc::gen::element<std::int64_t>(1, 1000, 1 << 24))) bytes.push_back(r.bytes);
  RC_ASSERT(total(bytes) == file_bytes());
}

// Ranks that need the same number of columns read about the same number of bytes, and receive a few blocks at a time.
TEST_F(GroupReading, ColumnsAreReadInTurns) {
  save(2, [](std::size_t) { return 0; });
  std::vector<std::vector<program::GlobalBox>> needed(3);
  std::int64_t largest = 0;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const Box whole = whole_box(parameters_[p].shape);
    largest = std::max(largest, 4 * whole.elements() / 2);
    const auto parts = cut(whole, whole.sizes.size() - 1, 3);
    for (std::size_t r = 0; r < 3; ++r) needed[r].push_back({static_cast<int>(p), 0, parts[r]});
  }
  std::map<std::int64_t, std::int64_t> rounds;
  for (const std::int64_t round_bytes : {1000, 10000, 1 << 24}) {
    const auto reads = read(needed, round_bytes);
    std::vector<std::int64_t> bytes;
    for (const Read& r : reads) {
      bytes.push_back(r.bytes);
      EXPECT_LE(r.largest, std::max(round_bytes, largest));
      EXPECT_EQ(r.rounds, reads[0].rounds);
      EXPECT_GT(r.largest, 0);
    }
    EXPECT_EQ(total(bytes), file_bytes());
    const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
    EXPECT_LE(*most - *least, 2 * largest + 2 * (file_bytes() - 4 * 2 * arch::num_parameters(arch_)));  // headers
    rounds[round_bytes] = reads[0].rounds;
  }
  EXPECT_GT(rounds[1000], rounds[10000]);
  EXPECT_GT(rounds[10000], 4);
  EXPECT_EQ(rounds[1 << 24], 1);
}

// A rank that needs little of a block does not read it, even if it has read nothing yet.
TEST_F(GroupReading, WhoNeedsMostReads) {
  save(1, [](std::size_t) { return 0; });
  std::vector<std::vector<program::GlobalBox>> needed(2);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto parts = cut(whole_box(parameters_[p].shape), 0, 8);
    for (std::size_t i = 0; i < 8; ++i) needed[i == 7 ? 1 : 0].push_back({static_cast<int>(p), 0, parts[i]});
  }
  const auto reads = read(needed, 1 << 24);
  EXPECT_EQ(reads[0].bytes, file_bytes());
  EXPECT_EQ(reads[1].bytes, 0);
  EXPECT_GT(reads[1].largest, 0);
}

// Blocks that ranks read for themselves alone are not sent, and no empty exchange announces them.
TEST_F(GroupReading, WhatOneRankNeedsIsNotExchanged) {
  save(2, [](std::size_t) { return 0; });
  std::vector<std::vector<program::GlobalBox>> needed(2);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto parts = cut(whole_box(parameters_[p].shape), 0, 2);
    for (std::size_t r = 0; r < 2; ++r) needed[r].push_back({static_cast<int>(p), 0, parts[r]});
  }
  for (const Read& r : read(needed, 1000)) EXPECT_EQ(r.rounds, 0);
}

}  // namespace
}  // namespace molen::launch
