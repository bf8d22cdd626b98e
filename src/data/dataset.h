// Turns shards into sequences of S + 1 tokens. Their order is a pure function of (seed, global sample index).
//
// Each entry of `data.train` is a component: its shards (of the chosen languages), one after another, form a circle of
// T tokens. Every document in it ends with the end-of-text token. In epoch e the circle is cut into n = floor(T / S)
// windows. A key made from (seed, component, e) gives the offset o of the first window and the order in which windows
// are read. Window w holds inputs [o + wS, o + wS + S) and labels one position further. So each token is a label at
// most once in an epoch. T mod S tokens are left out, different ones in each epoch. This needs no index files and no
// tables, and does not depend on ranks. data/mixture.h chooses the component of the g-th global sample.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/manifest.h"
#include "data/mixture.h"
#include "data/shard.h"

namespace molen::data {

// Computes for each token of a row the column where the token's document begins: the one after the last end-of-text
// token before it, or 0. An end-of-text token is the last token of its document. Every document ends with one, so this
// also holds across shards and where the circle closes.
void document_starts(std::span<const std::int32_t> tokens, std::int32_t end_of_text, std::span<std::int32_t> starts);

// One entry of `data.train`: a folder with a manifest.json. Weights are in any unit; when no entry has a weight, each
// entry's share is its share of the tokens. An empty list of languages means all.
struct DataEntry {
  fs::path path;
  std::optional<double> weight;
  std::vector<std::string> languages;
};

// Checks on opening training or validation data.
struct OpenOptions {
  std::int64_t sequence_length = 0;
  std::int64_t vocabulary = 0;        // of the model
  std::string tokenizer_fingerprint;  // "" = not compared
  // Shards up to this size are hashed when they are opened. For larger shards only the sizes and some sampled tokens
  // are checked; `molen data verify` checks the rest.
  std::int64_t hash_limit = std::int64_t{256} << 20;
  // Whether to compare the shards with their manifest when they are opened. A rank may leave this to another rank and
  // trust the manifest; each shard's form is still checked when it is read.
  bool verify = true;
  // Whether to trust and record earlier verifications on this machine (data/verified.h).
  bool remember = false;
};

// Shards one after another, read as one row of tokens.
class TokenStream {
 public:
  // Opens the shards of `path` (all of them when `languages` is empty) and verifies them according to `options`. Throws
  // UsageError when the folder does not exist, a language has no shards, the tokenizer is another one, a size or hash
  // differs from the manifest, or a token is beyond the vocabulary.
  TokenStream(const fs::path& path, const std::vector<std::string>& languages, const OpenOptions& options);

  std::int64_t tokens() const { return starts_.back(); }
  std::int64_t text_bytes() const { return text_bytes_; }
  std::int32_t end_of_text() const { return end_of_text_; }
  // Reads tokens [first, first + out.size()); past the end, reading continues from the start.
  void read(std::int64_t first, std::span<std::int32_t> out) const;
  // Returns a digest that changes when any token of any shard does.
  const std::string& digest() const { return digest_; }
  // Returns the bytes of the shards beyond OpenOptions::hash_limit, whose hashes were not compared.
  std::int64_t unhashed_bytes() const { return unhashed_bytes_; }

 private:
  std::int64_t vocabulary_;
  std::int64_t text_bytes_ = 0, unhashed_bytes_ = 0;
  std::int32_t end_of_text_ = 0;
  std::deque<ShardReader> shards_;
  std::vector<std::int64_t> starts_{0};
  std::string digest_;
};

class Dataset {
 public:
  Dataset(const std::vector<DataEntry>& entries, std::uint64_t seed, const OpenOptions& options);

  std::int64_t sequence_length() const { return options_.sequence_length; }
  std::int64_t tokens() const;     // of all components
  std::int64_t sequences() const;  // of one pass over all components

  // Fills `out` (S + 1 tokens) with the sequence at `global_sample` >= 0. Threads may call it at the same time.
  void read(std::int64_t global_sample, std::span<std::int32_t> out) const;

  struct Origin {
    int component;
    std::int64_t epoch;
    std::int64_t first_token;  // position in the component's circle
  };
  // Returns the origin of a sample, which the training loop reports when a loss is not finite.
  Origin origin(std::int64_t global_sample) const;
  // Returns the end-of-text token of the component that the sample comes from.
  std::int32_t end_of_text(std::int64_t global_sample) const;
  // Returns a text such as "nl,en from data/train, epoch 0, token 81920".
  std::string describe(std::int64_t global_sample) const;

  // Returns a digest that changes when the order or any token changes; a resumed run compares it.
  std::string digest() const;
  // Returns the share of each entry, in the order given; they sum to 1.
  std::vector<double> shares() const;
  // Returns a note for the log of a run: which shards were not hashed when they were opened, and which commands hash
  // them; "" when all were hashed.
  std::string unhashed_note() const;

 private:
  struct Component {
    DataEntry entry;
    std::unique_ptr<TokenStream> stream;
    std::int64_t windows = 0;
    std::uint64_t key = 0;
  };
  std::uint64_t seed_;
  OpenOptions options_;
  std::vector<Component> components_;
  std::vector<double> weights_;
  std::optional<Mixture> mixture_;
};

// Held-out text, one stream per language. Its windows do not overlap. The input row is one end-of-text token followed
// by the stream, so that each token of the stream (end-of-text included) is a label exactly once. Labels of -1 fill up
// the last window.
class ValidationSet {
 public:
  // An empty list of languages means all. Throws UsageError for a language without shards.
  ValidationSet(const fs::path& path, const OpenOptions& options, const std::vector<std::string>& languages = {});

  struct Language {
    std::string name;
    std::int64_t tokens;      // labels
    std::int64_t text_bytes;  // UTF-8
    std::int64_t windows;
  };
  const std::vector<Language>& languages() const { return languages_; }
  // Fills `ids` and `labels` (S elements each) with window `window` of language number `language`. Returns the number
  // of valid labels.
  std::int64_t read(int language, std::int64_t window, std::span<std::int32_t> ids,
                    std::span<std::int32_t> labels) const;

  // Returns the end-of-text token of a language's documents.
  std::int32_t end_of_text(int language) const { return streams_[static_cast<std::size_t>(language)]->end_of_text(); }

  // Returns bits per UTF-8 byte from the summed loss (in nats) of `tokens` labels. When only some windows were read,
  // their bytes are estimated in proportion to the tokens.
  double bits_per_byte(int language, double loss_sum, std::int64_t tokens) const;
  // Returns the same kind of note as Dataset::unhashed_note.
  std::string unhashed_note() const;

 private:
  fs::path path_;
  OpenOptions options_;
  std::vector<Language> languages_;
  std::vector<std::unique_ptr<TokenStream>> streams_;
};

}  // namespace molen::data
