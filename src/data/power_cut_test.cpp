// Cuts the power, or fails the storage, at each file-system call of `molen data prepare`. The next run continues and
// gives the same output as an undisturbed run; results that prepare reported as done are there.
#include <gtest/gtest.h>

#include <array>
#include <sstream>

#include "base/error.h"
#include "base/test_filesystem.h"
#include "base/test_sanitized.h"
#include "data/commands.h"
#include "data/test_folder.h"

namespace molen::data {
namespace {

using Durable = FaultyFileSystem::Durable;

std::string lines_between(int first, int last) {
  std::string text;
  for (int i = first; i < last; ++i)
    text += Json{{"text", fmt::format("Dit is de {}e tekst van de reeks, en die is lang genoeg om te blijven.", i)}}
                .dump() +
            "\n";
  return text;
}

class PreparePower : public ::testing::Test {
 protected:
  PreparePower() {
    write_tokenizer(folder_.path() / "tokenizer.json");
    write_file_atomic(folder_.path() / "a.jsonl", lines_between(0, 5));
    write_file_atomic(folder_.path() / "b.jsonl", lines_between(3, 8));
  }

  void prepare(const fs::path& output) const {
    PrepareOptions o;
    o.sources = {folder_.path() / "a.jsonl", folder_.path() / "b.jsonl"};
    o.output = output;
    o.licence = "CC0-1.0";
    o.language = "nl";
    o.tokenizer = folder_.path() / "tokenizer.json";
    o.threads = 1;
    std::ostringstream out;
    ASSERT_EQ(prepare_command(o, out, {}), 0);
  }

  // Names and contents of the files that a reader uses; the position in a partly read text is for the next run alone.
  static std::string content_of(const fs::path& output) {
    std::string all;
    for (const std::string part : {"text", "text/train", "text/heldout", "train"})
      for (const DirectoryEntry& entry : list_directory(output / part))
        if (!entry.is_directory && entry.name != "seen")
          all += part + "/" + entry.name + "\n" + read_file(output / part / entry.name) + "\n";
    return all;
  }
  static int verified(const fs::path& output) {
    std::ostringstream out, err;
    return verify_command({output, {}, false}, out, err);
  }

  // Cuts the power at every `stride`-th call. `before` makes the folder's earlier state. With a stride of 1, returns
  // the number of calls that prepare makes.
  std::int64_t cut_everywhere(const std::function<void(const fs::path&)>& before, std::int64_t stride = 1) {
    UnsyncedFileSystem unsynced;
    const FileSystemOverride prepared(unsynced);
    prepare(folder_.path() / "whole");
    const std::string whole = content_of(folder_.path() / "whole");
    const fs::path live = folder_.path() / "live", after = folder_.path() / "after";
    for (std::int64_t call = 0;; call += stride) {
      remove_tree(live);
      make_directories(live);
      before(live / "out");
      FaultyFileSystem faulty(live);
      faulty.cut_at(call);
      try {
        const FileSystemOverride instead(faulty);
        prepare(live / "out");
      } catch (const Error&) {
        EXPECT_TRUE(faulty.was_cut());
      }
      const std::string last = call < static_cast<std::int64_t>(faulty.log().size())
                                   ? faulty.log()[static_cast<std::size_t>(call)]
                                   : "the end";
      for (const auto& [which, seed] : {std::pair(Durable::kSynced, 0), std::pair(Durable::kEntries, 0),
                                        std::pair(Durable::kRandom, 1), std::pair(Durable::kAsWritten, 0)}) {
        SCOPED_TRACE(fmt::format("cut before call {} ({}), kind {} {}", call, last, static_cast<int>(which), seed));
        faulty.lay_out(after, which, static_cast<std::uint64_t>(call * 10 + seed));
        EXPECT_TRUE(faulty.was_cut() || content_of(after / "out") == whole) << "it had said that it was done";
        // An existing manifest describes the existing files.
        EXPECT_TRUE(!path_exists(after / "out/train/manifest.json") || verified(after / "out") == 0);
        prepare(after / "out");
        EXPECT_TRUE(content_of(after / "out") == whole);
        EXPECT_EQ(verified(after / "out"), 0);
        EXPECT_FALSE(path_exists(after / "out/text.part"));
        remove_tree(after);
      }
      if (!faulty.was_cut()) return call;
    }
  }

  TestFolder folder_;
};

TEST_F(PreparePower, CutAtEveryCall) {
  const std::int64_t calls = cut_everywhere([](const fs::path&) {});
  fmt::print("prepare makes {} calls\n", calls);
  EXPECT_GT(calls, 40);
}

// Replaces shards of other texts: old shards must not remain beside a manifest that describes new ones, or the reverse.
TEST_F(PreparePower, CutWhereAnEarlierRunIsReplaced) {
  const auto earlier = [&](const fs::path& output) {
    const std::string b = read_file(folder_.path() / "b.jsonl");
    write_file_atomic(folder_.path() / "b.jsonl", lines_between(2, 6));
    prepare(output);
    write_file_atomic(folder_.path() / "b.jsonl", b);
  };
  cut_everywhere(earlier, exhaustive() ? 1 : 5);
}

// The storage refuses one call, or all calls from one on: prepare reports it, and the next run makes what is missing.
TEST_F(PreparePower, FaultAtEveryCall) {
  UnsyncedFileSystem unsynced;
  const FileSystemOverride prepared(unsynced);
  prepare(folder_.path() / "whole");
  const std::string whole = content_of(folder_.path() / "whole");
  for (const auto& [code, forever] : {std::pair(EIO, false), std::pair(ENOSPC, true)})
    for (std::int64_t call = 0;; ++call) {
      const fs::path live = folder_.path() / "live";
      remove_tree(live);
      make_directories(live);
      FaultyFileSystem faulty(live);
      forever ? faulty.fail_from(call, code) : faulty.fail_at(call, code);
      try {
        const FileSystemOverride instead(faulty);
        prepare(live / "out");
        EXPECT_TRUE(content_of(live / "out") == whole) << "no failure was told: " << code << " at " << call;
      } catch (const IoError& error) {
        EXPECT_EQ(error.code(), code);
      }
      prepare(live / "out");
      EXPECT_TRUE(content_of(live / "out") == whole) << code << " at " << call;
      if (call >= faulty.calls()) break;
    }
}

}  // namespace
}  // namespace molen::data
