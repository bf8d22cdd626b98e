#include "data/dataset.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numbers>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/suggest.h"
#include "base/units.h"
#include "data/verified.h"

namespace molen::data {
namespace {

bool is_hashed(const ShardRecord& record, std::int64_t limit) {
  return record.bin.bytes + record.idx.bytes <= limit;
}

// Compares structure and sizes with the manifest. Then compares the hashes of a small shard, or checks 16 stretches of
// tokens of a large one.
void check_shard(const fs::path& folder, const ShardRecord& record, std::int64_t vocabulary, std::int64_t hash_limit) {
  const std::string prefix = (folder / record.name).string();
  const auto size_of_file = [&](const FileRecord& file) { return File::open(folder / file.path).size(); };
  const std::int64_t bin_bytes = size_of_file(record.bin), idx_bytes = size_of_file(record.idx);
  const bool hashed = is_hashed(record, hash_limit);
  const bool right = bin_bytes == record.bin.bytes && idx_bytes == record.idx.bytes;
  // Above the limit only the header of an index is read.
  const ShardIndex index = !right   ? ShardIndex{DType::kU16, record.tokens, record.documents}
                           : hashed ? read_index(prefix)
                                    : read_index_header(prefix);
  if (!right || index.tokens != record.tokens || index.documents != record.documents)
    throw UsageError(
        "{}: {} documents, {} tokens, {} bytes of tokens and {} of index; its manifest says {}, {}, {} and {}: "
        "truncated or altered, run `molen data prepare` again",
        prefix, index.documents, index.tokens, bin_bytes, idx_bytes, record.documents, record.tokens, record.bin.bytes,
        record.idx.bytes);
  if (hashed) {
    for (const FileRecord* file : {&record.bin, &record.idx})
      if (sha256_file(folder / file->path) != file->sha256)
        throw UsageError("{}: its SHA-256 is not the one in the manifest: altered; run `molen data prepare` again",
                         (folder / file->path).string());
  }
  const ShardReader reader(prefix, record.tokens, record.bin.bytes);
  std::vector<std::int32_t> sample(static_cast<std::size_t>(std::min<std::int64_t>(4096, reader.tokens())));
  for (std::int64_t i = 0; i < 16 && !sample.empty(); ++i)
    reader.read((reader.tokens() - static_cast<std::int64_t>(sample.size())) / 15 * i, sample, vocabulary);
}

// Verifies the shards that this machine has not verified before, when `options.remember` is set, else all. Returns the
// bytes of shards that were not hashed, now or before.
std::int64_t verify_shards(const fs::path& folder, const std::vector<const ShardRecord*>& records,
                           std::int64_t vocabulary, const OpenOptions& options) {
  std::optional<VerifiedShards> before;
  if (options.remember) before.emplace(folder);
  std::int64_t unhashed = 0;
  for (const ShardRecord* record : records) {
    const Verified now = is_hashed(*record, options.hash_limit) ? Verified::kHashed : Verified::kSampled;
    const Verified known = before ? before->state(*record) : Verified::kNo;
    if (known == Verified::kNo || known < now) {
      const std::string stamp = before ? before->stamp(*record) : "";
      check_shard(folder, *record, vocabulary, options.hash_limit);
      if (before) before->add(*record, stamp, now);
    }
    if (std::max(known, now) != Verified::kHashed) unhashed += record->bin.bytes + record->idx.bytes;
  }
  if (before) before->save();
  return unhashed;
}

void check_options(const OpenOptions& options) {
  if (options.sequence_length < 1)
    throw UsageError("data.sequence_length: {} must be at least 1", options.sequence_length);
  if (options.vocabulary < 1 || options.vocabulary > std::numeric_limits<std::int32_t>::max())
    throw UsageError("model.vocabulary: {} is impossible", options.vocabulary);
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

void require_languages(const fs::path& path, const std::vector<std::string>& wanted,
                       const std::set<std::string>& present) {
  const std::vector<std::string> names(present.begin(), present.end());
  for (const std::string& language : wanted)
    if (!present.contains(language))
      throw UsageError("{}: no shard in language '{}' (there are: {}){}", path.string(), language, join(names),
                       did_you_mean(language, names));
}

// Formats a note about folders and the bytes of their shards that were not hashed.
std::string note_of(const std::map<std::string, std::int64_t>& folders, std::int64_t hash_limit) {
  std::string commands;
  std::int64_t bytes = 0;
  for (const auto& [folder, size] : folders) {
    if (size == 0) continue;
    commands += (commands.empty() ? "" : ", ") + fmt::format("`molen data verify {}`", folder);
    bytes += size;
  }
  if (bytes == 0) return "";
  return fmt::format(
      "{} of data are in shards of more than {} each, of which only sizes and sampled tokens were checked; to check "
      "their hashes, run {}",
      human(Bytes(bytes)), human(Bytes(hash_limit)), commands);
}

}  // namespace

void document_starts(std::span<const std::int32_t> tokens, std::int32_t end_of_text, std::span<std::int32_t> starts) {
  MOLEN_CHECK(tokens.size() == starts.size(), "{} starts of {} tokens", starts.size(), tokens.size());
  std::int32_t start = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    starts[i] = start;
    if (tokens[i] == end_of_text) start = static_cast<std::int32_t>(i) + 1;
  }
}

TokenStream::TokenStream(const fs::path& path, const std::vector<std::string>& languages, const OpenOptions& options)
    : vocabulary_(options.vocabulary) {
  check_options(options);
  const Manifest manifest = read_manifest(path);
  const fs::path folder = manifest_folder(path);
  check_tokenizer(manifest, path.string(), options.tokenizer_fingerprint, options.vocabulary);
  std::set<std::string> present;
  for (const ShardRecord& shard : manifest.shards) present.insert(shard.language);
  require_languages(path, languages, present);
  end_of_text_ = manifest.tokenizer.end_of_text;
  std::vector<const ShardRecord*> chosen;
  for (const ShardRecord& record : manifest.shards)
    if (languages.empty() || std::find(languages.begin(), languages.end(), record.language) != languages.end())
      chosen.push_back(&record);
  // Tokens beyond the tokenizer's own vocabulary are damage even when the model's vocabulary is larger.
  if (options.verify) unhashed_bytes_ = verify_shards(folder, chosen, manifest.tokenizer.vocabulary, options);
  Sha256 hash;
  for (const ShardRecord* record : chosen) {
    hash.update(record->bin.sha256.data(), record->bin.sha256.size());
    text_bytes_ += record->text_bytes;
    if (record->tokens == 0) continue;
    starts_.push_back(starts_.back() + record->tokens);
    shards_.emplace_back(folder / record->name, record->tokens, record->bin.bytes);
  }
  digest_ = hash.hex();
  if (tokens() == 0) throw UsageError("{}: holds no tokens", path.string());
}

void TokenStream::read(std::int64_t first, std::span<std::int32_t> out) const {
  MOLEN_CHECK(first >= 0 && first < tokens(), "token {} of {}", first, tokens());
  auto shard = static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1);
  std::int64_t at = first - starts_[shard];
  while (!out.empty()) {
    const std::int64_t left = shards_[shard].tokens() - at;
    const auto take = static_cast<std::size_t>(std::min<std::int64_t>(left, static_cast<std::int64_t>(out.size())));
    shards_[shard].read(at, out.first(take), vocabulary_);
    out = out.subspan(take);
    shard = (shard + 1) % shards_.size();
    at = 0;
  }
}

Dataset::Dataset(const std::vector<DataEntry>& entries, std::uint64_t seed, const OpenOptions& options)
    : seed_(seed), options_(options) {
  const auto weighted =
      std::count_if(entries.begin(), entries.end(), [](const DataEntry& e) { return e.weight.has_value(); });
  if (weighted != 0 && weighted != static_cast<std::ptrdiff_t>(entries.size()))
    throw UsageError("data.train: {} of {} entries have a weight; give one to each or to none", weighted,
                     entries.size());
  for (const DataEntry& entry : entries) {
    Component component{entry, std::make_unique<TokenStream>(entry.path, entry.languages, options)};
    component.windows = component.stream->tokens() / options.sequence_length;
    if (component.stream->tokens() < options.sequence_length + 1)
      throw UsageError("{}: {} tokens, fewer than one sequence of {} and its next token; lower data.sequence_length",
                       entry.path.string(), component.stream->tokens(), options.sequence_length);
    component.key = stream_key(seed, fmt::format("data.train[{}]", components_.size()));
    weights_.push_back(entry.weight.value_or(static_cast<double>(component.stream->tokens())));
    components_.push_back(std::move(component));
  }
  mixture_.emplace(weights_);
}

std::int64_t Dataset::tokens() const {
  std::int64_t sum = 0;
  for (const Component& component : components_) sum += component.stream->tokens();
  return sum;
}

std::int64_t Dataset::sequences() const {
  std::int64_t sum = 0;
  for (const Component& component : components_) sum += component.windows;
  return sum;
}

Dataset::Origin Dataset::origin(std::int64_t global_sample) const {
  const Mixture::Place place = mixture_->at(global_sample);
  const Component& c = components_[static_cast<std::size_t>(place.component)];
  const std::int64_t epoch = place.index / c.windows;
  const auto tokens = static_cast<std::uint64_t>(c.stream->tokens());
  const std::uint64_t key = philox(c.key, static_cast<std::uint64_t>(epoch))[0] |
                            static_cast<std::uint64_t>(philox(c.key, static_cast<std::uint64_t>(epoch))[1]) << 32;
  const std::uint64_t offset = permute_at(key, 0, tokens);
  const std::uint64_t window =
      permute_at(~key, static_cast<std::uint64_t>(place.index % c.windows), static_cast<std::uint64_t>(c.windows));
  const std::uint64_t first = (offset + window * static_cast<std::uint64_t>(options_.sequence_length)) % tokens;
  return {place.component, epoch, static_cast<std::int64_t>(first)};
}

void Dataset::read(std::int64_t global_sample, std::span<std::int32_t> out) const {
  MOLEN_CHECK(static_cast<std::int64_t>(out.size()) == options_.sequence_length + 1, "{} tokens asked", out.size());
  const Origin from = origin(global_sample);
  components_[static_cast<std::size_t>(from.component)].stream->read(from.first_token, out);
}

std::int32_t Dataset::end_of_text(std::int64_t global_sample) const {
  return components_[static_cast<std::size_t>(mixture_->at(global_sample).component)].stream->end_of_text();
}

std::string Dataset::describe(std::int64_t global_sample) const {
  const Origin from = origin(global_sample);
  const DataEntry& entry = components_[static_cast<std::size_t>(from.component)].entry;
  return fmt::format("{}{}, epoch {}, token {}", entry.path.string(),
                     entry.languages.empty() ? "" : " (" + join(entry.languages) + ")", from.epoch, from.first_token);
}

std::string Dataset::digest() const {
  std::string all = fmt::format("window-1 seed {} length {}\n", seed_, options_.sequence_length);
  for (std::size_t i = 0; i < components_.size(); ++i)
    all += fmt::format("{} {:a}\n", components_[i].stream->digest(), weights_[i]);
  return sha256_hex(all);
}

std::string Dataset::unhashed_note() const {
  std::map<std::string, std::int64_t> folders;  // several entries may name the same folder
  for (const Component& c : components_) folders[c.entry.path.string()] += c.stream->unhashed_bytes();
  return note_of(folders, options_.hash_limit);
}

std::vector<double> Dataset::shares() const {
  double sum = 0;
  for (double weight : weights_) sum += weight;
  std::vector<double> shares;
  for (double weight : weights_) shares.push_back(weight / sum);
  return shares;
}

ValidationSet::ValidationSet(const fs::path& path, const OpenOptions& options,
                             const std::vector<std::string>& languages)
    : path_(path), options_(options) {
  std::set<std::string> names;
  for (const ShardRecord& shard : read_manifest(path).shards)
    if (shard.tokens > 0) names.insert(shard.language);
  if (names.empty()) throw UsageError("{}: holds no tokens", path.string());
  require_languages(path, languages, names);
  if (!languages.empty()) names = std::set<std::string>(languages.begin(), languages.end());
  for (const std::string& name : names) {
    streams_.push_back(std::make_unique<TokenStream>(path, std::vector{name}, options));
    const std::int64_t tokens = streams_.back()->tokens();
    const std::int64_t windows = (tokens + options.sequence_length - 1) / options.sequence_length;
    languages_.push_back({name, tokens, streams_.back()->text_bytes(), windows});
  }
}

std::int64_t ValidationSet::read(int language, std::int64_t window, std::span<std::int32_t> ids,
                                 std::span<std::int32_t> labels) const {
  const Language& info = languages_.at(static_cast<std::size_t>(language));
  const TokenStream& stream = *streams_.at(static_cast<std::size_t>(language));
  const std::int64_t length = options_.sequence_length;
  MOLEN_CHECK(window >= 0 && window < info.windows, "window {} of {}", window, info.windows);
  MOLEN_CHECK(static_cast<std::int64_t>(ids.size()) == length && ids.size() == labels.size(), "{} ids", ids.size());
  const std::int64_t first = window * length, valid = std::min(length, info.tokens - first);
  stream.read(first, labels.first(static_cast<std::size_t>(valid)));
  std::fill(labels.begin() + valid, labels.end(), -1);
  std::fill(ids.begin() + valid, ids.end(), stream.end_of_text());
  std::copy(labels.begin(), labels.begin() + valid - 1, ids.begin() + 1);
  ids[0] = stream.end_of_text();
  if (first > 0) stream.read(first - 1, ids.first(1));
  return valid;
}

std::string ValidationSet::unhashed_note() const {
  std::int64_t bytes = 0;
  for (const auto& stream : streams_) bytes += stream->unhashed_bytes();
  return note_of({{path_.string(), bytes}}, options_.hash_limit);
}

double ValidationSet::bits_per_byte(int language, double loss_sum, std::int64_t tokens) const {
  const Language& info = languages_.at(static_cast<std::size_t>(language));
  const double bytes =
      static_cast<double>(info.text_bytes) * static_cast<double>(tokens) / static_cast<double>(info.tokens);
  return loss_sum / std::numbers::ln2 / bytes;
}

}  // namespace molen::data
