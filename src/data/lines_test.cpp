#include "data/lines.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/test_bounds.h"
#include "base/test_golden.h"
#include "data/jsonl.h"
#include "data/test_folder.h"

namespace molen::data {
namespace {

std::string gzip(const std::string& text) {
  const TestFolder folder;
  const std::string path = (folder.path() / "x").string();
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  return read_file(path);
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::vector<std::string> lines_of(const std::string& bytes, std::int64_t limit = 1 << 20) {
  const TestFolder folder;
  write_file_atomic(folder.path() / "t", bytes);
  LineReader reader(folder.path() / "t", limit);
  std::vector<std::string> lines;
  for (std::string_view line; reader.next(line);) lines.emplace_back(line);
  EXPECT_EQ(reader.line_number(), static_cast<std::int64_t>(lines.size()));
  return lines;
}

std::string lines_refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
  return "";
}

TEST(Lines, PlainGzipZstd) {
  const std::vector<std::string> expected{"een", "", "twee", "drie"};
  const std::string text = "een\n\ntwee\r\ndrie";
  EXPECT_EQ(lines_of(text), expected);
  EXPECT_EQ(lines_of(gzip(text)), expected);
  EXPECT_EQ(lines_of(zstd(text)), expected);
  EXPECT_EQ(lines_of(gzip("een\n\ntw") + gzip("ee\ndrie\n")), expected) << "members follow one another";
  EXPECT_EQ(lines_of(zstd("een\n\ntw") + zstd("ee\ndrie\n")), expected);
  EXPECT_TRUE(lines_of("").empty());
}

RC_GTEST_PROP(Lines, LongTextsSurviveCompression, ()) {
  const int count = *rc::gen::inRange(0, 2000);
  std::string text;
  for (int i = 0; i < count; ++i)
    text += std::string(static_cast<std::size_t>(i * 7919 % 977), static_cast<char>('a' + i % 26)) + "\n";
  const auto expected = lines_of(text);
  RC_ASSERT(expected.size() == static_cast<std::size_t>(count));
  RC_ASSERT(lines_of(gzip(text)) == expected);
  RC_ASSERT(lines_of(zstd(text)) == expected);
}

TEST(Lines, DamageNamesFileAndLine) {
  const GoldenMessages golden;
  std::string text;
  for (int i = 0; i < 100000; ++i) text += std::to_string(i * 7919) + "\n";
  for (const std::string& whole : {gzip(text), zstd(text)}) {
    EXPECT_NE(lines_refusal([&] { lines_of(whole.substr(0, whole.size() / 2)); }).find("truncated"), std::string::npos);
    std::string damaged = whole;
    for (std::size_t i = damaged.size() / 2; i < damaged.size() / 2 + 40; ++i)
      damaged[i] = static_cast<char>(damaged[i] ^ 0x5a);
    EXPECT_NE(lines_refusal([&] { lines_of(damaged); }).find("damaged"), std::string::npos);
  }
  EXPECT_NE(lines_refusal([&] { lines_of("short\n" + std::string(5000, 'x'), 1000); }).find("t:2: a line of more"),
            std::string::npos);
  EXPECT_NE(lines_refusal([&] { LineReader("/nonexistent/x"); }).find("cannot be read"), std::string::npos);
  EXPECT_NE(lines_refusal([&] { LineReader("/tmp"); }).find("is a directory"), std::string::npos);
}

// Reads a file of the compressed `bytes`. Returns the reason of its refusal; `read` counts the bytes read before that.
std::string bomb(const std::string& bytes, std::int64_t& read) {
  const TestFolder folder;
  write_file_atomic(folder.path() / "t", bytes);
  return lines_refusal([&] {
    LineReader reader(folder.path() / "t");
    for (std::string_view line; reader.next(line);) read += static_cast<std::int64_t>(line.size()) + 1;
  });
}

TEST(Lines, WhatGrowsWithoutEndIsRefused) {
  const GoldenMessages golden;
  // The lines are short, so that the limit on a line's length does not end the reading first.
  std::string lines;
  for (int i = 0; i < (1 << 20); ++i) lines += "xxxxxxx\n";
  std::string members;
  const std::string member = gzip(lines), frame = zstd(lines);
  for (int i = 0; i < 100; ++i) members += member;
  std::string frames;
  for (int i = 0; i < 100; ++i) frames += frame;
  for (const std::string& whole : {members, frames}) {
    std::int64_t read = 0;
    const std::string why = bomb(whole, read);
    EXPECT_NE(why.find("this is no text"), std::string::npos) << why;
    EXPECT_LT(read, 100 << 20) << "of 800 MiB";
    bounded("compressed text that stands for 100 times as much", [&] { bomb(whole, read); });
  }
  std::int64_t read = 0;
  EXPECT_EQ(bomb(member, read), "") << "a small file may repeat itself";
  EXPECT_EQ(read, 8 << 20);
}

TEST(Lines, PipesAndDevicesAreNotWaitedFor) {
  const GoldenMessages golden;
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() / "fifo").c_str(), 0600), 0);
  ASSERT_NE(bounded("a pipe as text", [&] { LineReader(folder.path() / "fifo"); }), "");
  ASSERT_NE(bounded("/dev/zero as text", [&] { read_text_file("/dev/zero"); }), "");
  EXPECT_NE(lines_refusal([&] { LineReader(folder.path() / "fifo"); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(lines_refusal([&] { read_text_file("/dev/zero"); }).find("not a regular file"), std::string::npos);
}

TEST(Jsonl, LongLinesAreRefused) {
  const GoldenMessages golden;
  std::string line = "{\"text\":\"a\",\"n\":[1";
  while (line.size() < (std::size_t{9} << 20)) line += ",[]";
  JsonlParser parser;
  EXPECT_NE(lines_refusal([&] { parser.parse(line + "]}", "f:3"); }).find("f:3: a line of more than"),
            std::string::npos);
}

TEST(Jsonl, ReadsAndRefuses) {
  JsonlParser parser;
  const JsonlRecord record = parser.parse(R"({"id":"a","lang":"nl","text":"h\u00e9","n":[1,{"text":2}]})", "f:1");
  EXPECT_EQ(record.text, "h\xc3\xa9");
  EXPECT_EQ(record.id, "a");
  EXPECT_EQ(record.language, "nl");
  EXPECT_EQ(parser.parse(format_jsonl(record), "f:1").text, record.text);
  for (const char* bad : {"", "{", "[]", "3", "{}", R"({"text":3})", R"({"text":"a","text":"b"})",
                          "{\"text\":\"\xff\"}", R"({"text":"a"} {"text":"b"})", R"({"text":"\ud800"})"}) {
    const std::string why = lines_refusal([&] { parser.parse(bad, "f:7"); });
    EXPECT_EQ(why.find("f:7: "), 0u) << bad << " -> " << why;
  }
}

}  // namespace
}  // namespace molen::data
