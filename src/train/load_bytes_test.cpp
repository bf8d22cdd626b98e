// Tests how much a load reads, counted in the file system's calls: each needed byte once, in whole blocks, hashed once.
// MOLEN_LOAD_MIB sets the size of the state (tools/nightly.sh load: 1024).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>

#include "arch/parameters.h"
#include "base/filesystem.h"
#include "train/layouts_suite.h"

namespace molen::train {
namespace {

// Counts the bytes read; does not sync.
class CountingFileSystem : public FileSystem {
 public:
  std::int64_t read(int fd, void* to, std::size_t size, std::int64_t offset) override {
    const std::int64_t got = FileSystem::read(fd, to, size, offset);
    if (got > 0) bytes_ += got;
    return got;
  }
  int sync(int) override { return 0; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::atomic<std::int64_t> bytes_ = 0;
};

constexpr std::int64_t kSmallMib = 30;

arch::Architecture model() {
  const char* asked = std::getenv("MOLEN_LOAD_MIB");
  const std::int64_t mib = asked ? std::atoll(asked) : kSmallMib;
  auto a = arch::preset("llama-tiny");
  a.name = "test", a.heads = 4, a.kv_heads = 2, a.max_sequence = 64;
  a.hidden = mib > 100 ? 1024 : 256, a.ffn = a.hidden * 3, a.head_dim = a.hidden / 4, a.vocabulary = 8 * a.hidden;
  // Weights and two moments in fp32.
  for (a.layers = 2; 12 * arch::num_parameters(a) < mib << 20;) a.layers += 2;
  return a;
}

struct Named {
  const char* name;
  suite::Layout layout;
};
suite::Layout over_shards(int shards, int zero, int tensor = 1, int stages = 1) {
  suite::Layout l{shards, zero, false, 1};
  l.tensor = tensor, l.stages = stages;
  return l;
}
const std::array kLayouts{Named{"1 rank", over_shards(1, 0)},       Named{"NO_SHARD 2", over_shards(2, 0)},
                          Named{"FULL_SHARD 2", over_shards(2, 3)}, Named{"TP 2", over_shards(1, 0, 2)},
                          Named{"PP 2", over_shards(1, 0, 1, 2)},   Named{"TP 2 x FULL_SHARD 2", over_shards(2, 3, 2)}};

// Runs `action` with each rank's executor.
void on_executors(const arch::Architecture& a, const suite::Layout& layout,
                  const std::function<void(exec::Executor&, comm::Communicator&)>& action) {
  const program::Setting setting = suite::setting_of(layout, DType::kF32);
  suite::on_ranks(setting.ranks(), [&](comm::Communicator& world) {
    exec::Executor executor(program::build(a, program::at_rank(setting, world.rank())), world.rank(), &world, {});
    action(executor, world);
  });
}

struct Loaded {
  double ratio = 0, seconds = 0;
  std::string hash;
};

Loaded load(const arch::Architecture& a, const suite::Layout& layout, const fs::path& path) {
  CountingFileSystem counting;
  const FileSystemOverride instead(counting);
  Loaded loaded;
  std::int64_t read = 0;
  on_executors(a, layout, [&](exec::Executor& executor, comm::Communicator& world) {
    const auto start = std::chrono::steady_clock::now();
    load_state(checkpoint::Checkpoint(path), executor, world, false);
    world.barrier();
    if (world.rank() == 0) {
      loaded.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      read = counting.bytes();
    }
    const std::string hash = state_hash(executor, world);
    if (world.rank() == 0) loaded.hash = hash;
  });
  loaded.ratio = static_cast<double>(read) / static_cast<double>(12 * arch::num_parameters(a));
  return loaded;
}

TEST(LoadedBytes, EachByteOnce) {
  const arch::Architecture a = model();
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("molen_load_{}", ::getpid());
  fmt::print("a state of {:.0f} MiB\n", static_cast<double>(12 * arch::num_parameters(a)) / (1 << 20));
  double worst = 0;
  for (const Named& saved : kLayouts) {
    fs::path path;
    std::string hash;
    {
      CountingFileSystem unsynced;
      const FileSystemOverride instead(unsynced);
      on_executors(a, saved.layout, [&](exec::Executor& executor, comm::Communicator& world) {
        initialize_parameters(executor, 9, 1);
        for (const char* family : {"m", "v"})
          for (int u = 0; u < static_cast<int>(executor.program().units.size()); ++u) {
            at::Tensor t = executor.state(family, u);
            t.copy_(at::arange(t.numel(), t.options()).remainder_(8191).add_(u));
          }
        const auto saved_at = checkpoint::save(
            spans_of(executor), {folder, 4, world.rank(), world.size(), agree_over(world), Json{{"x", 1}}, {}, 0});
        const std::string own = state_hash(executor, world);
        if (world.rank() == 0) path = saved_at, hash = own;
      });
    }
    for (const Named& loading : kLayouts) {
      const bool same = loading.name == saved.name, alone = loading.layout.ranks() == 1;
      // Ranks that hold whole units exchange their parts. Between other layouts a block may hold parts of several
      // ranks; each of those ranks then reads it.
      const bool once = same || alone || loading.layout.ranks() == loading.layout.shards * (loading.layout.zero == 0) ||
                        loading.layout.ranks() == loading.layout.stages;
      if (!once && saved.layout.ranks() > 1) continue;
      const Loaded loaded = load(a, loading.layout, path);
      EXPECT_EQ(loaded.hash, hash) << saved.name << " to " << loading.name;
      EXPECT_GE(loaded.ratio, 1.0);
      EXPECT_LE(loaded.ratio, once ? 1.02 : loading.layout.ranks() + 0.02) << saved.name << " to " << loading.name;
      if (once) worst = std::max(worst, loaded.ratio);
      fmt::print("{:>20} to {:<20} {:.4f} bytes read over bytes needed, {:.2f} s\n", saved.name, loading.name,
                 loaded.ratio, loaded.seconds);
    }
    remove_tree(folder);
  }
  fmt::print("bytes read over bytes needed: {:.4f}\n", worst);
}

// Ranks exchange large units in several messages: copies of a unit, and an embedding that the ends of a pipeline share.
TEST(LoadedBytes, EveryPieceOfALargeUnitArrives) {
  arch::Architecture a = model();
  a.hidden = 64, a.ffn = 96, a.head_dim = 16, a.layers = 2, a.vocabulary = 40000, a.tied = true;
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("molen_pieces_{}", ::getpid());
  CountingFileSystem unsynced;
  const FileSystemOverride instead(unsynced);
  const auto embedding_of = [](const exec::Executor& executor) { return executor.program().find_unit("embed"); };
  const auto counting = [](std::int64_t n, std::int64_t from) {
    return at::arange(n, at::kFloat).remainder_(8191).add_(from);
  };
  fs::path path;
  on_executors(a, over_shards(1, 0), [&](exec::Executor& executor, comm::Communicator& world) {
    std::int64_t from = 0;
    for (const char* family : {"param", "m", "v"}) {
      at::Tensor t = executor.state(family, embedding_of(executor));
      t.copy_(counting(t.numel(), from++));
    }
    path = checkpoint::save(spans_of(executor), {folder, 4, 0, 1, agree_over(world), Json{{"x", 1}}, {}, 0});
  });
  for (const auto& layout : {over_shards(2, 0), over_shards(1, 0, 1, 2)})
    on_executors(a, layout, [&](exec::Executor& executor, comm::Communicator& world) {
      const int unit = embedding_of(executor);
      ASSERT_GE(unit, 0);
      load_state(checkpoint::Checkpoint(path), executor, world, false);
      std::int64_t from = 0;
      for (const char* family : {"param", "m", "v"}) {
        const at::Tensor t = executor.state(family, unit).narrow(0, 0, a.vocabulary * a.hidden);
        EXPECT_TRUE(at::equal(t, counting(t.numel(), from++))) << family << " of rank " << world.rank();
      }
    });
  remove_tree(folder);
}

}  // namespace
}  // namespace molen::train
