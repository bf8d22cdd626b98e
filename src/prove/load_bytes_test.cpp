// Tests how much a load reads, counted in the file system's calls. Each needed byte is read once, in whole blocks, and
// hashed once. MOLEN_LOAD_MIB sets the size of the state (tools/nightly.sh load: 1024).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <span>

#include "arch/parameters.h"
#include "base/error.h"
#include "base/file.h"
#include "base/filesystem.h"
#include "base/test_filesystem.h"
#include "checkpoint/safetensors.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

// Counts the bytes that are read. It does not sync.
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
  // The state has weights and two moments in fp32.
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
const std::array kLayouts{
    Named{"1 rank", over_shards(1, 0)},           Named{"NO_SHARD 2", over_shards(2, 0)},
    Named{"FULL_SHARD 2", over_shards(2, 3)},     Named{"TP 2", over_shards(1, 0, 2)},
    Named{"PP 2", over_shards(1, 0, 1, 2)},       Named{"TP 2 x FULL_SHARD 2", over_shards(2, 3, 2)},
    Named{"TP 2 x PP 2", over_shards(1, 0, 2, 2)}};

// Runs `action` with each rank's executor.
void on_executors(const arch::Architecture& a, const suite::Layout& layout,
                  const std::function<void(exec::Executor&, comm::Communicator&)>& action,
                  DType compute = DType::kF32) {
  const program::Setting setting = suite::setting_of(layout, compute);
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
    launch::load_state(checkpoint::Checkpoint(path), executor, world, false);
    world.barrier();
    if (world.rank() == 0) {
      loaded.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      read = counting.bytes();
    }
    const std::string hash = launch::state_hash(executor, world);
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
        launch::initialize_parameters(executor, 9, 1);
        for (const char* family : {"m", "v"})
          for (int u = 0; u < static_cast<int>(executor.program().units.size()); ++u) {
            at::Tensor t = executor.state(family, u);
            t.copy_(at::arange(t.numel(), t.options()).remainder_(8191).add_(u));
          }
        const auto saved_at =
            checkpoint::save(launch::spans_of(executor),
                             {folder, 4, world.rank(), world.size(), launch::agree_over(world), Json{{"x", 1}}, {}, 0});
        const std::string own = launch::state_hash(executor, world);
        if (world.rank() == 0) path = saved_at, hash = own;
      });
    }
    for (const Named& loading : kLayouts) {
      const Loaded loaded = load(a, loading.layout, path);
      EXPECT_EQ(loaded.hash, hash) << saved.name << " to " << loading.name;
      EXPECT_GE(loaded.ratio, 1.0);
      EXPECT_LE(loaded.ratio, 1.02) << saved.name << " to " << loading.name;
      worst = std::max(worst, loaded.ratio);
      fmt::print("{:>20} to {:<20} {:.4f} bytes read over bytes needed, {:.2f} s\n", saved.name, loading.name,
                 loaded.ratio, loaded.seconds);
    }
    remove_tree(folder);
  }
  fmt::print("bytes read over bytes needed: {:.4f}\n", worst);
}

// Calls `action` with each run of elements that this rank holds of a storage, and with the values of these elements.
// The values follow from parameter and position alone.
void each_run(const exec::Executor& executor, const std::string& storage, int family,
              const std::function<void(at::Tensor held, const at::Tensor& values, const std::string& name)>& action) {
  const program::Program& p = executor.program();
  const auto parameters = arch::parameters(p.arch);
  for (int u = 0; u < static_cast<int>(p.units.size()); ++u) {
    const auto [first, last] = executor.state_range(storage, u);
    for (const auto& g : program::global_boxes(p, executor.coordinates(), u, first, last)) {
      const arch::Parameter& parameter = parameters[static_cast<std::size_t>(g.parameter)];
      at::Tensor position = at::zeros(g.box.sizes, at::kLong);
      for (std::size_t d = 0; d < g.box.sizes.size(); ++d) {
        std::vector<std::int64_t> along(g.box.sizes.size(), 1);
        along[d] = g.box.sizes[d];
        position.mul_(parameter.shape[d])
            .add_(at::arange(g.box.sizes[d], at::kLong).add_(g.box.offsets[d]).view(along));
      }
      position.mul_(3).add_(1009 * g.parameter + 101 * family).remainder_(8191);
      const at::Tensor held = executor.state(storage, u).narrow(0, g.unit_first - first, g.box.elements());
      action(held, position.view(-1).to(held.scalar_type()), storage + " of " + parameter.name);
    }
  }
}

void every_element_arrives(const arch::Architecture& a, std::span<const suite::Layout> saved,
                           std::span<const suite::Layout> loading, DType compute = DType::kF32) {
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("molen_pieces_{}", ::getpid());
  const std::array<std::string, 3> families{"param", "m", "v"};
  for (const suite::Layout& from : saved) {
    fs::path path;
    {
      CountingFileSystem unsynced;
      const FileSystemOverride instead(unsynced);
      on_executors(a, from, [&](exec::Executor& executor, comm::Communicator& world) {
        for (int f = 0; f < 3; ++f)
          each_run(executor, families[static_cast<std::size_t>(f)], f,
                   [](at::Tensor held, const at::Tensor& values, const std::string&) { held.copy_(values); });
        const auto saved_at =
            checkpoint::save(launch::spans_of(executor),
                             {folder, 4, world.rank(), world.size(), launch::agree_over(world), Json{{"x", 1}}, {}, 0});
        if (world.rank() == 0) path = saved_at;
      });
    }
    for (const suite::Layout& to : loading) {
      CountingFileSystem counting;
      const FileSystemOverride instead(counting);
      on_executors(
          a, to,
          [&](exec::Executor& executor, comm::Communicator& world) {
            launch::load_state(checkpoint::Checkpoint(path), executor, world, false);
            const auto equal = [&](at::Tensor held, const at::Tensor& values, const std::string& name) {
              EXPECT_TRUE(at::equal(held, values)) << name << " on rank " << world.rank() << " of " << world.size();
            };
            for (int f = 0; f < 3; ++f) each_run(executor, families[static_cast<std::size_t>(f)], f, equal);
            if (executor.has_state("master")) each_run(executor, "master", 0, equal);
          },
          compute);
      EXPECT_LE(static_cast<double>(counting.bytes()), 1.02 * static_cast<double>(12 * arch::num_parameters(a)));
    }
    remove_tree(folder);
  }
}

suite::Layout hybrid() {
  suite::Layout l = over_shards(2, 3);
  l.replicas = 2;
  return l;
}

// Columns and shards end within blocks, because every tensor of the MLP is larger than one block.
TEST(LoadedBytes, EveryElementOfLargeTensorsArrives) {
  arch::Architecture a = model();
  a.hidden = 64, a.ffn = 66000, a.head_dim = 16, a.layers = 1, a.vocabulary = 1000, a.tied = true;
  every_element_arrives(a, std::vector{over_shards(1, 0), over_shards(2, 3, 2)},
                        std::vector{over_shards(1, 0, 2), over_shards(2, 3, 2), hybrid()});
}

// Ranks exchange large units in several messages. Such units are the copies of a unit, and an embedding that the ends
// of a pipeline share.
TEST(LoadedBytes, EveryElementOfALargeUnitArrives) {
  arch::Architecture a = model();
  a.hidden = 64, a.ffn = 96, a.head_dim = 16, a.layers = 2, a.vocabulary = 40000, a.tied = true;
  for (const DType compute : {DType::kF32, DType::kBF16})  // with master weights beside the parameters
    every_element_arrives(
        a, std::vector{over_shards(1, 0)},
        std::vector{over_shards(2, 0), over_shards(2, 1), over_shards(1, 0, 1, 2), over_shards(2, 3, 2, 2)}, compute);
}

// A checkpoint that was made from weights alone has no moments. Those that a rank holds stay as they are, on every
// rank.
TEST(LoadedBytes, WeightsAloneLeaveTheMoments) {
  arch::Architecture a = suite::llama(true);
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("molen_weights_{}", ::getpid());
  CountingFileSystem unsynced;
  const FileSystemOverride instead(unsynced);
  fs::path path;
  on_executors(a, over_shards(1, 0), [&](exec::Executor& executor, comm::Communicator& world) {
    each_run(executor, "param", 0,
             [](at::Tensor held, const at::Tensor& values, const std::string&) { held.copy_(values); });
    std::vector<checkpoint::Span> weights = launch::spans_of(executor);
    std::erase_if(weights, [](const checkpoint::Span& span) { return span.tensor.starts_with("optimizer."); });
    path = checkpoint::save(weights, {folder, 4, 0, 1, launch::agree_over(world), Json{{"x", 1}}, {}, 0});
  });
  for (const suite::Layout& to : {over_shards(1, 0), over_shards(2, 1), over_shards(1, 0, 1, 2)})
    for (const DType compute : {DType::kF32, DType::kBF16})
      on_executors(
          a, to,
          [&](exec::Executor& executor, comm::Communicator& world) {
            for (const char* moment : {"m", "v"})
              for (int u = 0; u < static_cast<int>(executor.program().units.size()); ++u)
                executor.state(moment, u).fill_(3);
            launch::load_state(checkpoint::Checkpoint(path), executor, world, true);
            const auto equal = [&](at::Tensor held, const at::Tensor& values, const std::string& name) {
              EXPECT_TRUE(at::equal(held, values)) << name << " on rank " << world.rank() << " of " << world.size();
            };
            const auto untouched = [&](at::Tensor held, const at::Tensor&, const std::string& name) {
              EXPECT_TRUE(held.eq(3).all().item<bool>()) << name;
            };
            each_run(executor, "param", 0, equal);
            if (executor.has_state("master")) each_run(executor, "master", 0, equal);
            for (const char* moment : {"m", "v"}) each_run(executor, moment, 0, untouched);
          },
          compute);
  remove_tree(folder);
}

// The messages of one rank about a damaged checkpoint that it had to load, one for each kind of damage.
struct Said {
  std::string damaged, unreadable, other, hash;
};
std::vector<Said> said_by_ranks(const arch::Architecture& a, const suite::Layout& layout, const fs::path& path,
                                const std::function<void()>& mended) {
  std::vector<Said> said(static_cast<std::size_t>(layout.ranks()));
  on_executors(a, layout, [&](exec::Executor& executor, comm::Communicator& world) {
    Said& own = said[static_cast<std::size_t>(world.rank())];
    try {
      launch::load_state(checkpoint::Checkpoint(path), executor, world, false);
    } catch (const DamagedError& error) {
      own.damaged = error.what();
    } catch (const IoError& error) {
      own.unreadable = fmt::format("{} ({})", error.what(), error.code());
    } catch (const std::exception& error) {
      own.other = error.what();
    }
    // The ranks can continue together, as a run does that sets the checkpoint aside.
    world.barrier();
    if (world.rank() == 0) mended();
    world.barrier();
    launch::load_state(checkpoint::Checkpoint(path), executor, world, false);
    own.hash = launch::state_hash(executor, world);
  });
  return said;
}

// One rank reads a block for others, so an error that it meets must be reported on all ranks.
TEST(LoadedBytes, AllRanksSayAlikeWhatOneMeets) {
  arch::Architecture a = suite::llama(false);
  a.heads = 4, a.kv_heads = 2, a.hidden = 32, a.head_dim = 8;
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("molen_faults_{}", ::getpid());
  const suite::Layout cuts = over_shards(2, 3, 2, 2);
  fs::path path;
  std::string hash;
  {
    CountingFileSystem unsynced;
    const FileSystemOverride instead(unsynced);
    on_executors(a, over_shards(1, 0), [&](exec::Executor& executor, comm::Communicator& world) {
      launch::initialize_parameters(executor, 9, 1);
      path = checkpoint::save(launch::spans_of(executor),
                              {folder, 4, 0, 1, launch::agree_over(world), Json{{"x", 1}}, {}, 0});
      hash = launch::state_hash(executor, world);
    });
  }
  const fs::path data = path / "rank-00000.safetensors";
  const std::string sound = read_file(data);
  const auto tensors = checkpoint::SafetensorsFile(data).header();
  FaultyFileSystem faulty(folder);
  const FileSystemOverride instead(faulty);
  for (const char* name : {"model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.q_proj.weight",
                           "model.norm.weight", "optimizer.v/model.embed_tokens.weight"}) {
    const auto info = std::find_if(tensors.tensors.begin(), tensors.tensors.end(),
                                   [&](const checkpoint::TensorInfo& t) { return t.name == name; });
    ASSERT_NE(info, tensors.tensors.end()) << name;
    std::string wrong = sound;
    wrong[tensors.buffer_begin + info->begin + 5] ^= 1;
    write_file_unsynced(data, wrong);
    const auto said = said_by_ranks(a, cuts, path, [&] { write_file_unsynced(data, sound); });
    for (const Said& s : said) {
      EXPECT_NE(s.damaged.find(std::string("tensor '") + name + "' does not match its hash"), std::string::npos)
          << s.damaged << s.unreadable << s.other;
      EXPECT_EQ(s.damaged, said[0].damaged);
      EXPECT_EQ(s.hash, hash);
    }
  }
  std::atomic<std::int64_t> reads = 0, failing = 0;
  faulty.on_read = [&](const fs::path& file) { return file == data && ++reads == failing ? -EIO : 0; };
  said_by_ranks(a, cuts, path, [] {});
  const std::int64_t most = reads / 2;
  ASSERT_GT(most, 50);
  for (std::int64_t at = 1; at <= most; at += 7) {  // some of these reads are of headers, others of blocks
    reads = 0, failing = at;
    const auto said = said_by_ranks(a, cuts, path, [&] { failing = 0; });
    for (const Said& s : said) {
      EXPECT_NE(s.unreadable.find(fmt::format("({})", EIO)), std::string::npos) << s.damaged << s.other << at;
      EXPECT_EQ(s.unreadable, said[0].unreadable);
      EXPECT_EQ(s.hash, hash);
    }
  }
  remove_tree(folder);
}

}  // namespace
}  // namespace molen::prove
