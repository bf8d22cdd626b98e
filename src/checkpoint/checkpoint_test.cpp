// Tests saving and loading over any cut into slices and ranks, damage of every kind, full disks, pruning.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/test_bounds.h"
#include "base/test_filesystem.h"
#include "base/test_golden.h"
#include "checkpoint/digest.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_folder.h"
#include "checkpoint/test_golden.h"
#include "checkpoint/test_ranks.h"

namespace molen::checkpoint {
namespace {

// A tensor whose elements all differ.
std::vector<float> ramp(std::int64_t count, float first = 0.5f) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

Span whole(const std::string& name, const std::vector<float>& values, std::vector<std::int64_t> shape) {
  return {name, DType::kF32, shape, whole_box(shape), values.data(), {}};
}

Span part(const std::string& name, const std::vector<float>& values, std::int64_t offset, std::int64_t count) {
  return {name, DType::kF32, {static_cast<std::int64_t>(values.size())}, {{offset}, {count}}, values.data() + offset,
          {}};
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
    return "";
  } catch (const Error& error) {
    return GoldenMessages::note(error.what());
  }
}

fs::path save_one(const fs::path& directory, std::int64_t step, const std::vector<float>& values, int keep = 0) {
  return save({whole("w", values, {static_cast<std::int64_t>(values.size())})},
              {.directory = directory,
               .step = step,
               .rank = 0,
               .ranks = 1,
               .agree = {},
               .state = {{"tokens", step * 10}},
               .attachments = {{"tokenizer.json", "{}"}},
               .keep = keep});
}

TEST(Checkpoint, ReturnsStateTensorsAndAttachments) {
  const GoldenMessages golden;
  const TestFolder folder;
  const auto values = ramp(35);
  const fs::path path = save_one(folder.path(), 12, values);
  EXPECT_EQ(path.filename(), "step-000000012");
  const Checkpoint checkpoint(path);
  EXPECT_EQ(checkpoint.step(), 12);
  EXPECT_EQ(checkpoint.state()["tokens"], 120);
  EXPECT_EQ(checkpoint.attachment("tokenizer.json"), "{}");
  std::vector<float> got(35);
  checkpoint.read("w", 0, 35, got.data());
  EXPECT_EQ(got, values);
  EXPECT_NOTED(checkpoint.read("v", 0, 1, got.data()), UsageError);
  EXPECT_NOTED(checkpoint.read("w", 30, 6, got.data()), Error);
  EXPECT_EQ(verify(path).bytes, 140);
  // A whole tensor keeps its name and shape in the data file: other safetensors readers can open it.
  EXPECT_EQ(SafetensorsFile(path / "rank-00000.safetensors").at("w").shape, std::vector<std::int64_t>{35});
}

// The main property: however the tensors are cut and spread over ranks, any range reads back the same bits, and the
// digest does not change.
RC_GTEST_PROP(Checkpoint, AnyCutReadsBackTheSame, ()) {
  const TestFolder folder;
  const int ranks = *rc::gen::inRange(1, 5);
  const std::int64_t size = *rc::gen::inRange(1, 300);
  const auto a = ramp(size), b = ramp(size * 2, -7.0f);
  std::vector<std::vector<Span>> spans(static_cast<std::size_t>(ranks));
  StateDigest in_parts, at_once;
  for (const auto& [name, values] : {std::pair("a", &a), std::pair("b", &b)}) {
    const auto total = static_cast<std::int64_t>(values->size());
    for (std::int64_t at = 0; at < total;) {
      const std::int64_t count = std::min<std::int64_t>(total - at, *rc::gen::inRange(1, 120));
      const int rank = *rc::gen::inRange(0, ranks);
      spans[static_cast<std::size_t>(rank)].push_back(part(name, *values, at, count));
      in_parts.add(name, DType::kF32, {total}, at, count, values->data() + at);
      at += count;
    }
    at_once.add(name, DType::kF32, {total}, 0, total, values->data());
  }
  for (const auto& error : save_ranks(spans, folder.path(), 3)) RC_ASSERT(error == "");
  const Checkpoint checkpoint(*latest(folder.path()));
  const std::int64_t offset = *rc::gen::inRange<std::int64_t>(0, 2 * size),
                     count = *rc::gen::inRange<std::int64_t>(0, 2 * size - offset + 1);
  std::vector<float> got(static_cast<std::size_t>(count));
  checkpoint.read("b", offset, count, got.data());
  RC_ASSERT(std::equal(got.begin(), got.end(), b.begin() + offset));
  RC_ASSERT(in_parts.hex() == at_once.hex());
  RC_ASSERT(state_digest(checkpoint).hex() == at_once.hex());
}

TEST(Checkpoint, SpansSeveralHashBlocks) {
  const TestFolder folder;
  const std::int64_t count = 2 * kBlockBytes / 4 + 5001;
  const auto values = ramp(count);
  // One slice comes from memory, the other through the callback `read`; they meet at no border of a block.
  Span second = part("w", values, 4001, count - 4001);
  second.data = nullptr;
  second.read = [&](std::int64_t offset, std::int64_t n, void* out) {
    std::memcpy(out, values.data() + 4001 + offset, static_cast<std::size_t>(n) * 4);
  };
  save({part("w", values, 0, 4001), second}, {.directory = folder.path(),
                                              .step = 1,
                                              .rank = 0,
                                              .ranks = 1,
                                              .agree = {},
                                              .state = {},
                                              .attachments = {},
                                              .keep = 0});
  const Checkpoint checkpoint(*latest(folder.path()));
  std::vector<float> got(static_cast<std::size_t>(count));
  checkpoint.read("w", 0, count, got.data());
  EXPECT_EQ(got, values);
  const std::int64_t offset = kBlockBytes / 4 - 3, length = kBlockBytes / 4 + 7;
  got.assign(static_cast<std::size_t>(length), 0.0f);
  checkpoint.read("w", offset, length, got.data());
  EXPECT_TRUE(std::equal(got.begin(), got.end(), values.begin() + offset));
  EXPECT_EQ(verify(checkpoint.path()).blocks, 4);
}

// A block of a matrix that ends within a row is made of several boxes.
TEST(Checkpoint, BlocksEndWithinRows) {
  const TestFolder folder;
  const std::int64_t rows = 5, columns = kBlockBytes / 4 / 2 - 3;
  const auto values = ramp(rows * columns);
  save({whole("w", values, {rows, columns})}, {.directory = folder.path(),
                                               .step = 1,
                                               .rank = 0,
                                               .ranks = 1,
                                               .agree = {},
                                               .state = {},
                                               .attachments = {},
                                               .keep = 0});
  const Checkpoint checkpoint(*latest(folder.path()));
  EXPECT_EQ(verify(checkpoint.path()).blocks, 3);
  std::vector<float> got(values.size());
  checkpoint.read("w", 0, rows * columns, got.data());
  EXPECT_TRUE(got == values);
}

TEST(Checkpoint, DigestSeesEveryChange) {
  const auto values = ramp(10);
  const auto digest = [](const std::string& name, DType dtype, std::vector<std::int64_t> shape, std::int64_t offset,
                         std::vector<float> v) {
    StateDigest d;
    d.add(name, dtype, shape, offset, 5, v.data());
    return d.hex();
  };
  auto other = values;
  std::swap(other[0], other[1]);
  const std::string base = digest("w", DType::kF32, {10}, 0, values);
  EXPECT_NE(base, digest("v", DType::kF32, {10}, 0, values));
  EXPECT_NE(base, digest("w", DType::kI32, {10}, 0, values));
  EXPECT_NE(base, digest("w", DType::kF32, {2, 5}, 0, values));
  EXPECT_NE(base, digest("w", DType::kF32, {10}, 5, values));
  EXPECT_NE(base, digest("w", DType::kF32, {10}, 0, other));
  EXPECT_NE(digest("w", DType::kF32, {10}, 0, std::vector<float>(10, 0.0f)), StateDigest().hex());
}

TEST(Checkpoint, RefusesSlicesThatDoNotTile) {
  const auto values = ramp(20);
  const auto errors_of = [&](std::vector<std::vector<Span>> spans) {
    const TestFolder folder;
    const auto errors = save_ranks(spans, folder.path(), 1);
    EXPECT_TRUE(fs::is_empty(folder.path())) << "nothing may be left";
    for (const auto& error : errors) EXPECT_NE(error, "");
    return errors[0];
  };
  EXPECT_NE(
      errors_of({{part("w", values, 0, 10)}, {part("w", values, 11, 9)}}).find("no slice has the elements at [10]"),
      std::string::npos);
  EXPECT_NE(errors_of({{part("w", values, 0, 10)}, {part("w", values, 9, 11)}})
                .find("several slices have the elements at [9]"),
            std::string::npos);
  EXPECT_NE(errors_of({{part("w", values, 0, 10)}, {}}).find("no slice has the elements at [10]"), std::string::npos);
  EXPECT_NE(errors_of({{part("w", values, 0, 20)}, {part("v", values, 7, 0)}})
                .find("the slices of tensor 'v' do not tile it: no slice has the elements at [0]"),
            std::string::npos)
      << "a tensor that only empty boxes speak of is not left out unseen";
  Span shaped = part("w", values, 10, 10);
  shaped.shape = {4, 5};
  shaped.box = {{2, 0}, {2, 5}};
  EXPECT_NE(errors_of({{part("w", values, 0, 10)}, {shaped}}).find("disagree"), std::string::npos);
}

// A rank may hold no element of a tensor, and a tensor may have no elements at all.
TEST(Checkpoint, EmptyBoxesHoldNothing) {
  const TestFolder folder;
  const auto values = ramp(20);
  Span none = part("none", values, 0, 0);
  none.shape = {0, 3};
  none.box = {{0, 0}, {0, 3}};
  none.data = nullptr;
  const auto errors = save_ranks({{part("w", values, 0, 20), none}, {part("w", values, 20, 0)}}, folder.path(), 1);
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
  const Checkpoint checkpoint(folder / "step-000000001");
  EXPECT_EQ(checkpoint.tensor("w").slices.size(), 1u);
  EXPECT_EQ(checkpoint.tensor("none").shape, (std::vector<std::int64_t>{0, 3}));
  EXPECT_TRUE(checkpoint.tensor("none").slices.empty());
  EXPECT_FALSE(fs::exists(checkpoint.path() / "rank-00001.safetensors"));
  EXPECT_EQ(verify(checkpoint.path()).tensors, 2);
}

TEST(Checkpoint, NamesFileAndTensorOfEveryDamage) {
  const GoldenMessages golden;
  const auto values = ramp(1000);
  const auto damage = [&](const std::function<void(const fs::path&)>& harm) {
    const TestFolder folder;
    const fs::path path = save_one(folder.path(), 1, values);
    harm(path);
    return message_of([&] { verify(path); });
  };
  const auto alter = [](const fs::path& file, std::int64_t from_end) {
    std::string content = read_file(file);
    content[content.size() - static_cast<std::size_t>(from_end)] ^= 1;
    write_file_atomic(file, content);
  };
  const std::string data = "rank-00000.safetensors";
  const std::string flipped = damage([&](const fs::path& p) { alter(p / data, 77); });
  EXPECT_NE(flipped.find(data), std::string::npos);
  EXPECT_NE(flipped.find("tensor 'w' does not match its hash"), std::string::npos);
  EXPECT_NE(damage([&](const fs::path& p) { fs::resize_file(p / data, 2000); }).find("truncated"), std::string::npos);
  EXPECT_NE(damage([&](const fs::path& p) { fs::remove(p / data); }).find("rank-00000.safetensors: cannot be read"),
            std::string::npos);
  EXPECT_NE(damage([&](const fs::path& p) { alter(p / "index.json", 40); }).find("index.json: does not match"),
            std::string::npos);
  EXPECT_NE(
      damage([&](const fs::path& p) { fs::resize_file(p / "state.json", 50); }).find("state.json: not valid JSON"),
      std::string::npos);
  EXPECT_NE(damage([&](const fs::path& p) {
              std::string text = read_file(p / "state.json");
              text.replace(text.find("\"tokens\": 10"), 12, "\"tokens\": 11");
              write_file_atomic(p / "state.json", text);
            }).find("'state' does not match"),
            std::string::npos);
  EXPECT_NE(damage([&](const fs::path& p) { fs::remove(p / "state.json"); }).find("state.json"), std::string::npos);
  EXPECT_NE(damage([&](const fs::path& p) {
              write_file_atomic(p / "tokenizer.json", "[]");
            }).find("tokenizer.json: does not match"),
            std::string::npos);
}

// The rank's file is whole, but its tensor has another length, type or name.
TEST(Checkpoint, RefusesAFileThatHoldsAnotherTensor) {
  const auto values = ramp(1000);
  const std::vector<double> wide(values.begin(), values.end());
  const auto save_span = [](const fs::path& directory, Span span) {
    return save({std::move(span)}, {.directory = directory,
                                    .step = 1,
                                    .rank = 0,
                                    .ranks = 1,
                                    .agree = {},
                                    .state = {},
                                    .attachments = {},
                                    .keep = 0});
  };
  for (const Span& other : {whole("w", values, {900}), whole("v", values, {1000}),
                            Span{"w", DType::kF64, {1000}, whole_box({1000}), wide.data(), {}}}) {
    const TestFolder folder, beside;
    const fs::path path = save_span(folder.path(), whole("w", values, {1000}));
    const std::string file = "rank-00000.safetensors";
    fs::copy_file(save_span(beside.path(), other) / file, path / file, fs::copy_options::overwrite_existing);
    const Checkpoint checkpoint(path);
    std::vector<float> got(1000);
    try {
      checkpoint.read("w", 0, 1000, got.data());
      ADD_FAILURE() << "read as if it were the tensor";
    } catch (const DamagedError& error) {
      EXPECT_NE(std::string(error.what()).find("is not what index.json says of tensor 'w'"), std::string::npos)
          << error.what();
    }
  }
}

// A block that several readings share is read and hashed once.
TEST(Checkpoint, ReadsABlockOnce) {
  const TestFolder folder;
  const auto values = ramp(20000);
  const fs::path path = save_one(folder.path(), 1, values);
  FaultyFileSystem counting(folder.path());
  const FileSystemOverride instead(counting);
  const Checkpoint checkpoint(path);
  std::vector<float> got(20000);
  checkpoint.read("w", 0, 7000, got.data());
  const std::int64_t first = counting.bytes_read();
  EXPECT_GE(first, 80000);
  checkpoint.read("w", 7000, 7000, got.data() + 7000);
  checkpoint.read("w", 14000, 6000, got.data() + 14000);
  EXPECT_EQ(counting.bytes_read(), first);
  EXPECT_EQ(got, values);
}

TEST(Checkpoint, FallsBackToTheNewestCompleteOneAndSaysSo) {
  const GoldenMessages golden;
  const TestFolder folder;
  const auto values = ramp(10);
  EXPECT_EQ(latest(folder.path()), std::nullopt);
  save_one(folder.path(), 1, values);
  save_one(folder.path(), 2, values);
  save_one(folder.path(), 3, values);
  fs::remove(folder / "step-000000003/state.json");
  fs::create_directory(folder / "step-000000004.partial");
  fs::create_directory(folder / "step-5");
  std::vector<std::string> skipped;
  EXPECT_EQ(latest(folder.path(), &skipped), folder / "step-000000002");
  EXPECT_EQ(skipped.size(), 2u);
  EXPECT_EQ(list(folder.path()).size(), 3u);
  EXPECT_EQ(resolve(folder.path()), folder / "step-000000002");
  EXPECT_EQ(resolve(folder / "step-000000001"), folder / "step-000000001");
  EXPECT_NOTED(resolve(folder / "absent"), UsageError);
}

TEST(Checkpoint, PrunesTheOldestAndCountsOnlyGoodOnes) {
  const TestFolder folder;
  const auto values = ramp(10);
  for (int step = 1; step <= 4; ++step) save_one(folder.path(), step, values);
  fs::remove(folder / "step-000000004/index.json");
  fs::create_directory(folder / "step-000000002.removing");
  save_one(folder.path(), 5, values, 2);
  std::vector<std::int64_t> good;
  for (const Listed& listed : list(folder.path()))
    if (listed.problem == Problem::kNone) good.push_back(listed.step);
  EXPECT_EQ(good, (std::vector<std::int64_t>{3, 5}));
  EXPECT_FALSE(fs::exists(folder / "step-000000002.removing"));
}

// Ranks that are threads of one process read and parse state and index, which grow with tensors and ranks, only once.
TEST(Checkpoint, IsReadOnceByAllThatHoldIt) {
  const GoldenMessages golden;
  const TestFolder folder;
  const auto values = ramp(6);
  save_ranks({{whole("w", values, {6})}}, folder.path(), 1);
  FaultyFileSystem counting(folder.path());
  std::atomic<int> opened = 0;
  counting.on_open = [&](const fs::path&) {
    ++opened;
    return 0;
  };
  const FileSystemOverride instead(counting);
  {
    const auto held = Checkpoint::open(folder / "step-000000001");
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 4; ++rank)
      ranks.emplace_back([&] { EXPECT_EQ(Checkpoint::open(folder / "step-000000001"), held); });
  }
  EXPECT_EQ(opened, 2);  // state.json and index.json
  EXPECT_EQ(Checkpoint::open(folder / "step-000000001")->step(), 1);
  EXPECT_EQ(opened, 4);  // nobody held it any more
  EXPECT_NOTED(Checkpoint::open(folder / "step-000000002"), DamagedError);
}

TEST(Checkpoint, KnowsWhetherItStillStandsUnderItsName) {
  const TestFolder folder;
  const auto values = ramp(6);
  const fs::path path = folder / "step-000000001";
  save_ranks({{whole("w", values, {6})}}, folder.path(), 1);
  const Checkpoint first(path);
  EXPECT_TRUE(first.is_current());
  save_ranks({{whole("w", values, {6})}}, folder.path(), 1);
  EXPECT_FALSE(first.is_current());
  const Checkpoint second(path);
  EXPECT_TRUE(second.is_current());
  set_aside(path);
  EXPECT_FALSE(second.is_current());
}

// Renames the checkpoints that a history leaves behind, including those set aside as damaged, and never earlier ones.
TEST(Checkpoint, AbandonsWhatLiesBeyondAStepByName) {
  const TestFolder folder;
  const auto values = ramp(6);
  for (const int step : {0, 4, 8, 12}) save_ranks({{whole("w", values, {6})}}, folder.path(), step);
  set_aside(folder / "step-000000008");
  const auto names = [&] {
    std::string all;
    for (const DirectoryEntry& entry : list_directory(folder.path())) all += entry.name.substr(12) + " ";
    return all;
  };
  EXPECT_EQ(abandon(folder.path(), 4, 2), std::vector<std::int64_t>{12});
  EXPECT_EQ(names(), "00 04 08.damaged-1.abandoned-2 12.abandoned-2 ");
  EXPECT_TRUE(damaged_in(folder.path()).empty());
  save_ranks({{whole("w", values, {6})}}, folder.path(), 12);
  EXPECT_EQ(abandon(folder.path(), -1, 2), (std::vector<std::int64_t>{12, 4, 0}));
  EXPECT_EQ(names(), "00.abandoned-2 04.abandoned-2 08.damaged-1.abandoned-2 12.abandoned-2 12.abandoned-2.2 ");
  EXPECT_TRUE(steps_in(folder.path()).empty());
  EXPECT_EQ(verify(folder / "step-000000012.abandoned-2").tensors, 1);
  EXPECT_TRUE(abandon(folder / "absent", -1, 3).empty());
}

TEST(Checkpoint, ReplacesTheSameStep) {
  const TestFolder folder;
  save_one(folder.path(), 1, ramp(10));
  save_one(folder.path(), 1, ramp(10, 100.0f));
  float first = 0;
  Checkpoint(folder / "step-000000001").read("w", 0, 1, &first);
  EXPECT_EQ(first, 100.0f);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(Checkpoint, AFullDiskLeavesOldCheckpointsAndNothingElse) {
  const TestFolder folder;
  const fs::path old = save_one(folder.path(), 1, ramp(100));
  const auto values = ramp(1'000'000);
  std::vector<std::string> errors;
  {
    // Rank 1's part fits, rank 0's does not: both must report the failure.
    const ScopedFileLimit limit(1'000'000);
    errors = save_ranks({{part("w", values, 0, 999'000)}, {part("w", values, 999'000, 1000)}}, folder.path(), 2);
  }
  EXPECT_NE(errors[0].find("cannot be written"), std::string::npos);
  EXPECT_NE(errors[1].find("another rank failed"), std::string::npos);
  EXPECT_EQ(verify(old).bytes, 400);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(Checkpoint, AProcessKilledWhileSavingLosesNothing) {
  const TestFolder folder;
  const auto values = ramp(100);
  const fs::path old = save_one(folder.path(), 1, values);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Span killer = whole("w", values, {100});
    killer.data = nullptr;
    killer.read = [](std::int64_t, std::int64_t, void*) { ::kill(::getpid(), SIGKILL); };
    SaveOptions options;
    options.directory = folder.path();
    options.step = 2;
    save({part("a", values, 0, 100), killer}, options);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(fs::exists(folder / "step-000000002.partial-0"));
  std::vector<std::string> skipped;
  EXPECT_EQ(latest(folder.path(), &skipped), old);
  EXPECT_EQ(skipped.size(), 1u);
  EXPECT_EQ(verify(save_one(folder.path(), 2, values)).bytes, 400);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
}

TEST(Checkpoint, RefusesAnIndexThatPointsElsewhere) {
  const TestFolder folder;
  const fs::path path = save_one(folder.path(), 1, ramp(10));
  const std::string index = read_file(path / "index.json"), state = read_file(path / "state.json");
  const auto with = [&](std::string from, std::string to) {
    std::string changed = index;
    changed.replace(changed.find(from), from.size(), to);
    std::string sealed = state;
    sealed.replace(sealed.find(sha256_hex(index)), 64, sha256_hex(changed));
    write_file_atomic(path / "index.json", changed);
    write_file_atomic(path / "state.json", sealed);
    return message_of([&] { verify(path); });
  };
  EXPECT_EQ(with("\"fp32\"", "\"fp32\""), "");
  EXPECT_NE(with("\"rank\":0", "\"rank\":1"), "");
  EXPECT_NE(with("\"rank\":0", "\"rank\":-1"), "");
  EXPECT_NE(with("\"rank\":0", "\"rank\":1000000000000"), "");
  EXPECT_NE(with("\"shape\":[10]", "\"shape\":[11]"), "");
  EXPECT_NE(with("\"shape\":[10]", "\"shape\":[-10]"), "");
  EXPECT_NE(with("\"shape\":[10]", "\"shape\":[9223372036854775807]"), "");
  EXPECT_NE(with("\"offsets\":[0]", "\"offsets\":[1]"), "");
  EXPECT_NE(with("\"offsets\":[0]", "\"offsets\":[0,0]"), "");
  EXPECT_NE(with("\"sizes\":[10]", "\"sizes\":[9223372036854775807]"), "");
  EXPECT_NE(with("\"sizes\":[10]", "\"sizes\":[0]"), "");
  EXPECT_NE(with("\"fp32\"", "\"fp64\""), "");
  EXPECT_NE(with("\"fp32\"", "\"f32\""), "");
  EXPECT_NE(with("\"format_version\":2", "\"format_version\":3"), "");
}

// The files have flat slices. The code of commit 0f58bcb wrote them (tests/golden/checkpoint/make_version_1.cpp).
TEST(Checkpoint, ReadsFormatVersion1BitForBit) {
  const fs::path directory = "tests/golden/checkpoint/version-1";
  ASSERT_EQ(latest(directory), directory / "step-000000042");
  const Checkpoint checkpoint(directory / "step-000000042");
  EXPECT_EQ(checkpoint.step(), 42);
  EXPECT_EQ(checkpoint.state(), (Json{{"step_done", 42}, {"text", "een \xc3\xa9\xc3\xa9n"}, {"loss", 0.1}}));
  EXPECT_EQ(checkpoint.attachment("config.toml"), "[run]\nname = \"golden\"\n");
  EXPECT_EQ(checkpoint.tensors().size(), golden::tensors().size());
  std::int64_t flat = 0;
  for (const golden::Tensor& tensor : golden::tensors()) {
    const std::string name(tensor.name);
    const StoredTensor& stored = checkpoint.tensor(name);
    EXPECT_EQ(stored.dtype, tensor.dtype) << name;
    EXPECT_EQ(stored.shape, tensor.shape) << name;
    for (const Slice& slice : stored.slices) flat += slice.boxes.size() > 1;
    const std::vector<char> expected = golden::bytes_of(tensor);
    const std::int64_t n = golden::elements_of(tensor), width = size_of(tensor.dtype);
    ASSERT_EQ(stored.elements(), n) << name;
    for (std::int64_t first = 0; first <= n; ++first)
      for (const std::int64_t count : {n - first, (n - first) / 2}) {
        std::vector<char> got(static_cast<std::size_t>(count * width));
        checkpoint.read(name, first, count, got.data());
        ASSERT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + first * width)) << name << " from " << first;
      }
  }
  EXPECT_GE(flat, 6) << "slices that are no box";
  EXPECT_EQ(verify(checkpoint.path()).tensors, 8);
}

TEST(Checkpoint, HostileDocumentsAreBounded) {
  const TestFolder folder;
  const fs::path path = save_one(folder.path(), 1, ramp(10));
  const std::string index = read_file(path / "index.json"), state = read_file(path / "state.json");
  std::string arrays;
  for (int i = 0; i < 1'300'000; ++i) arrays += "[],";
  const auto opened = [&] { const Checkpoint checkpoint(path); };
  EXPECT_EQ(bounded("a checkpoint", opened), "");
  // The longest list that state.json may hold.
  write_file_atomic(path / "state.json",
                    std::string(state).insert(state.find("\"tokens\""), "\"x\": [" + arrays + "[]],"));
  EXPECT_NE(bounded("state.json of 1,300,000 lists", opened).find("does not match"), std::string::npos);
  fs::resize_file(path / "state.json", std::uintmax_t{1} << 32);
  EXPECT_NE(bounded("state.json of 4 GiB", opened).find("limit"), std::string::npos);
  write_file_atomic(path / "state.json", state);
  for (const std::string begin : {"[", "{\"tensors\":[", "{\"tensors\":{\"w\":{\"slices\":[", "{\"x\":["}) {
    write_file_atomic(path / "index.json", begin + arrays);
    fs::resize_file(path / "index.json", std::uintmax_t{3} << 29);  // 1.5 GiB
    EXPECT_NE(bounded(fmt::format("index.json of 1.5 GiB that begins {}[],[],", begin), opened), "");
  }
  write_file_atomic(path / "index.json", index);
  EXPECT_EQ(bounded("the checkpoint again", opened), "");
}

TEST(Checkpoint, PrintsItsBandwidth) {
  const TestFolder folder;
  const std::int64_t count = std::int64_t{1} << 26;  // 256 MiB
  const std::vector<float> values(static_cast<std::size_t>(count), 1.5f);
  auto seconds = [start = std::chrono::steady_clock::now()]() mutable {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(start, now)).count();
  };
  const double mib = static_cast<double>(count) * 4 / (1 << 20);
  std::vector<float> got(values.size());
  seconds();
  const fs::path path = save_one(folder.path(), 1, values);
  const double saving = seconds();
  Checkpoint(path).read("w", 0, count, got.data());
  const double loading = seconds();
  const StateDigest digest = state_digest(Checkpoint(path));
  const double digesting = seconds();
  fmt::print("save {:.0f} MiB/s (with fsync), load and compare {:.0f} MiB/s, digest {:.0f} MiB/s\n", mib / saving,
             mib / loading, mib / digesting);
  EXPECT_EQ(got, values);
  EXPECT_NE(digest.hex(), StateDigest().hex());
}

}  // namespace
}  // namespace molen::checkpoint
