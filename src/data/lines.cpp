#include "data/lines.h"

#include <zlib.h>
#include <zstd.h>

#include <array>
#include <vector>

#include "base/error.h"
#include "base/filesystem.h"

namespace molen::data {
namespace {

constexpr std::size_t kChunk = 1 << 18;

// Text compresses to a fifth of its size, repetitive text to a fiftieth. A file that grows more than this was made to
// fill a disk. The first megabytes are exempt, because a small file may repeat one line.
constexpr std::int64_t kMostGrowth = 200, kFreeBytes = std::int64_t{64} << 20;

}  // namespace

// Appends decompressed bytes; returns false at the end. Throws an error with the reason alone; the reader adds file and
// line.
struct LineReader::Source {
  explicit Source(File opened) : file(std::move(opened)), input(kChunk) {}
  virtual ~Source() = default;
  virtual bool append(std::string& out) = 0;

  std::size_t read_input() {
    const std::size_t got = file.read_some(input.data(), input.size(), taken);
    taken += static_cast<std::int64_t>(got);
    return got;
  }
  // Checks the bytes decompressed so far.
  void check_growth(std::size_t more) {
    made += static_cast<std::int64_t>(more);
    if (made > kFreeBytes && made / kMostGrowth > taken)
      throw UsageError("{} bytes decompress to more than {} times as many: this is no text", taken, kMostGrowth);
  }
  File file;
  std::vector<char> input;
  std::int64_t taken = 0, made = 0;
};

struct LineReader::Plain final : Source {
  using Source::Source;
  bool append(std::string& out) override {
    const std::size_t got = read_input();
    out.append(input.data(), got);
    return got > 0;
  }
};

struct LineReader::Gzip final : Source {
  explicit Gzip(File opened) : Source(std::move(opened)), output(kChunk) {
    MOLEN_CHECK(inflateInit2(&stream, 15 + 32) == Z_OK, "zlib");
  }
  ~Gzip() override { inflateEnd(&stream); }
  bool append(std::string& out) override {
    while (true) {
      if (stream.avail_in == 0) {
        stream.avail_in = static_cast<uInt>(read_input());
        stream.next_in = reinterpret_cast<Bytef*>(input.data());
        if (stream.avail_in == 0) {
          if (!at_member_start) throw UsageError("the gzip data is truncated");
          return false;
        }
      }
      stream.avail_out = static_cast<uInt>(output.size());
      stream.next_out = reinterpret_cast<Bytef*>(output.data());
      const int status = inflate(&stream, Z_NO_FLUSH);
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
        throw UsageError("the gzip data is damaged ({})", stream.msg != nullptr ? stream.msg : "zlib error");
      at_member_start = status == Z_STREAM_END;
      if (at_member_start) inflateReset(&stream);  // a file may hold several members
      const std::size_t more = output.size() - stream.avail_out;
      check_growth(more);
      out.append(output.data(), more);
      if (more > 0) return true;
    }
  }
  z_stream stream{};
  std::vector<char> output;
  bool at_member_start = true;
};

struct LineReader::Zstd final : Source {
  explicit Zstd(File opened) : Source(std::move(opened)), context(ZSTD_createDCtx()), output(ZSTD_DStreamOutSize()) {
    MOLEN_CHECK(context != nullptr, "zstd");
  }
  ~Zstd() override { ZSTD_freeDCtx(context); }
  bool append(std::string& out) override {
    while (true) {
      if (given.pos == given.size) {
        given = {input.data(), read_input(), 0};
        if (given.size == 0) {
          if (!frame_ended) throw UsageError("the zstd data is truncated");
          return false;
        }
      }
      ZSTD_outBuffer more{output.data(), output.size(), 0};
      const std::size_t status = ZSTD_decompressStream(context, &more, &given);
      if (ZSTD_isError(status)) throw UsageError("the zstd data is damaged ({})", ZSTD_getErrorName(status));
      frame_ended = status == 0;
      check_growth(more.pos);
      out.append(output.data(), more.pos);
      if (more.pos > 0) return true;
    }
  }
  ZSTD_DCtx* context;
  std::vector<char> output;
  ZSTD_inBuffer given{nullptr, 0, 0};
  bool frame_ended = true;
};

LineReader::LineReader(const std::filesystem::path& path, std::int64_t line_limit)
    : path_(path.string()), line_limit_(line_limit) {
  File file = File::open(path);
  std::array<unsigned char, 4> magic{};
  const std::size_t got = file.read_some(magic.data(), magic.size(), 0);
  if (got >= 2 && magic[0] == 0x1f && magic[1] == 0x8b)
    source_ = std::make_unique<Gzip>(std::move(file));
  else if (got == 4 && magic == std::array<unsigned char, 4>{0x28, 0xb5, 0x2f, 0xfd})
    source_ = std::make_unique<Zstd>(std::move(file));
  else
    source_ = std::make_unique<Plain>(std::move(file));
}

LineReader::~LineReader() = default;

std::int64_t LineReader::bytes_read() const {
  return source_->taken;
}

bool LineReader::fill() {
  if (ended_) return false;
  buffer_.erase(0, at_);
  at_ = 0;
  try {
    ended_ = !source_->append(buffer_);
  } catch (const UsageError& error) {
    throw UsageError("{}:{}: {}", path_, line_number_ + 1, error.what());
  }
  return !ended_;
}

bool LineReader::next(std::string_view& line) {
  std::size_t searched = at_;
  std::size_t end;
  while ((end = buffer_.find('\n', searched)) == std::string::npos) {
    const std::size_t known = buffer_.size() - at_;
    if (static_cast<std::int64_t>(known) > line_limit_)
      throw UsageError("{}:{}: a line of more than {} bytes", path_, line_number_ + 1, line_limit_);
    if (!fill()) {
      if (at_ == buffer_.size()) return false;
      end = buffer_.size();
      break;
    }
    searched = known;
  }
  line = std::string_view(buffer_).substr(at_, end - at_);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  at_ = std::min(end + 1, buffer_.size());
  ++line_number_;
  return true;
}

std::string read_text_file(const std::filesystem::path& path, std::int64_t limit) {
  LineReader reader(path, limit);
  std::string text;
  for (std::string_view line; reader.next(line);) {
    text.append(line);
    text.push_back('\n');
    if (static_cast<std::int64_t>(text.size()) > limit)
      throw UsageError("{}: more than {} bytes", path.string(), limit);
  }
  return text;
}

}  // namespace molen::data
