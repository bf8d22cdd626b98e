// Whole messages of a test, beside a file of tests/golden/messages that a person has read: a test that looks for a few
// words of a message does not see two numbers of it that have changed places. MOLEN_UPDATE_GOLDEN=1 writes the files
// anew; read the difference before it is kept.
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

// Stands at the beginning of a test and compares at its end.
class GoldenMessages {
 public:
  GoldenMessages() : outer_(std::exchange(current_, this)) {}
  ~GoldenMessages() {
    current_ = outer_;
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = fmt::format("{}.{}.txt", test->test_suite_name(), test->name());
    std::replace(name.begin(), name.end(), '/', '_');  // of a test with parameters
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

  // One line of the file, where a test keeps one; gives the message back.
  static std::string note(std::string message) {
    if (current_) current_->add(message);
    return message;
  }

 private:
  void add(std::string message) {
    // No two runs share the names of their folders, and the line of a check in its file says nothing.
    const std::string folders = std::filesystem::temp_directory_path().string() + "/";
    for (auto at = message.find(folders); at != std::string::npos; at = message.find(folders)) {
      const auto end = message.find_first_of("/ :,;)'\"", at + folders.size());
      message.replace(at, end == std::string::npos ? end : end - at, "DIR");
    }
    message = std::regex_replace(message, std::regex("(/[^ /:']+)+/(lib[^ /:']+\\.so)"), "$2");  // of a build
    // What libraries say depends on their version.
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

// What an action says when it is refused, which is noted.
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
