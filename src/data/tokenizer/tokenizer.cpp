#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/splitter.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/word_cache.h"

namespace molen::data {
namespace {

constexpr std::int64_t kMaxFile = std::int64_t{1} << 29;

std::string fingerprint_of(const TokenizerSpec& spec) {
  Sha256 hash;
  const auto number = [&](std::uint64_t n) {
    std::uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(n >> 8 * i);
    hash.update(bytes, sizeof bytes);
  };
  const auto string = [&](std::string_view s) {
    number(s.size());
    hash.update(s.data(), s.size());
  };
  string("molen-tokenizer-1");
  string(kUnicodeVersion);
  string(spec.pattern);
  number(spec.split_sequence | spec.add_prefix_space << 1 | spec.ignore_merges << 2);
  number(spec.vocabulary.size());
  for (const std::string& token : spec.vocabulary) string(token);
  number(spec.merges.size());
  for (const auto& [left, right] : spec.merges) number(std::uint64_t{left} << 32 | right);
  number(spec.added.size());
  for (const AddedToken& t : spec.added) {
    number(t.id);
    string(t.content);
    number(t.single_word | t.lstrip << 1 | t.rstrip << 2 | t.normalized << 3 | t.special << 4);
  }
  for (const auto* around : {&spec.before, &spec.after}) {
    number(around->size());
    for (const TokenId id : *around) number(id);
  }
  return hash.hex();
}

// Appends to a vector through a pointer. Before each piece there is room for all its tokens, so appending a token needs
// no test.
class TokenOutput {
 public:
  explicit TokenOutput(std::vector<TokenId>& out) : out_(out), at_(out.size()) {}
  ~TokenOutput() { out_.resize(at_); }
  TokenOutput(const TokenOutput&) = delete;
  TokenOutput& operator=(const TokenOutput&) = delete;
  TokenId* room(std::size_t n) {
    if (out_.size() - at_ < n) out_.resize(std::max(out_.size() * 2, at_ + n + 256));
    return out_.data() + at_;
  }
  void advance(std::size_t n) { at_ += n; }
  void append(std::span<const TokenId> ids) {
    std::copy(ids.begin(), ids.end(), room(ids.size()));
    advance(ids.size());
  }

 private:
  std::vector<TokenId>& out_;
  std::size_t at_;
};

}  // namespace

struct Tokenizer::State {
  // Working memory of one thread that encodes.
  struct Scratch {
    WordCache cache;
    MergeScratch merge;
    RegexScratch regex;
    std::vector<TokenId> ids, small;
    std::vector<AddedTokenMatcher::Part> parts, second;
    std::string text;
  };

  State(TokenizerSpec given, std::string_view origin)
      : spec(std::move(given)),
        splitter(spec.pattern, origin),
        raw(spec.added, false),
        normalized(spec.added, true),
        fingerprint(fingerprint_of(spec)) {
    build_tokens(origin);
    build_merges(origin);
    find_ends();
  }

  void build_tokens(std::string_view origin);
  void build_merges(std::string_view origin);
  void find_ends();

  std::unique_ptr<Scratch> borrow() const {
    const std::lock_guard lock(mutex);
    if (pool.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(pool.back());
    pool.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<Scratch> scratch) const {
    const std::lock_guard lock(mutex);
    pool.push_back(std::move(scratch));
  }

  void encode(std::string_view text, EncodeOptions options, Scratch& scratch, std::vector<TokenId>& out) const;
  void encode_plain(std::string_view text, Scratch& scratch, TokenOutput& out) const;
  void encode_piece(std::string_view piece, std::size_t readable, Scratch& scratch, TokenOutput& out) const;
  void tokens_of(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;

  TokenizerSpec spec;
  Splitter splitter;
  AddedTokenMatcher raw, normalized;
  std::string fingerprint;
  MergeTable merges;
  std::array<TokenId, 256> byte_ids{};
  // Bytes of token i: bytes[offsets[i], offsets[i + 1]).
  std::string bytes;
  std::vector<std::size_t> offsets;
  std::vector<bool> special;
  std::unordered_map<std::string, TokenId> whole;  // bytes -> id, without special tokens; only for ignore_merges
  std::optional<TokenId> bos, eos;

  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Scratch>> pool;
};

void Tokenizer::State::build_tokens(std::string_view origin) {
  std::size_t size = spec.vocabulary.size();
  for (const AddedToken& token : spec.added) size = std::max<std::size_t>(size, token.id + std::size_t{1});
  std::vector<const AddedToken*> added(size, nullptr);
  special.assign(size, false);
  for (const AddedToken& token : spec.added) {
    added[token.id] = &token;
    special[token.id] = token.special;
  }
  std::string decoded;
  offsets.reserve(size + 1);
  for (TokenId id = 0; id < size; ++id) {
    offsets.push_back(bytes.size());
    if (id < spec.vocabulary.size() && from_byte_alphabet(spec.vocabulary[id], decoded) && !decoded.empty()) {
      if (decoded.size() == 1) {
        byte_ids[static_cast<unsigned char>(decoded[0])] = id;
        if (special[id])
          throw UsageError("{}: added_tokens: the special token '{}' is a single byte", origin, spec.vocabulary[id]);
      }
      // Ordinary text must never produce a special token.
      if (spec.ignore_merges && !special[id]) whole.emplace(decoded, id);
    } else if (id < spec.vocabulary.size()) {
      decoded = spec.vocabulary[id];
    }
    // An added token stands for its literal text, even if its characters have another meaning in the byte alphabet.
    bytes += added[id] != nullptr ? added[id]->content : id < spec.vocabulary.size() ? decoded : "";
  }
  offsets.push_back(bytes.size());
}

void Tokenizer::State::build_merges(std::string_view origin) {
  std::unordered_map<std::string_view, TokenId> ids;
  ids.reserve(spec.vocabulary.size());
  for (TokenId id = 0; id < spec.vocabulary.size(); ++id)
    if (!spec.vocabulary[id].empty()) ids.emplace(spec.vocabulary[id], id);
  merges.reserve(spec.merges.size());
  std::string joined;
  for (std::uint32_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto [left, right] = spec.merges[rank];
    joined = spec.vocabulary.at(left) + spec.vocabulary.at(right);
    const TokenId result = ids.at(joined);
    if (special[result])
      throw UsageError("{}: model.merges: merge {} makes the special token '{}', so ordinary text could contain it",
                       origin, rank, joined);
    if (!merges.insert(left, right, {rank, result}))
      throw UsageError("{}: model.merges: merge {} ('{}' and '{}') appears twice", origin, rank, spec.vocabulary[left],
                       spec.vocabulary[right]);
  }
}

void Tokenizer::State::find_ends() {
  const auto named = [&](std::initializer_list<const char*> names) -> std::optional<TokenId> {
    for (const char* name : names)
      for (const AddedToken& token : spec.added)
        if (token.content == name) return token.id;
    return std::nullopt;
  };
  bos = !spec.before.empty() ? std::optional(spec.before.front()) : named({"<|begin_of_text|>", "<s>", "<|bos|>"});
  eos = named({"<|endoftext|>", "<|end_of_text|>", "</s>", "<|eos|>"});
  if (!eos && !spec.after.empty()) eos = spec.after.back();
}

void Tokenizer::State::tokens_of(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
  out.clear();
  if (spec.ignore_merges) {
    if (const auto found = whole.find(std::string(piece)); found != whole.end()) return out.push_back(found->second);
  }
  merge_piece(merges, byte_ids, piece, scratch.merge, out);
}

// `readable`: the number of bytes that may be read from the piece's start (the rest of its buffer).
inline void Tokenizer::State::encode_piece(std::string_view piece, std::size_t readable, Scratch& scratch,
                                           TokenOutput& out) const {
  WordCache& cache = scratch.cache;
  WordCache::Key key{};
  std::uint64_t hash = 0;
  const bool is_short = piece.size() <= WordCache::kInline;
  if (is_short) [[likely]] {
    key = WordCache::key_of(piece, readable);
    hash = WordCache::hash_of(key, piece.size());
    if (const WordCache::Slot* slot = cache.find(key, piece.size(), hash)) [[likely]] {
      std::memcpy(out.room(WordCache::kInlineTokens), slot->ids, sizeof slot->ids);
      return out.advance(slot->count);
    }
  }
  const bool is_long = piece.size() <= WordCache::kLongest;
  const std::uint64_t long_hash = is_long ? WordCache::hash_long(piece) : 0;
  if (is_long) {
    if (const std::span<const TokenId> ids = cache.find_long(piece, long_hash); !ids.empty()) return out.append(ids);
  }
  tokens_of(piece, scratch, scratch.small);
  out.append(scratch.small);
  if (is_short && scratch.small.size() <= WordCache::kInlineTokens) {
    cache.insert(key, piece.size(), hash, scratch.small);
  } else if (is_long) {
    cache.insert_long(piece, long_hash, scratch.small);
  }
}

// Text without added tokens, of at least one byte.
void Tokenizer::State::encode_plain(std::string_view text, Scratch& scratch, TokenOutput& out) const {
  if (spec.add_prefix_space && !spec.split_sequence && text.front() != ' ') {
    scratch.text.assign(1, ' ').append(text);
    text = scratch.text;
  }
  const char* const end = text.data() + text.size();
  if (spec.add_prefix_space && spec.split_sequence) {  // in this shape each piece gets its space
    std::string spaced;
    splitter.split(text, scratch.regex, [&](std::string_view piece) {
      if (piece.front() == ' ') return encode_piece(piece, piece.size(), scratch, out);
      spaced.assign(1, ' ').append(piece);
      encode_piece(spaced, spaced.size(), scratch, out);
    });
    return;
  }
  splitter.split(text, scratch.regex, [&](std::string_view piece) {
    encode_piece(piece, static_cast<std::size_t>(end - piece.data()), scratch, out);
  });
}

void Tokenizer::State::encode(std::string_view text, EncodeOptions options, Scratch& scratch,
                              std::vector<TokenId>& result) const {
  std::string repaired;
  if (!valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  TokenOutput out(result);
  if (options.add_template) out.append(spec.before);
  auto& parts = scratch.parts;
  parts.clear();
  if (raw.active(options.allow_special)) {
    raw.find(text, 0, text.size(), options.allow_special, parts);
  } else if (!text.empty()) {
    parts.push_back({-1, 0, text.size()});
  }
  const bool second_pass = normalized.active(options.allow_special);
  const auto emit = [&](const AddedTokenMatcher::Part& part) {
    if (part.token >= 0) {
      *out.room(1) = spec.added[part.token].id;
      out.advance(1);
    } else {
      encode_plain(text.substr(part.first, part.last - part.first), scratch, out);
    }
  };
  for (const auto& part : parts) {
    if (part.token >= 0 || !second_pass) {
      emit(part);
      continue;
    }
    scratch.second.clear();
    normalized.find(text, part.first, part.last, options.allow_special, scratch.second);
    for (const auto& inner : scratch.second) emit(inner);
  }
  if (options.add_template) out.append(spec.after);
}

Tokenizer::Tokenizer(TokenizerSpec spec, std::string_view origin)
    : state_(std::make_shared<const State>(std::move(spec), origin)) {}

Tokenizer Tokenizer::parse(std::string_view json, std::string_view origin) {
  return Tokenizer(parse_tokenizer_json(json, origin), origin);
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  return parse(read_file(path, kMaxFile), path.string());
}

std::string Tokenizer::json() const {
  return tokenizer_json(state_->spec);
}

void Tokenizer::save(const std::filesystem::path& path) const {
  write_file_atomic(path, json());
}

void Tokenizer::encode_to(std::string_view text, EncodeOptions options, std::vector<TokenId>& out) const {
  auto scratch = state_->borrow();
  state_->encode(text, options, *scratch, out);
  // After an exception the scratch is not given back.
  state_->give_back(std::move(scratch));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<TokenId> out;
  encode_to(text, options, out);
  return out;
}

std::vector<std::vector<TokenId>> Tokenizer::encode_batch(std::span<const std::string_view> texts,
                                                          EncodeOptions options, int threads) const {
  std::vector<std::vector<TokenId>> results(texts.size());
  if (threads <= 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      auto scratch = state_->borrow();
      for (std::size_t i; (i = next.fetch_add(1)) < texts.size();) {
        scratch->ids.clear();
        state_->encode(texts[i], options, *scratch, scratch->ids);
        results[i] = scratch->ids;  // exactly as large as needed
      }
      state_->give_back(std::move(scratch));
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = texts.size();
    }
  };
  std::vector<std::jthread> helpers;
  for (std::size_t i = 1; i < std::min<std::size_t>(threads, texts.size()); ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  if (failure) std::rethrow_exception(failure);
  return results;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  std::string out;
  for (const TokenId id : ids) {
    const std::string_view bytes = token_bytes(id);
    if (bytes.empty()) throw UsageError("decode: {} is no token of this tokenizer (vocabulary {})", id, vocab_size());
    if (!options.skip_special || !state_->special[id]) out += bytes;
  }
  return out;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id >= vocab_size()) return {};
  const std::vector<std::size_t>& offsets = state_->offsets;
  return std::string_view(state_->bytes).substr(offsets[id], offsets.at(id + 1) - offsets[id]);
}

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  for (const AddedToken& added : state_->spec.added)
    if (added.content == token) return added.id;
  const std::string symbols = to_byte_alphabet(token);
  const auto& vocabulary = state_->spec.vocabulary;
  const auto found = std::find(vocabulary.begin(), vocabulary.end(), symbols);
  if (symbols.empty() || found == vocabulary.end()) return std::nullopt;
  return static_cast<TokenId>(found - vocabulary.begin());
}

bool Tokenizer::is_special(TokenId id) const {
  return id < vocab_size() && state_->special[id];
}
std::uint32_t Tokenizer::vocab_size() const {
  return static_cast<std::uint32_t>(state_->special.size());
}
std::optional<TokenId> Tokenizer::bos_id() const {
  return state_->bos;
}
std::optional<TokenId> Tokenizer::eos_id() const {
  return state_->eos;
}
const std::string& Tokenizer::pattern() const {
  return state_->spec.pattern;
}
const TokenizerSpec& Tokenizer::spec() const {
  return state_->spec;
}
const std::string& Tokenizer::fingerprint() const {
  return state_->fingerprint;
}

}  // namespace molen::data
