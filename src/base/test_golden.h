// Compares the whole messages of a test with a file of tests/golden/messages that a person has read: a test that only
// looks for a few words of a message does not notice that two of its numbers were swapped. MOLEN_UPDATE_GOLDEN=1
// rewrites the files; read the difference before you keep it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <regex>
#include <string>
#include <utility>

#include "base/file.h"

namespace molen {

// Construct it at the beginning of a test; it compares at the end of the test.
class GoldenMessages {
 public:
  GoldenMessages() : outer_(std::exchange(current_, this)) {}
  ~GoldenMessages() {
    current_ = outer_;
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = fmt::format("{}.{}.txt", test->test_suite_name(), test->name());
    std::replace(name.begin(), name.end(), '/', '_');  // in the name of a parametrized test
    const std::filesystem::path file = std::filesystem::path("tests/golden/messages") / name;
    try {
      if (std::getenv("MOLEN_UPDATE_GOLDEN")) {
        std::filesystem::create_directories(file.parent_path());
        write_file_atomic(file, text_);
      }
      EXPECT_EQ(text_, read_file(file));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  GoldenMessages(const GoldenMessages&) = delete;
  GoldenMessages& operator=(const GoldenMessages&) = delete;

  // Adds a line to the file if the test keeps one; returns the message.
  static std::string note(std::string message) {
    if (current_) current_->add(message);
    return message;
  }

 private:
  void add(std::string message) {
    // Removes parts that vary: the names of temporary folders, and the source line of a failed check.
    const std::string folders = std::filesystem::temp_directory_path().string() + "/";
    for (auto at = message.find(folders); at != std::string::npos; at = message.find(folders)) {
      const auto end = message.find_first_of("/ :,;)'\"", at + folders.size());
      message.replace(at, end == std::string::npos ? end : end - at, "DIR");
    }
    message = std::regex_replace(message, std::regex("(/[^ /:']+)+/(lib[^ /:']+\\.so)"), "$2");  // folders of the build
    // The texts of libraries depend on their version.
    for (const char* theirs : {"[json.exception", "not TOML: "})
      if (const auto at = message.find(theirs); at != std::string::npos) message.resize(at + std::strlen(theirs));
    if (message.starts_with("internal error")) message.resize(message.rfind(" ("));
    if (message.size() > 600)
      message =
          fmt::format("{} ({} bytes) {}", message.substr(0, 300), message.size(), message.substr(message.size() - 300));
    for (const char c : message)
      if (c == '\n')
        text_ += "\\n";
      else if (c >= ' ' && c <= '~')
        text_ += c;
      else
        text_ += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    text_ += '\n';
  }

  static inline GoldenMessages* current_ = nullptr;
  std::string text_;
  GoldenMessages* outer_;
};

// Runs an action, notes the text of its refusal and returns it.
template <class Refusal, class Action>
std::string noted_refusal(Action&& action) {
  try {
    action();
  } catch (const Refusal& error) {
    return GoldenMessages::note(error.what());
  }
  return "";
}

}  // namespace molen

#define EXPECT_NOTED(statement, refusal) \
  EXPECT_NE((::molen::noted_refusal<refusal>([&] { statement; })), "") << "is not refused: " #statement
