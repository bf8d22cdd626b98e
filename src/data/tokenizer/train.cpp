#include "data/tokenizer/train.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <exception>
#include <mutex>
#include <queue>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/splitter.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/word_counts.h"

namespace molen::data {
namespace {

constexpr std::uint32_t kMaxVocabulary = 1 << 22;

// Maps each pair of tokens seen so far to its index.
class PairIndex {
 public:
  PairIndex() : keys_(1 << 16, kEmpty), values_(1 << 16) {}
  // Returns the pair's index; a new pair gets the index `fresh`.
  std::uint32_t find_or_add(std::uint64_t key, std::uint32_t fresh) {
    if ((used_ + 1) * 2 > keys_.size()) grow();
    std::size_t i = place(key);
    if (keys_[i] == key) return values_[i];
    keys_[i] = key;
    values_[i] = fresh;
    ++used_;
    return fresh;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  std::size_t place(std::uint64_t key) const {
    const std::size_t mask = keys_.size() - 1;
    std::uint64_t hash = (key ^ key >> 29) * 0x9e3779b97f4a7c15ull;
    std::size_t i = hash >> (64 - std::countr_zero(keys_.size()));
    while (keys_[i] != kEmpty && keys_[i] != key) i = (i + 1) & mask;
    return i;
  }
  void grow() {
    std::vector<std::uint64_t> keys(keys_.size() * 2, kEmpty);
    std::vector<std::uint32_t> values(keys.size());
    keys.swap(keys_);
    values.swap(values_);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == kEmpty) continue;
      const std::size_t at = place(keys[i]);
      keys_[at] = keys[i];
      values_[at] = values[i];
    }
  }
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint32_t> values_;
  std::size_t used_ = 0;
};

// The merge loop. It reproduces the bookkeeping of Hugging Face's trainer, quirks included, because the ids must be the
// same. A merged pair keeps its count. A pair may appear again, when one of its tokens is also made by another merge.
// It is then queued a second time, with the words of the second appearance only.
class MergeLoop {
 public:
  MergeLoop(const WordCounts& words, TokenizerSpec& spec, const TrainOptions& options)
      : words_(words), spec_(spec), options_(options) {
    for (TokenId id = 0; id < spec.vocabulary.size(); ++id) ids_.emplace(spec.vocabulary[id], id);
    special_ = static_cast<TokenId>(options.special_tokens.size());
    load_words();
    for (std::uint32_t w = 0; w + 1 < offsets_.size(); ++w)
      for (std::uint64_t i = offsets_[w]; i + 1 < offsets_[w + 1]; ++i) change(symbols_[i], symbols_[i + 1], w, 1);
    enqueue_touched();
  }

  void run() {
    while (spec_.vocabulary.size() < options_.vocabulary && !queue_.empty()) {
      Queued top = queue_.top();
      queue_.pop();
      if (top.count != pairs_[top.pair].count) {
        top.count = pairs_[top.pair].count;
        queue_.push(top);
        continue;
      }
      if (top.count < 1 || static_cast<std::uint64_t>(top.count) < options_.min_frequency) break;
      merge(top);
    }
    drop_repeated();
  }

 private:
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // where it appeared since it was last queued
  };
  struct Queued {
    std::int64_t count;
    std::uint64_t key;  // left << 32 | right
    std::uint32_t pair, words;
    bool operator<(const Queued& other) const { return count != other.count ? count < other.count : key > other.key; }
  };

  void load_words() {
    TokenId byte_ids[256];
    for (unsigned b = 0; b < 256; ++b) byte_ids[b] = ids_.at(to_byte_alphabet(std::string(1, static_cast<char>(b))));
    offsets_.push_back(0);
    for (std::size_t w = 0; w < words_.size(); ++w) {
      for (const char c : words_.word(w)) symbols_.push_back(byte_ids[static_cast<unsigned char>(c)]);
      offsets_.push_back(symbols_.size());
    }
    lengths_.resize(words_.size());
    for (std::size_t w = 0; w < words_.size(); ++w)
      lengths_[w] = static_cast<std::uint32_t>(offsets_[w + 1] - offsets_[w]);
  }

  void change(TokenId left, TokenId right, std::uint32_t word, int sign) {
    const std::uint64_t key = static_cast<std::uint64_t>(left) << 32 | right;
    const std::uint32_t index = index_.find_or_add(key, static_cast<std::uint32_t>(pairs_.size()));
    if (index == pairs_.size()) {
      pairs_.emplace_back();
      keys_.push_back(key);
    }
    Pair& pair = pairs_[index];
    pair.count += sign * static_cast<std::int64_t>(words_.count(word));
    if (sign < 0) return;
    if (pair.words.empty()) touched_.push_back(index);
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
  }

  void enqueue_touched() {
    for (const std::uint32_t index : touched_) {
      std::vector<std::uint32_t> words = std::move(pairs_[index].words);
      pairs_[index].words = {};
      if (pairs_[index].count <= 0) continue;
      std::uint32_t slot = static_cast<std::uint32_t>(lists_.size());
      if (!free_.empty()) {
        slot = free_.back();
        free_.pop_back();
        lists_[slot] = std::move(words);
      } else {
        lists_.push_back(std::move(words));
      }
      queue_.push({pairs_[index].count, keys_[index], index, slot});
    }
    touched_.clear();
  }

  void merge(const Queued& top) {
    const auto left = static_cast<TokenId>(top.key >> 32), right = static_cast<TokenId>(top.key);
    const std::string token = spec_.vocabulary[left] + spec_.vocabulary[right];
    const auto [at, fresh] = ids_.try_emplace(token, static_cast<TokenId>(spec_.vocabulary.size()));
    const TokenId result = at->second;
    std::vector<std::uint32_t> words = std::move(lists_[top.words]);
    lists_[top.words] = {};
    free_.push_back(top.words);
    if (result < special_) return;  // ordinary text must never produce a special token
    if (fresh) spec_.vocabulary.push_back(token);
    spec_.merges.emplace_back(left, right);
    for (const std::uint32_t word : words) merge_word(word, left, right, result);
    enqueue_touched();
  }

  void merge_word(std::uint32_t word, TokenId left, TokenId right, TokenId result) {
    TokenId* const s = symbols_.data() + offsets_[word];
    const std::uint32_t n = lengths_[word];
    std::uint32_t to = 0;
    for (std::uint32_t from = 0; from < n;) {
      if (from + 1 >= n || s[from] != left || s[from + 1] != right) {
        s[to++] = s[from++];
        continue;
      }
      if (to > 0) {
        change(s[to - 1], left, word, -1);
        change(s[to - 1], result, word, 1);
      }
      if (from + 2 < n) {
        change(right, s[from + 2], word, -1);
        change(result, s[from + 2], word, 1);
      }
      s[to++] = result;
      from += 2;
    }
    lengths_[word] = to;
  }

  // A pair that merged twice keeps its last rank, as in Hugging Face's trainer.
  void drop_repeated() {
    std::unordered_map<std::uint64_t, std::size_t> last;
    const auto key = [](const auto& merge) { return static_cast<std::uint64_t>(merge.first) << 32 | merge.second; };
    for (std::size_t i = 0; i < spec_.merges.size(); ++i) last[key(spec_.merges[i])] = i;
    std::size_t i = 0;
    std::erase_if(spec_.merges, [&](const auto& merge) { return last[key(merge)] != i++; });
  }

  const WordCounts& words_;
  TokenizerSpec& spec_;
  const TrainOptions& options_;
  TokenId special_ = 0;
  std::unordered_map<std::string, TokenId> ids_;
  std::vector<TokenId> symbols_;        // of all words, one after the other
  std::vector<std::uint64_t> offsets_;  // start of each word in symbols_
  std::vector<std::uint32_t> lengths_;  // current length of each word
  PairIndex index_;
  std::vector<Pair> pairs_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint32_t> touched_;
  std::priority_queue<Queued> queue_;
  std::vector<std::vector<std::uint32_t>> lists_;
  std::vector<std::uint32_t> free_;
};

void check(const TrainOptions& options) {
  const auto& special = options.special_tokens;
  if (options.shape != "gpt2" && options.shape != "llama3")
    throw UsageError("tokenizer training: shape '{}' is neither 'gpt2' nor 'llama3'", options.shape);
  for (std::size_t i = 0; i < special.size(); ++i) {
    std::string bytes;
    if (special[i].empty() || special[i].size() > 1024 || !valid_utf8(special[i]))
      throw UsageError("tokenizer training: special token {} is empty, longer than 1024 bytes or not UTF-8", i);
    if (from_byte_alphabet(special[i], bytes) && bytes.size() == 1)
      throw UsageError("tokenizer training: the special token '{}' is a single byte", special[i]);
    if (std::find(special.begin(), special.begin() + i, special[i]) != special.begin() + i)
      throw UsageError("tokenizer training: the special token '{}' appears twice", special[i]);
  }
  if (options.vocabulary < special.size() + 256 || options.vocabulary > kMaxVocabulary)
    throw UsageError("tokenizer training: a vocabulary of {} is outside {} (256 bytes and {} special tokens) to {}",
                     options.vocabulary, special.size() + 256, special.size(), kMaxVocabulary);
  if (!options.bos.empty() && std::find(special.begin(), special.end(), options.bos) == special.end())
    throw UsageError("tokenizer training: '{}' (bos) is not among the special tokens", options.bos);
}

// Returns the template that puts `bos` before each text.
std::string template_json(const std::string& bos, TokenId id) {
  const auto token = [&](int type) { return Json{{"SpecialToken", {{"id", bos}, {"type_id", type}}}}; };
  const auto sequence = [&](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const Json entry = {{"id", bos}, {"ids", Json::array({id})}, {"tokens", Json::array({bos})}};
  Json specials = Json::object();
  specials[bos] = entry;
  return Json{{"type", "TemplateProcessing"},
              {"single", Json::array({token(0), sequence("A", 0)})},
              {"pair", Json::array({token(0), sequence("A", 0), token(1), sequence("B", 1)})},
              {"special_tokens", specials}}
      .dump();
}

TokenizerSpec start_of(const TrainOptions& options) {
  TokenizerSpec spec;
  spec.split_sequence = options.shape == "llama3";
  spec.ignore_merges = spec.split_sequence;
  spec.pattern = spec.split_sequence ? kLlama3Pattern : kGpt2Pattern;
  for (const std::string& content : options.special_tokens) {
    AddedToken token;
    token.id = static_cast<TokenId>(spec.vocabulary.size());
    token.content = content;
    token.special = true;
    if (content == options.bos) {
      spec.before = {token.id};
      spec.post_processor = template_json(content, token.id);
    }
    spec.vocabulary.push_back(content);
    spec.added.push_back(std::move(token));
  }
  for (std::uint32_t c = 0; spec.vocabulary.size() < options.special_tokens.size() + 256; ++c) {
    if (char_to_byte(c) < 0) continue;
    spec.vocabulary.emplace_back();
    append_utf8(spec.vocabulary.back(), c);
  }
  return spec;
}

}  // namespace

struct Trainer::State {
  explicit State(TrainOptions given)
      : options(std::move(given)),
        splitter(options.shape == "llama3" ? kLlama3Pattern : kGpt2Pattern, "tokenizer training") {
    if (options.threads <= 0) options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    counts.resize(options.threads);
  }
  void gather() {
    for (std::size_t i = 1; i < counts.size(); ++i) {
      counts[0].merge(counts[i]);
      counts[i] = WordCounts();
    }
  }
  TrainOptions options;
  Splitter splitter;
  std::vector<WordCounts> counts;  // one for each thread, added up when needed
  std::uint64_t bytes = 0;
};

Trainer::Trainer(TrainOptions options) {
  check(options);
  state_ = std::make_unique<State>(std::move(options));
}
Trainer::~Trainer() = default;

void Trainer::add(std::span<const std::string_view> texts) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&](WordCounts& counts) {
    try {
      RegexScratch scratch;
      for (std::size_t i; (i = next.fetch_add(1)) < texts.size();) {
        std::string repaired;
        std::string_view text = texts[i];
        if (!valid_utf8(text)) text = repaired = replace_invalid_utf8(text);
        state_->splitter.split(text, scratch, [&](std::string_view piece) { counts.add(piece, 1); });
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = texts.size();
    }
  };
  std::vector<std::jthread> helpers;
  for (std::size_t i = 1; i < std::min(state_->counts.size(), texts.size()); ++i)
    helpers.emplace_back(work, std::ref(state_->counts[i]));
  work(state_->counts[0]);
  helpers.clear();
  if (failure) std::rethrow_exception(failure);
  for (const std::string_view text : texts) state_->bytes += text.size();
}

std::uint64_t Trainer::bytes() const {
  return state_->bytes;
}

std::size_t Trainer::words() const {
  state_->gather();
  return state_->counts[0].size();
}

Tokenizer Trainer::train() const {
  state_->gather();
  if (state_->counts[0].size() == 0) throw UsageError("tokenizer training: there is no text to train on");
  TokenizerSpec spec = start_of(state_->options);
  MergeLoop(state_->counts[0], spec, state_->options).run();
  return Tokenizer(std::move(spec), "trained tokenizer");
}

}  // namespace molen::data
