#include "store/tensorboard.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"

namespace molen::store {
namespace {

constexpr std::size_t kFlushBytes = 64 * 1024;

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? (c >> 1) ^ 0x82f63b78u : c >> 1;  // the polynomial, reflected
    table[i] = c;
  }
  return table;
}
constexpr auto kTable = make_table();

// Appends a number in little-endian order, whatever the host's order.
template <class T>
void put_fixed(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_key(std::string& out, int field, WireType type) {
  put_varint(out, static_cast<std::uint64_t>(field << 3 | type));
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// Returns an Event without its payload: wall_time is field 1; step is field 2, which protobuf leaves out when it is 0.
std::string event_head(std::int64_t step, double wall) {
  std::string event;
  put_key(event, 1, kFixed64);
  put_fixed(event, std::bit_cast<std::uint64_t>(wall));
  if (step != 0) {
    put_key(event, 2, kVarint);
    put_varint(event, static_cast<std::uint64_t>(step));
  }
  return event;
}

std::string frame(std::string_view data) {
  std::string record;
  put_fixed(record, static_cast<std::uint64_t>(data.size()));
  put_fixed(record, masked_crc32c(record));
  record += data;
  put_fixed(record, masked_crc32c(data));
  return record;
}

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  std::uint32_t crc = 0xffffffffu;
  for (const char c : data) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view data) {
  return std::rotr(crc32c(data), 15) + 0xa282ead8u;
}

std::string file_version_record(double wall) {
  std::string event = event_head(0, wall);
  put_bytes(event, 3, "brain.Event:2");
  return frame(event);
}

std::string scalar_record(std::string_view tag, float value, std::int64_t step, double wall) {
  std::string point, summary, event = event_head(step, wall);
  put_bytes(point, 1, tag);
  put_key(point, 2, kFixed32);
  put_fixed(point, std::bit_cast<std::uint32_t>(value));
  put_bytes(summary, 1, point);
  put_bytes(event, 5, summary);
  return frame(event);
}

std::string text_record(std::string_view tag, std::string_view text, std::int64_t step, double wall) {
  constexpr std::uint64_t kString = 7;  // DT_STRING
  std::string dimension, shape, tensor, plugin, metadata, point, summary, event = event_head(step, wall);
  put_key(dimension, 1, kVarint);
  put_varint(dimension, 1);
  put_bytes(shape, 2, dimension);
  put_key(tensor, 1, kVarint);
  put_varint(tensor, kString);
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 8, text);  // string_val
  put_bytes(plugin, 1, "text");
  put_bytes(metadata, 1, plugin);
  put_bytes(point, 1, tag);
  put_bytes(point, 8, tensor);
  put_bytes(point, 9, metadata);
  put_bytes(summary, 1, point);
  put_bytes(event, 5, summary);
  return frame(event);
}

std::string session_start_record(std::int64_t step, double wall) {
  std::string log, event = event_head(step, wall);
  put_key(log, 1, kVarint);
  put_varint(log, 1);  // START
  put_bytes(event, 7, log);
  return frame(event);
}

namespace {

constexpr std::string_view kFileStart = "events.out.tfevents.";

// TensorBoard reads the files of a directory in the order of their names: a clock that was set back must not put a new
// file before existing ones.
std::int64_t after_those_in(const fs::path& dir, std::int64_t seconds) {
  for (const DirectoryEntry& entry : list_directory(dir)) {
    if (!entry.name.starts_with(kFileStart)) continue;
    const std::int64_t theirs = std::strtoll(entry.name.c_str() + kFileStart.size(), nullptr, 10);
    if (theirs > 0 && theirs < 10'000'000'000) seconds = std::max(seconds, theirs);
  }
  return seconds;
}

fs::path new_file(const fs::path& dir, const std::string& host, std::int64_t pid, double wall) {
  make_directories(dir);
  const std::int64_t seconds = after_those_in(dir, static_cast<std::int64_t>(wall));
  // Two attempts may begin within a second with the same process id (1 in every container). The number tells them apart
  // and orders them.
  for (int n = 0;; ++n) {
    const std::string start = fmt::format("{}{:010}.", kFileStart, seconds);
    const std::string name = fmt::format("{}{:04}.{}.{}", start, n, host, pid);
    const auto entries = list_directory(dir);
    if (std::none_of(entries.begin(), entries.end(),
                     [&](const DirectoryEntry& e) { return e.name.starts_with(fmt::format("{}{:04}.", start, n)); }))
      return dir / name;
  }
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const fs::path& dir, const std::string& host, std::int64_t pid, double wall)
    : file_(File::create_new(new_file(dir, host, pid, wall < 0 ? wall_time() : wall))) {
  buffer_ = file_version_record(wall < 0 ? wall_time() : wall);
}

TensorBoardWriter::~TensorBoardWriter() {
  try {
    flush();
  } catch (const Error&) {
  }
}

void TensorBoardWriter::scalar(std::string_view tag, double value, std::int64_t step, double wall) {
  buffer_ += scalar_record(tag, static_cast<float>(value), step, wall);
  if (buffer_.size() >= kFlushBytes) flush();
}

void TensorBoardWriter::text(std::string_view tag, std::string_view text, std::int64_t step, double wall) {
  buffer_ += text_record(tag, text, step, wall);
  if (buffer_.size() >= kFlushBytes) flush();
}

void TensorBoardWriter::session_start(std::int64_t step, double wall) {
  buffer_ += session_start_record(step, wall);
}

void TensorBoardWriter::flush() {
  while (!buffer_.empty()) {
    const std::int64_t written = file_system().write(file_.descriptor(), buffer_.data(), buffer_.size());
    if (written == -EINTR) continue;
    if (written <= 0) throw_write_error(path(), written < 0 ? written : -EIO);
    buffer_.erase(0, static_cast<std::size_t>(written));
  }
}

}  // namespace molen::store
