#include "plan/complete.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/test_golden.h"
#include "data/tokenizer/tokenizer.h"
#include "plan/resolve.h"

namespace molen::plan {
namespace {

constexpr const char* kTokenizer = "tests/golden/tokenizer/gpt2.json";

config::Config load(std::vector<std::string> sets, const config::Completion& what = complete) {
  sets.insert(sets.begin(), {"model.family=gpt", "model.layers=2", "model.hidden=64", "model.heads=4"});
  return config::load(std::nullopt, sets, what);
}

std::string completion_refusal(const std::vector<std::string>& sets, const config::Completion& what = complete) {
  try {
    load(sets, what);
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
  return "";
}

TEST(Complete, TakesTheVocabularyOfTheTokenizer) {
  const std::string given = std::string("data.tokenizer=") + kTokenizer;
  const std::int64_t entries = data::Tokenizer::load(kTokenizer).vocab_size();
  const config::Config c = load({given});
  EXPECT_EQ(c.model.vocabulary, entries);
  EXPECT_EQ(c.origins.at("model.vocabulary").describe(), "derived: data.tokenizer");
  EXPECT_EQ(resolve_architecture(c).vocabulary, entries);
  EXPECT_EQ(load({given, "model.vocabulary=5000"}).model.vocabulary, 5000);
  // A preset has its own vocabulary.
  const auto preset = config::load(std::nullopt, {"model.preset=llama-tiny", given}, complete);
  EXPECT_EQ(preset.model.vocabulary, std::nullopt);
}

TEST(Complete, RefusesWhatFilesAndPresetsContradict) {
  const GoldenMessages golden;
  EXPECT_NE(completion_refusal({"data.tokenizer=nowhere.json"}).find("--set data.tokenizer: nowhere.json"),
            std::string::npos);
  EXPECT_NOTED(load({"data.tokenizer=nowhere.json"}), MissingFileError);
  EXPECT_NE(completion_refusal({"data.tokenizer=tests/golden/arch/presets.json"}).find("--set data.tokenizer: "),
            std::string::npos);
  EXPECT_EQ(completion_refusal({"model.vocabulary=10"}), "");
  // When the field list refuses one value and the files another, both errors are reported at once.
  const std::string both = completion_refusal({"data.tokenizer=nowhere.json", "batch.micro=3"});
  EXPECT_NE(both.find("2 errors:"), std::string::npos) << both;
  try {
    config::load(std::nullopt, {"model.preset=llama-tiny", "data.sequence_length=100000"}, complete);
    ADD_FAILURE() << "a sequence that the model does not take";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("--set data.sequence_length: 100000 is more than"), std::string::npos);
  }
}

TEST(Complete, SaysWhichFilesOfATrainingAreMissing) {
  const GoldenMessages golden;
  const fs::path folder = fs::temp_directory_path() / fmt::format("molen_complete_{}", ::getpid());
  for (const char* split : {"train", "heldout"}) {
    fs::create_directories(folder / split);
    write_file_atomic(folder / split / "manifest.json", "{}");
  }
  const auto missing = [&](const std::string& train) {
    return completion_refusal({"model.vocabulary=10", "data.train=" + train}, require_training);
  };
  EXPECT_EQ(missing((folder / "train").string()), "");
  EXPECT_EQ(missing("nowhere/train"), "--set data.train: nowhere/train: there is nothing of this name");
  EXPECT_EQ(missing(folder.string()),
            fmt::format("--set data.train: {0}: no manifest.json there; {0}/train and {0}/heldout have theirs: name "
                        "one of them",
                        folder.string()));
  const std::string none = completion_refusal({"model.vocabulary=10"}, require_training);
  EXPECT_NE(none.find("data.train: at least one entry"), std::string::npos);
  const std::string all =
      completion_refusal({"data.tokenizer=nowhere.json", "data.validation=nowhere"}, require_training);
  EXPECT_NE(all.find("3 errors:"), std::string::npos) << all;
  fs::remove_all(folder);
}

}  // namespace
}  // namespace molen::plan
