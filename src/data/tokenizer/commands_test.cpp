#include "data/tokenizer/commands.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/test_golden.h"

namespace molen::data {
namespace {

const char* const kModel = "tests/golden/tokenizer/gpt2.json";

std::string encoded(const std::string& input, bool jsonl = true) {
  std::istringstream in(input);
  std::ostringstream out;
  EncodeCommand command;
  command.tokenizer = kModel;
  command.jsonl = jsonl;
  command.threads = 2;
  encode_command(command, in, out);
  return out.str();
}

std::string decoded(const std::string& input, bool jsonl = true) {
  std::istringstream in(input);
  std::ostringstream out;
  DecodeCommand command;
  command.tokenizer = kModel;
  command.jsonl = jsonl;
  decode_command(command, in, out);
  return out.str();
}

TEST(Commands, LinesThereAndBack) {
  const std::string lines =
      "{\"text\": \"Hoi, w\xc3\xa9reld\"}\n{\"text\": \"\"}\n{\"text\": \"a\\n\\\"b\\\"\\\\ \xf0\x9f\x98\x80\"}\n";
  EXPECT_EQ(decoded(encoded(lines)), lines);
  EXPECT_EQ(encoded("{\"text\": \"\"}\n"), "{\"ids\": []}\n");
}

TEST(Commands, EveryWayToWriteAString) {
  const std::string want = encoded("{\"text\": \"\xc3\xa9/\xf0\x9f\x98\x80\"}\n");
  EXPECT_EQ(encoded("{\"text\":\"\\u00e9\\/\\ud83d\\uDE00\"}"), want);
  EXPECT_EQ(
      encoded("\n  {\"id\": [1, {\"text\": 2}], \"t\\u0065xt\" : \"\xc3\xa9/\\uD83D\\ude00\" , \"x\": null}\r\n\n"),
      want);
  EXPECT_EQ(encoded("\xef\xbb\xbf{\"text\": \"a\"}"), encoded("{\"text\": \"a\"}"));
  // Half a surrogate pair and broken UTF-8 count as U+FFFD.
  const std::string replaced = encoded(
      "{\"text\": \"a\xef\xbf\xbd"
      "b\"}");
  EXPECT_EQ(encoded("{\"text\": \"a\\ud800b\"}"), replaced);
  EXPECT_EQ(encoded("{\"text\": \"a\\udc00b\"}"), replaced);
  EXPECT_EQ(encoded("{\"text\": \"a\xff"
                    "b\"}"),
            replaced);
  EXPECT_EQ(encoded("{\"text\": \"\\ud800\\u0061\"}"), encoded("{\"text\": \"\xef\xbf\xbd"
                                                               "a\"}"));
}

TEST(Commands, PlainText) {
  EXPECT_EQ(decoded(encoded("two words\n", false), false), "two words\n");
  EXPECT_EQ(decoded("", false), "");
}

TEST(Commands, BadLinesAreNamed) {
  const GoldenMessages golden;
  const std::string good = "{\"text\": \"a\"}\n";
  for (const char* bad :
       {"{", "[]", "{}", "1", "{\"text\": 1}", "{\"text\": \"a}", "{\"text\": \"a\"} x", "{\"text\": \"\\q\"}",
        "{\"text\": \"\\u12\"}", "{\"text\": \"a\",\"text\": \"b\"}", "{\"text\": \"a\tb\"}", "nonsense",
        "{\"ids\": [1]}", "{\"text\": \"a\"", "{\"text\" \"a\"}", "{\"text\": \"a\"}{\"text\": \"a\"}"}) {
    try {
      encoded(good + bad + "\n");
      ADD_FAILURE() << bad;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("line 2"), std::string::npos) << error.what();
    }
  }
  for (const char* bad : {"{\"ids\": 1}", "{\"ids\": [-1]}", "{\"ids\": [99999999]}", "{\"ids\": [1.5]}",
                          "{\"ids\": [\"1\"]}", "{\"ids\": [4294967296]}", "{\"text\": \"a\"}", "{\"ids\": [1}"})
    EXPECT_NOTED(decoded(bad), UsageError) << bad;
  EXPECT_NOTED(decoded("1 x", false), UsageError);
  EXPECT_NOTED(decoded("99999999999", false), UsageError);
}

TEST(Commands, TrainsFromLinesAndFiles) {
  const GoldenMessages golden;
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "molen_tokenizer_commands";
  std::filesystem::create_directories(folder);
  TrainCommand command;
  command.options.vocabulary = 300;
  command.inputs = {"LICENSE"};
  command.output = folder / "a.json";
  std::istringstream none;
  std::ostringstream log;
  train_command(command, none, log);
  EXPECT_EQ(Tokenizer::load(command.output).vocab_size(), 300u);
  EXPECT_NE(log.str().find("300"), std::string::npos);
  std::istringstream lines("{\"text\": \"aa bb aa bb\"}\n{\"text\": \"aa\"}\n");
  command.inputs.clear();
  command.jsonl = true;
  train_command(command, lines, log);
  EXPECT_EQ(Tokenizer::load(command.output).vocab_size(), 260u);
  command.inputs = {folder / "missing.txt"};
  EXPECT_NOTED(train_command(command, none, log), UsageError);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace molen::data
