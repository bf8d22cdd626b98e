#include "data/dataset.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numbers>
#include <numeric>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/test_golden.h"
#include "data/test_folder.h"

namespace molen::data {
namespace {

// Makes a shard of consecutive tokens `first`, `first` + 1, ... cut into documents of 13 that end with 0.
TestShard counted(const std::string& name, const std::string& language, int first, int count) {
  TestShard shard{name, language, {}};
  for (int i = 0; i < count; ++i) {
    if (i % 13 == 0) shard.documents.emplace_back();
    shard.documents.back().push_back(i % 13 == 12 || i == count - 1 ? 0 : first + i);
  }
  return shard;
}

std::string reason(const std::function<void()>& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
  return "";
}

RC_GTEST_PROP(Mixture, CountsStayNearTheExactShares, ()) {
  const auto parts = *rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 1000));
  RC_PRE(!parts.empty() && parts.size() < 20);
  const std::vector<double> weights(parts.begin(), parts.end());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const Mixture mixture(weights);
  std::vector<std::int64_t> seen(weights.size(), 0);
  const double bound = std::ceil(std::log2(static_cast<double>(weights.size()))) + 1e-3;
  for (std::int64_t n = 0; n < 500; ++n) {
    const Mixture::Place place = mixture.at(n);
    RC_ASSERT(place.index == seen[static_cast<std::size_t>(place.component)]++);
    for (std::size_t c = 0; c < weights.size(); ++c)
      RC_ASSERT(std::abs(static_cast<double>(seen[c]) - static_cast<double>(n + 1) * weights[c] / sum) <= bound);
  }
}

TEST(Mixture, LargePositionsDoNotOverflow) {
  const Mixture mixture(std::vector<double>{0.3, 0.7});
  const std::int64_t far = std::int64_t{1} << 61;
  const auto place = mixture.at(far);
  const double share = place.component == 0 ? 0.3 : 0.7;
  EXPECT_NEAR(static_cast<double>(place.index) / static_cast<double>(far), share, 1e-9);
}

TEST(Mixture, RefusesImpossibleWeights) {
  const GoldenMessages golden;
  EXPECT_NOTED(Mixture(std::vector<double>{}), UsageError);
  EXPECT_NOTED(Mixture(std::vector<double>{1, 0}), UsageError);
  EXPECT_NOTED(Mixture(std::vector<double>{-1}), UsageError);
  EXPECT_NOTED(Mixture(std::vector<double>{NAN}), UsageError);
}

TEST(Dataset, AnEpochUsesEachTokenAtMostOnceAndOrderDependsOnTheSeedOnly) {
  const TestFolder folder;
  write_test_shards(folder.path(), {counted("a", "nl", 1, 101), counted("b", "en", 200, 47)}, 300);
  const OpenOptions options{7, 300, "test"};
  const Dataset data({{folder.path(), {}, {}}}, 5, options);
  const Dataset again({{folder.path(), 2.5, {}}}, 5, options);
  const Dataset other({{folder.path(), {}, {}}}, 6, options);
  EXPECT_EQ(data.tokens(), 148);
  EXPECT_EQ(data.sequences(), 21);
  std::vector<std::int32_t> x(8), y(8);
  bool differs = false;
  std::set<std::int64_t> offsets;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::multiset<std::int32_t> labels;
    for (std::int64_t i = 0; i < 21; ++i) {
      data.read(epoch * 21 + i, x);
      again.read(epoch * 21 + i, y);
      EXPECT_EQ(x, y);
      other.read(epoch * 21 + i, y);
      differs |= x != y;
      EXPECT_EQ(data.origin(epoch * 21 + i).epoch, epoch);
      offsets.insert(data.origin(epoch * 21 + i).first_token);
      for (std::size_t k = 1; k < x.size(); ++k) {
        if (x[k] != 0) labels.insert(x[k]);
        // Tokens that follow each other in the text do so in the sample.
        EXPECT_TRUE(x[k] == 0 || x[k - 1] == 0 || x[k] == x[k - 1] + 1) << x[k - 1] << " then " << x[k];
      }
    }
    for (std::int32_t label : labels) EXPECT_EQ(labels.count(label), 1u) << label;
    EXPECT_GE(labels.size(), 148u - 13 - 7);
  }
  EXPECT_TRUE(differs);
  EXPECT_GT(offsets.size(), 21u) << "windows move from epoch to epoch";
  EXPECT_NE(data.digest(), other.digest());
}

// The order of samples is the same in every version, so that a resumed run continues where it stopped.
TEST(Dataset, TheOrderStaysAsItIs) {
  const TestFolder folder;
  write_test_shards(folder.path(), {counted("a", "nl", 1, 101), counted("b", "en", 200, 147)}, 400);
  const OpenOptions options{7, 400, "test"};
  const Dataset data({{folder.path(), 0.3, {"nl"}}, {folder.path(), 0.7, {"en"}}}, 5, options);
  std::vector<std::array<std::int64_t, 3>> order;
  for (const std::int64_t i : {0, 1, 2, 3, 4, 5, 6, 7, 100, 101, 102, 103}) {
    const auto from = data.origin(i);
    order.push_back({from.component, from.epoch, from.first_token});
  }
  EXPECT_EQ(order, (std::vector<std::array<std::int64_t, 3>>{{1, 0, 48},
                                                             {1, 0, 83},
                                                             {1, 0, 6},
                                                             {0, 0, 29},
                                                             {1, 0, 97},
                                                             {1, 0, 132},
                                                             {0, 0, 53},
                                                             {1, 0, 20},
                                                             {1, 3, 40},
                                                             {1, 3, 131},
                                                             {1, 3, 145},
                                                             {0, 2, 27}}));
}

TEST(Dataset, LanguagesAndWeights) {
  const TestFolder folder;
  write_test_shards(folder.path(), {counted("a", "nl", 1, 60), counted("b", "en", 100, 120)}, 300);
  const OpenOptions options{5, 300, "test"};
  const Dataset data({{folder.path(), 0.75, {"nl"}}, {folder.path(), 0.25, {"en"}}}, 1, options);
  std::vector<std::int32_t> x(6);
  int dutch = 0;
  for (std::int64_t i = 0; i < 400; ++i) {
    data.read(i, x);
    const auto highest = *std::max_element(x.begin(), x.end());
    dutch += highest < 100;
    EXPECT_EQ(data.origin(i).component, highest < 100 ? 0 : 1);
  }
  EXPECT_EQ(dutch, 300);
  const Dataset natural({{folder.path(), {}, {"nl"}}, {folder.path(), {}, {"en"}}}, 1, options);
  EXPECT_DOUBLE_EQ(natural.shares()[0], 60.0 / 180.0);
}

TEST(Dataset, BadInputGetsOneClearError) {
  const GoldenMessages golden;
  const TestFolder folder;
  write_test_shards(folder.path(), {counted("a", "nl", 1, 200)}, 300);
  const auto open = [&](const OpenOptions& options, std::vector<std::string> languages = {}) {
    return reason([&] { Dataset({{folder.path(), {}, languages}}, 0, options); });
  };
  EXPECT_EQ(open({8, 300, "test"}), "");
  EXPECT_NE(open({0, 300, "test"}).find("data.sequence_length"), std::string::npos);
  EXPECT_NE(open({200, 300, "test"}).find("fewer than one sequence"), std::string::npos);
  EXPECT_NE(open({8, 299, "test"})
                .find("ids up to 299, but the model's vocabulary has 299 entries: set model.vocabulary "
                      "to at least 300"),
            std::string::npos)
      << open({8, 299, "test"});
  EXPECT_NE(open({8, 300, "other"}).find("made with tokenizer test"), std::string::npos);
  EXPECT_NE(open({8, 300, "test"}, {"nk"}).find("did you mean 'nl'"), std::string::npos);
  EXPECT_NE(reason([&] { Dataset({}, 0, {8, 300, "test"}); }).find("no entry"), std::string::npos);
  EXPECT_NE(reason([&] {
              Dataset({{folder.path(), 1.0, {}}, {folder.path(), {}, {}}}, 0, {8, 300, "test"});
            }).find("weight"),
            std::string::npos);

  // The note names the shards that were not hashed.
  EXPECT_EQ(Dataset({{folder.path(), {}, {}}}, 0, {8, 300, "test"}).unhashed_note(), "");
  const std::string note = Dataset({{folder.path(), {}, {}}}, 0, {8, 300, "test", 10}).unhashed_note();
  EXPECT_NE(note.find("molen data verify " + folder.path().string()), std::string::npos) << note;
  EXPECT_EQ(ValidationSet(folder.path(), {8, 300, "test"}).unhashed_note(), "");
  EXPECT_EQ(OpenOptions().hash_limit, 256 * 1024 * 1024) << "docs/formats/shards.md says 256 MiB";
  EXPECT_EQ(ValidationSet(folder.path(), {8, 300, "test", 10}).unhashed_note(), note);

  // A manifest of another shard: its documents, tokens or bytes differ from the files.
  const std::string manifest = read_file(folder.path() / "manifest.json");
  for (const char* count : {"documents", "tokens", "bytes"}) {
    Json other = parse_json(manifest, "manifest");
    Json& shard = other["shards"][0];
    Json& number = count == std::string("bytes") ? shard["bin"]["bytes"] : shard[count];
    number = number.get<std::int64_t>() + 1;
    write_file_atomic(folder.path() / "manifest.json", other.dump());
    // The check also runs above the hash limit.
    for (const std::int64_t limit : {std::int64_t{0}, OpenOptions().hash_limit})
      EXPECT_NE(open({8, 300, "test", limit}).find("its manifest says"), std::string::npos) << count << limit;
  }
  write_file_atomic(folder.path() / "manifest.json", manifest);

  // One altered token: the hash finds it; without the hash, the check for tokens beyond the vocabulary finds it.
  std::string bin = read_file(folder.path() / "a.bin");
  bin[11] = '\x7f';
  write_file_atomic(folder.path() / "a.bin", bin);
  EXPECT_NE(open({8, 300, "test"}).find("SHA-256"), std::string::npos);
  EXPECT_NE(open({8, 300, "test", 0}).find("outside the vocabulary"), std::string::npos);
  fs::resize_file(folder.path() / "a.bin", 100);
  EXPECT_NE(open({8, 300, "test"}).find("truncated"), std::string::npos);
  fs::remove(folder.path() / "a.bin");
  EXPECT_NE(open({8, 300, "test"}).find("cannot be read"), std::string::npos);
}

// A verification cache of the test's own.
class Cache {
 public:
  explicit Cache(const fs::path& folder) {
    if (const char* before = std::getenv("XDG_CACHE_HOME")) before_ = before;
    ::setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  }
  ~Cache() { before_ ? ::setenv("XDG_CACHE_HOME", before_->c_str(), 1) : ::unsetenv("XDG_CACHE_HOME"); }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

 private:
  std::optional<std::string> before_;
};

TEST(Dataset, VerifiedOnceOnAMachine) {
  const GoldenMessages golden;
  const TestFolder folder;
  const Cache cache(folder.path() / "cache");
  const fs::path shards = folder.path() / "s", bin = shards / "a.bin";
  write_test_shards(shards, {counted("a", "nl", 1, 200), counted("b", "nl", 1, 100)}, 300);
  OpenOptions options{8, 300, "test"};
  options.remember = true;
  const auto open = [&] { return reason([&] { Dataset({{shards, {}, {}}}, 0, options); }); };
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  const auto touch = [&](auto time) {
    for (const char* file : {"a.bin", "a.idx", "b.bin", "b.idx"}) fs::last_write_time(shards / file, time);
  };
  const auto damage = [&] {
    std::fstream file(bin, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(10);
    file.put('\x7f');
  };
  EXPECT_EQ(open(), "") << "too new to be remembered";
  damage();
  EXPECT_NE(open().find("SHA-256"), std::string::npos);

  write_test_shards(shards, {counted("a", "nl", 1, 200), counted("b", "nl", 1, 100)}, 300);
  touch(old);
  EXPECT_EQ(open(), "");
  damage();
  fs::last_write_time(bin, old);
  EXPECT_EQ(open(), "") << "of the same size, time and inode: not read again";
  fs::last_write_time(bin, old + std::chrono::seconds(1));
  EXPECT_NE(open().find("a.bin: its SHA-256"), std::string::npos);
  options.remember = false;
  fs::last_write_time(bin, old);
  EXPECT_NE(open().find("SHA-256"), std::string::npos);
  // The record of a verification includes the manifest.
  write_test_shards(shards, {counted("a", "nl", 1, 200), counted("b", "nl", 1, 100)}, 300);
  touch(old);
  options.remember = true;
  EXPECT_EQ(open(), "");
  std::string manifest = read_file(shards / "manifest.json");
  const std::string hash = sha256_file(bin);
  manifest.replace(manifest.find(hash), hash.size(), std::string(64, '0'));
  write_file_atomic(shards / "manifest.json", manifest);
  EXPECT_NE(open().find("SHA-256"), std::string::npos);
}

TEST(Dataset, WhatIsNotVerifiedIsCheckedWhenItIsRead) {
  const GoldenMessages golden;
  const TestFolder folder;
  write_test_shards(folder.path(), {counted("a", "nl", 1, 200)}, 300);
  OpenOptions options{8, 300, "test"};
  const std::string digest = Dataset({{folder.path(), {}, {}}}, 0, options).digest();
  options.verify = false;
  std::vector<std::int32_t> row(9);
  {
    const Dataset data({{folder.path(), {}, {}}}, 0, options);
    EXPECT_EQ(open_shards(), 0) << "nothing is opened before it is read";
    EXPECT_EQ(data.digest(), digest) << "all ranks say the same";
    data.read(0, row);
    EXPECT_EQ(open_shards(), 1);
  }
  fs::resize_file(folder.path() / "a.bin", 100);
  const Dataset data({{folder.path(), {}, {}}}, 0, options);
  EXPECT_NE(reason([&] { data.read(0, row); }).find("truncated or altered"), std::string::npos);
}

TEST(Validation, TakesTheLanguagesThatAreNamed) {
  const GoldenMessages golden;
  const TestFolder folder;
  write_test_shards(folder.path(), {counted("a", "nl", 1, 50), counted("c", "en", 200, 14)}, 300);
  const ValidationSet set(folder.path(), {7, 300, "test"}, {"en"});
  ASSERT_EQ(set.languages().size(), 1u);
  EXPECT_EQ(set.languages()[0].name, "en");
  EXPECT_EQ(set.languages()[0].tokens, 14);
  EXPECT_NOTED(ValidationSet(folder.path(), {7, 300, "test"}, {"fy"}), UsageError);
}

TEST(Validation, EachTokenIsALabelOnce) {
  const TestFolder folder;
  write_test_shards(folder.path(),
                    {counted("a", "nl", 1, 50), counted("b", "nl", 100, 23), counted("c", "en", 200, 14)}, 300);
  const ValidationSet set(folder.path(), {7, 300, "test"});
  ASSERT_EQ(set.languages().size(), 2u);
  EXPECT_EQ(set.languages()[0].name, "en");
  EXPECT_EQ(set.languages()[0].windows, 2);
  EXPECT_EQ(set.languages()[1].tokens, 73);
  EXPECT_EQ(set.languages()[1].windows, 11);
  EXPECT_EQ(set.languages()[1].text_bytes, 73 * 4);
  std::vector<std::int32_t> ids(7), labels(7), all;
  std::int32_t previous = 0;
  for (std::int64_t w = 0; w < 11; ++w) {
    const std::int64_t valid = set.read(1, w, ids, labels);
    EXPECT_EQ(valid, w < 10 ? 7 : 3);
    for (std::int64_t k = 0; k < 7; ++k) {
      if (k >= valid) {
        EXPECT_EQ(labels[static_cast<std::size_t>(k)], -1);
        continue;
      }
      EXPECT_EQ(ids[static_cast<std::size_t>(k)], previous) << "the input is the token before the label";
      previous = labels[static_cast<std::size_t>(k)];
      all.push_back(previous);
    }
  }
  std::vector<std::int32_t> expected(73);
  TokenStream(folder.path(), {"nl"}, {7, 300, "test"}).read(0, expected);
  EXPECT_EQ(all, expected);
  EXPECT_DOUBLE_EQ(set.bits_per_byte(1, 73 * 4 * 2 * std::numbers::ln2, 73), 2.0);
}

// Every sample has the end-of-text token of its own shards and names its origin.
TEST(Dataset, SamplesKnowTheirShards) {
  const TestFolder folder;
  write_test_shards(folder.path() / "a", {counted("a", "nl", 1, 60)}, 300);
  write_test_shards(folder.path() / "b", {counted("b", "en", 100, 60), counted("c", "de", 200, 60)}, 300);
  Manifest other = read_manifest(folder.path() / "b");
  other.tokenizer.end_of_text = 9;
  write_file_atomic(folder.path() / "b/manifest.json", format_manifest(other));
  const Dataset data({{folder.path() / "a", 0.5, {}}, {folder.path() / "b", 0.5, {"en", "de"}}}, 3, {5, 300, "test"});
  std::set<std::int32_t> components;
  for (std::int64_t i = 0; i < 200; i += 9) {
    const auto from = data.origin(i);
    components.insert(from.component);
    EXPECT_EQ(data.end_of_text(i), from.component == 0 ? 0 : 9) << i;
    EXPECT_EQ(data.describe(i), fmt::format("{}, epoch {}, token {}",
                                            from.component == 0 ? (folder.path() / "a").string()
                                                                : (folder.path() / "b").string() + " (en,de)",
                                            from.epoch, from.first_token));
  }
  EXPECT_EQ(components.size(), 2u);
}

TEST(Dataset, MessagesInFull) {
  const TestFolder folder;
  const std::string path = folder.path().string();
  write_test_shards(folder.path(), {counted("a", "nl", 1, 200), counted("b", "en", 1, 50)}, 300);
  const auto open = [&](const OpenOptions& options, std::vector<std::string> languages = {}) {
    return reason([&] { Dataset({{folder.path(), {}, languages}}, 0, options); });
  };
  const auto validate = [&](const OpenOptions& options, const std::vector<std::string>& languages = {}) {
    return reason([&] { ValidationSet(folder.path(), options, languages); });
  };
  for (const auto& [options, why] :
       {std::pair<OpenOptions, std::string>{{0, 300, "test"}, "data.sequence_length: 0 must be at least 1"},
        {{1, 0, "test"}, "model.vocabulary: 0 is impossible"},
        {{1, std::int64_t{1} << 31, "test"}, "model.vocabulary: 2147483648 is impossible"},
        {{1, (std::int64_t{1} << 31) - 1, "test"}, ""}}) {
    EXPECT_EQ(open(options), why);
    EXPECT_EQ(validate(options), why);
  }
  const std::string fry = path + ": no shard in language 'fry' (there are: en,nl)";
  EXPECT_EQ(open({8, 300, "test"}, {"nl", "fry"}), fry);
  EXPECT_EQ(validate({8, 300, "test"}, {"nl", "fry"}), fry);
  EXPECT_EQ(open({249, 300, "test"}), "");
  EXPECT_EQ(open({250, 300, "test"}),
            path + ": 250 tokens, fewer than one sequence of 250 and its next token; lower data.sequence_length");
  EXPECT_EQ(
      reason([&] {
        Dataset({{folder.path(), 1.0, {}}, {folder.path(), {}, {}}, {folder.path(), {}, {}}}, 0, {8, 300, "test"});
      }),
      "data.train: 1 of 3 entries have a weight; give one to each or to none");
  EXPECT_EQ(Dataset({{folder.path(), {}, {}}}, 0, {8, 300, "test", 10}).unhashed_note(),
            "984 B of data are in shards of more than 10 B each, of which only sizes and sampled tokens were checked; "
            "to check their hashes, run `molen data verify " +
                path + "`");
  // The manifest differs from the shard in one of its three numbers.
  const std::string good = read_file(folder.path() / "manifest.json");
  const auto changed = [&](auto&& change) {
    Manifest manifest = parse_manifest(good, "");
    change(manifest.shards[0]);
    write_file_atomic(folder.path() / "manifest.json", format_manifest(manifest));
    return open({8, 300, "test"});
  };
  const auto idx_bytes = static_cast<std::int64_t>(fs::file_size(folder.path() / "a.idx"));
  const auto said = [&](std::int64_t documents, std::int64_t tokens, std::int64_t bin_bytes, std::int64_t index) {
    return fmt::format(
        "{}/a: 16 documents, 200 tokens, 400 bytes of tokens and {} of index; its manifest says {}, {}, {} and {}: "
        "truncated or altered, run `molen data prepare` again",
        path, idx_bytes, documents, tokens, bin_bytes, index);
  };
  EXPECT_EQ(changed([](ShardRecord& s) { s.documents = 3; }), said(3, 200, 400, idx_bytes));
  EXPECT_EQ(changed([](ShardRecord& s) { s.tokens = 201; }), said(16, 201, 400, idx_bytes));
  EXPECT_EQ(changed([](ShardRecord& s) { s.bin.bytes = 402; }), said(16, 200, 402, idx_bytes));
  EXPECT_EQ(changed([](ShardRecord& s) { ++s.idx.bytes; }), said(16, 200, 400, idx_bytes + 1));
  EXPECT_EQ(changed([](ShardRecord& s) { s.idx.sha256 = std::string(64, 'a'); }),
            path + "/a.idx: its SHA-256 is not the one in the manifest: altered; run `molen data prepare` again");
  write_test_shards(folder.path(), {{"a", "nl", {}}}, 300);
  EXPECT_EQ(open({8, 300, "test"}), path + ": holds no tokens");
  EXPECT_EQ(validate({8, 300, "test"}), path + ": holds no tokens");
}

}  // namespace
}  // namespace molen::data
