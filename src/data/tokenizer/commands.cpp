#include "data/tokenizer/commands.h"

#include <simdjson.h>

#include <charconv>
#include <fstream>
#include <istream>
#include <iterator>
#include <ostream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer/unicode.h"

namespace molen::data {
namespace {

constexpr std::size_t kEncodeBytes = 8 << 20;
constexpr std::size_t kTrainBytes = 64 << 20;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Returns the value of \uXXXX at raw[at] (the backslash), or -1.
int unit_at(std::string_view raw, std::size_t at) {
  if (at + 6 > raw.size() || raw[at] != '\\' || raw[at + 1] != 'u') return -1;
  int value = 0;
  for (std::size_t i = at + 2; i < at + 6; ++i) {
    const int digit = hex_digit(raw[i]);
    if (digit < 0) return -1;
    value = value << 4 | digit;
  }
  return value;
}

// Decodes a JSON string without its quotes. An unpaired surrogate becomes U+FFFD, although strict readers refuse it:
// real corpora have such lines. Returns false for an invalid escape or a control character.
bool unescape(std::string_view raw, std::string& out) {
  out.clear();
  for (std::size_t i = 0; i < raw.size();) {
    const std::size_t plain = std::min(raw.find('\\', i), raw.size());
    for (std::size_t k = i; k < plain; ++k)
      if (static_cast<unsigned char>(raw[k]) < 0x20) return false;
    out.append(raw.substr(i, plain - i));
    i = plain;
    if (i == raw.size()) break;
    if (i + 1 >= raw.size()) return false;
    const std::string_view kinds = "\"\\/bfnrt";
    if (const std::size_t kind = kinds.find(raw[i + 1]); kind != std::string_view::npos) {
      out.push_back("\"\\/\b\f\n\r\t"[kind]);
      i += 2;
      continue;
    }
    const int unit = unit_at(raw, i);
    if (unit < 0) return false;
    i += 6;
    if (unit < 0xd800 || unit > 0xdfff) {
      append_utf8(out, static_cast<std::uint32_t>(unit));
      continue;
    }
    const int low = unit <= 0xdbff ? unit_at(raw, i) : -1;
    if (low >= 0xdc00 && low <= 0xdfff) {
      append_utf8(
          out, 0x10000u + (static_cast<std::uint32_t>(unit - 0xd800) << 10) + static_cast<std::uint32_t>(low - 0xdc00));
      i += 6;
    } else {
      out.append("\xef\xbf\xbd");
    }
  }
  return true;
}

// Reads lines of JSON objects. One parser and one padded buffer serve all lines.
class JsonLines {
 public:
  JsonLines(std::istream& in, std::string origin) : in_(in), origin_(std::move(origin)) {}

  // Reads the next line that is not blank; returns false at the end.
  bool next() {
    while (std::getline(in_, line_)) {
      ++number_;
      if (number_ == 1 && line_.starts_with("\xef\xbb\xbf")) line_.erase(0, 3);
      if (line_.find_first_not_of(" \t\r") == std::string::npos) continue;
      if (!valid_utf8(line_)) line_ = replace_invalid_utf8(line_);
      line_.reserve(line_.size() + simdjson::SIMDJSON_PADDING);
      return true;
    }
    if (in_.bad()) throw Error("{}: read error after line {}", origin_, number_);
    return false;
  }

  void text(std::string& out) {
    visit("text", [&](simdjson::ondemand::value value) {
      std::string_view token;
      if (value.type().value() != simdjson::ondemand::json_type::string) fail("\"text\" is not a string");
      token = value.raw_json_token();
      // The raw token extends to the next token: cut it at the closing quote.
      const std::size_t close = token.find_last_of('"');
      if (token.size() < 2 || close == 0 || !unescape(token.substr(1, close - 1), out)) fail("a malformed string");
    });
  }

  void ids(std::vector<TokenId>& out) {
    out.clear();
    visit("ids", [&](simdjson::ondemand::value value) {
      for (auto element : value.get_array()) {
        const std::uint64_t id = element.get_uint64();
        if (id > 0xffffffffull) fail(fmt::format("{} is no token id", id));
        out.push_back(static_cast<TokenId>(id));
      }
    });
  }

  [[noreturn]] void fail(std::string_view why) const { throw UsageError("{}, line {}: {}", origin_, number_, why); }

 private:
  // Calls `take` with the only member `key`, and reads the object to its end.
  template <class F>
  void visit(std::string_view key, F&& take) {
    bool seen = false;
    try {
      auto document = parser_.iterate(line_.data(), line_.size(), line_.capacity());
      simdjson::ondemand::object object = document.get_object();
      for (auto field : object) {
        const std::string_view name = field.unescaped_key();
        if (name != key) continue;
        if (seen) fail(fmt::format("\"{}\" appears twice", key));
        seen = true;
        simdjson::ondemand::value value = field.value();
        take(value);
      }
      if (document.current_location().error() == simdjson::SUCCESS) fail("more after the object");
    } catch (const simdjson::simdjson_error& error) {
      fail(fmt::format("not a JSON object of the form {{\"{}\": ...}}: {}", key, error.what()));
    }
    if (!seen) fail(fmt::format("no \"{}\"", key));
  }

  std::istream& in_;
  std::string origin_, line_;
  std::size_t number_ = 0;
  simdjson::ondemand::parser parser_;
};

std::string whole(std::istream& in) {
  return {std::istreambuf_iterator<char>(in), {}};
}

void put_ids(std::string& out, std::span<const TokenId> ids, char separator) {
  char digits[16];
  bool first = true;
  for (const TokenId id : ids) {
    if (!first) out.push_back(separator);
    first = false;
    out.append(digits, std::to_chars(digits, digits + sizeof digits, id).ptr);
  }
}

void check_output(std::ostream& out) {
  out.flush();
  if (!out) throw Error("tokenizer: the output could not be written");
}

void encode_lines(const Tokenizer& tokenizer, const EncodeCommand& command, std::istream& in, std::ostream& out) {
  const EncodeOptions options{command.allow_special, command.add_template};
  JsonLines lines(in, "input");
  std::vector<std::string> texts;
  std::size_t used = 0, bytes = 0;
  const auto flush = [&] {
    const std::vector<std::string_view> views(texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(used));
    std::string text;
    for (const auto& ids : tokenizer.encode_batch(views, options, command.threads)) {
      text += "{\"ids\": [";
      put_ids(text, ids, ',');
      text += "]}\n";
    }
    out << text;
    used = bytes = 0;
  };
  try {
    while (lines.next()) {
      if (used == texts.size()) texts.emplace_back();
      lines.text(texts[used]);
      bytes += texts[used++].size();
      if (bytes > kEncodeBytes || used >= (1 << 16)) flush();
    }
  } catch (const UsageError&) {
    flush();
    throw;
  }
  flush();
}

}  // namespace

void encode_command(const EncodeCommand& command, std::istream& in, std::ostream& out) {
  const Tokenizer tokenizer = Tokenizer::load(command.tokenizer);
  if (command.jsonl) {
    encode_lines(tokenizer, command, in, out);
  } else {
    std::string text;
    put_ids(text, tokenizer.encode(whole(in), {command.allow_special, command.add_template}), ' ');
    out << text << '\n';
  }
  check_output(out);
}

void decode_command(const DecodeCommand& command, std::istream& in, std::ostream& out) {
  const Tokenizer tokenizer = Tokenizer::load(command.tokenizer);
  const DecodeOptions options{command.skip_special};
  std::vector<TokenId> ids;
  if (!command.jsonl) {
    std::string word;
    while (in >> word) {
      TokenId id = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      if (error != std::errc() || end != word.data() + word.size())
        throw UsageError("input: '{}' is no token id", word.substr(0, 40));
      ids.push_back(id);
    }
    out << tokenizer.decode(ids, options);
    return check_output(out);
  }
  JsonLines lines(in, "input");
  while (lines.next()) {
    lines.ids(ids);
    std::string text;
    try {
      text = tokenizer.decode(ids, options);
    } catch (const UsageError& error) {
      lines.fail(error.what());
    }
    if (!valid_utf8(text)) text = replace_invalid_utf8(text);
    out << "{\"text\": " << Json(text).dump() << "}\n";
  }
  check_output(out);
}

namespace {

// Gives documents to the trainer in batches.
class Feed {
 public:
  explicit Feed(Trainer& trainer) : trainer_(trainer) {}
  void document(std::string text) {
    bytes_ += text.size();
    texts_.push_back(std::move(text));
    if (bytes_ > kTrainBytes) flush();
  }
  void flush() {
    trainer_.add(std::vector<std::string_view>(texts_.begin(), texts_.end()));
    texts_.clear();
    bytes_ = 0;
  }
  void lines(std::istream& in, const std::string& origin) {
    JsonLines lines(in, origin);
    while (lines.next()) {
      std::string text;
      lines.text(text);
      document(std::move(text));
    }
  }

 private:
  Trainer& trainer_;
  std::vector<std::string> texts_;
  std::size_t bytes_ = 0;
};

}  // namespace

void train_command(const TrainCommand& command, std::istream& in, std::ostream& log) {
  Trainer trainer(command.options);
  Feed feed(trainer);
  for (const std::filesystem::path& path : command.inputs) {
    if (path.extension() == ".jsonl") {
      std::ifstream file(path, std::ios::binary);
      if (!file) throw UsageError("{}: cannot be opened", path.string());
      feed.lines(file, path.string());
    } else {
      feed.document(read_file(path, std::int64_t{1} << 32));
    }
  }
  if (command.inputs.empty()) {
    if (command.jsonl) {
      feed.lines(in, "input");
    } else {
      feed.document(whole(in));
    }
  }
  feed.flush();
  const Tokenizer tokenizer = trainer.train();
  tokenizer.save(command.output);
  log << fmt::format("{}: vocabulary {} from {} bytes, {} different words; fingerprint {}\n", command.output.string(),
                     tokenizer.vocab_size(), trainer.bytes(), trainer.words(), tokenizer.fingerprint());
  if (tokenizer.vocab_size() < command.options.vocabulary)
    log << fmt::format(
        "fewer entries than the {} asked for: within the words of this text no two neighbouring tokens that are left "
        "occur {} times or more, so there is nothing to merge; more text gives more entries\n",
        command.options.vocabulary, command.options.min_frequency);
}

}  // namespace molen::data
