#include "data/tokenizer/spec.h"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/scan.h"
#include "data/tokenizer/unicode.h"

namespace molen::data {
namespace {

constexpr TokenId kMaxId = 1 << 24;
constexpr std::size_t kMaxTokenBytes = 1 << 16;
constexpr std::size_t kMaxAdded = 1 << 16;
// Real added tokens have up to 50 bytes. The limit bounds the work, because at each byte the text is compared with
// them.
constexpr std::size_t kMaxAddedBytes = 512;
// Ids without a token still take memory; added tokens may fill them.
constexpr std::size_t kMaxHoles = kMaxAdded;

class Reader {
 public:
  Reader(const Json& root, std::string_view origin) : root_(root), origin_(origin) {}

  TokenizerSpec read() {
    if (!root_.is_object()) fail("", "not a JSON object");
    for (const char* key : {"truncation", "padding"})
      if (!null(root_, key)) fail(key, "must be null: texts are encoded whole");
    read_normalizer();
    read_pre_tokenizer();
    read_decoder();
    read_model();
    read_added();
    read_post_processor();
    return std::move(spec_);
  }

 private:
  [[noreturn]] void fail(std::string_view key, std::string_view why) const {
    throw UsageError("{}: {}{}{}", origin_, key, key.empty() ? "" : ": ", why);
  }

  // A missing key counts as null.
  static bool null(const Json& object, const char* key) { return !object.contains(key) || object.at(key).is_null(); }
  const Json& object(const Json& parent, const char* key) const {
    if (!parent.is_object() || !parent.contains(key) || !parent.at(key).is_object()) fail(key, "must be an object");
    return parent.at(key);
  }
  const Json& array(const Json& parent, const char* key) const {
    if (!parent.is_object() || !parent.contains(key) || !parent.at(key).is_array()) fail(key, "must be an array");
    return parent.at(key);
  }
  std::string text(const Json& parent, const char* key) const {
    if (!parent.is_object() || !parent.contains(key) || !parent.at(key).is_string()) fail(key, "must be a string");
    return parent.at(key).get<std::string>();
  }
  bool flag(const Json& parent, const char* key, bool otherwise) const {
    if (null(parent, key)) return otherwise;
    if (!parent.at(key).is_boolean()) fail(key, "must be true or false");
    return parent.at(key).get<bool>();
  }
  TokenId id(const Json& value, std::string_view key) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kMaxId)
      fail(key, fmt::format("{} is no token id (0 to {})", value.dump().substr(0, 40), kMaxId - 1));
    return value.get<TokenId>();
  }
  // Returns the `type` of a component; refuses an object without a type.
  std::string type(const Json& component, const char* where) const {
    if (!component.is_object()) fail(where, "must be an object with a 'type'");
    return text(component, "type");
  }

  void read_normalizer() {
    if (null(root_, "normalizer")) return;
    const Json& normalizer = root_.at("normalizer");
    const std::string kind = type(normalizer, "normalizer");
    if (kind == "Sequence" && array(normalizer, "normalizers").empty()) return;
    fail("normalizer",
         fmt::format("'{}' is not supported; only null is (byte-level models of the GPT-2 and Llama-3 kind)", kind));
  }

  void read_pre_tokenizer() {
    const char* const kShapes =
        "supported are ByteLevel with use_regex (GPT-2) and Sequence[Split(Regex, Isolated), ByteLevel without "
        "use_regex] "
        "(Llama-3)";
    const Json& pre = object(root_, "pre_tokenizer");
    const std::string kind = type(pre, "pre_tokenizer");
    if (kind == "ByteLevel") {
      if (!flag(pre, "use_regex", true)) fail("pre_tokenizer", fmt::format("ByteLevel without use_regex; {}", kShapes));
      spec_.add_prefix_space = flag(pre, "add_prefix_space", true);
      spec_.pattern = kGpt2Pattern;
      return;
    }
    if (kind != "Sequence") fail("pre_tokenizer", fmt::format("'{}' is not supported; {}", kind, kShapes));
    const Json& parts = array(pre, "pretokenizers");
    if (parts.size() != 2 || type(parts[0], "pretokenizers") != "Split" ||
        type(parts[1], "pretokenizers") != "ByteLevel")
      fail("pre_tokenizer", kShapes);
    const Json& pattern = object(parts[0], "pattern");
    if (!pattern.contains("Regex")) fail("pre_tokenizer", fmt::format("Split needs a Regex; {}", kShapes));
    if (text(parts[0], "behavior") != "Isolated" || flag(parts[0], "invert", false))
      fail("pre_tokenizer", fmt::format("Split must be Isolated and not inverted; {}", kShapes));
    if (flag(parts[1], "use_regex", true)) fail("pre_tokenizer", fmt::format("two patterns in a row; {}", kShapes));
    spec_.split_sequence = true;
    spec_.pattern = text(pattern, "Regex");
    spec_.add_prefix_space = flag(parts[1], "add_prefix_space", true);
  }

  void read_decoder() {
    const Json* decoder = &object(root_, "decoder");
    if (type(*decoder, "decoder") == "Sequence") {
      const Json& parts = array(*decoder, "decoders");
      if (parts.size() != 1) fail("decoder", "only ByteLevel is supported");
      decoder = &parts[0];
    }
    if (type(*decoder, "decoder") != "ByteLevel") fail("decoder", "only ByteLevel is supported");
  }

  void read_model() {
    const Json& model = object(root_, "model");
    if (model.contains("type") && text(model, "type") != "BPE")
      fail("model.type", fmt::format("'{}' is not supported; only BPE is", text(model, "type")));
    if (!null(model, "dropout") && !(model.at("dropout").is_number() && model.at("dropout").get<double>() == 0.0))
      fail("model.dropout", "must be null: ids must not depend on chance");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!null(model, key) && !text(model, key).empty()) fail(key, "is not supported by byte-level models");
    if (flag(model, "byte_fallback", false))
      fail("model.byte_fallback", "is not supported: a byte-level vocabulary needs no fallback");
    if (!null(model, "unk_token")) text(model, "unk_token");  // never used: all 256 bytes are required below
    spec_.ignore_merges = flag(model, "ignore_merges", false);
    read_vocabulary(object(model, "vocab"));
    read_merges(array(model, "merges"));
  }

  void read_vocabulary(const Json& vocabulary) {
    if (vocabulary.empty() || vocabulary.size() > kMaxId) fail("model.vocab", "is empty or too large");
    ids_.reserve(vocabulary.size());
    for (const auto& [token, value] : vocabulary.items()) {
      const TokenId at = id(value, "model.vocab");
      if (token.empty() || token.size() > kMaxTokenBytes) fail("model.vocab", "a token is empty or longer than 64 KiB");
      if (at >= vocabulary.size() + kMaxHoles)
        fail("model.vocab", fmt::format("id {} in a vocabulary of {} entries: more than {} ids stand for nothing", at,
                                        vocabulary.size(), kMaxHoles));
      if (at >= spec_.vocabulary.size()) spec_.vocabulary.resize(at + 1);
      if (!spec_.vocabulary[at].empty())
        fail("model.vocab", fmt::format("id {} stands for '{}' and for '{}'", at, spec_.vocabulary[at], token));
      spec_.vocabulary[at] = token;
      ids_.emplace(token, at);
    }
    vocabulary_size_ = vocabulary.size();
    for (unsigned byte = 0; byte < 256; ++byte) {
      std::string symbol;
      append_utf8(symbol, byte_to_char(static_cast<std::uint8_t>(byte)));
      if (!ids_.contains(symbol))
        fail("model.vocab", fmt::format("no token for byte 0x{:02x} ('{}'): text with it would be lost", byte, symbol));
    }
  }

  TokenId merge_part(const std::string& part, std::size_t rank) const {
    const auto found = ids_.find(part);
    if (found == ids_.end())
      fail("model.merges", fmt::format("merge {}: '{}' is not in the vocabulary", rank, part.substr(0, 100)));
    return found->second;
  }

  void read_merges(const Json& merges) {
    if (merges.size() > kMaxId) fail("model.merges", "too many");
    spec_.merges.reserve(merges.size());
    for (const Json& merge : merges) {
      const std::size_t rank = spec_.merges.size();
      std::string left, right;
      if (merge.is_string()) {
        const auto& both = merge.get_ref<const std::string&>();
        const std::size_t space = both.find(' ');
        if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos)
          fail("model.merges", fmt::format("merge {}: '{}' is not two tokens and a space", rank, both.substr(0, 100)));
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        fail("model.merges", fmt::format("merge {} is neither \"a b\" nor [\"a\", \"b\"]", rank));
      }
      merge_part(left + right, rank);
      spec_.merges.emplace_back(merge_part(left, rank), merge_part(right, rank));
    }
  }

  void read_added() {
    if (null(root_, "added_tokens")) return;
    const Json& tokens = array(root_, "added_tokens");
    if (tokens.size() > kMaxAdded) fail("added_tokens", fmt::format("more than {}", kMaxAdded));
    std::optional<TokenId> highest;
    for (const Json& entry : tokens) {
      if (!entry.is_object() || !entry.contains("id")) fail("added_tokens", "an entry is not an object with an 'id'");
      AddedToken token;
      token.id = id(entry.at("id"), "added_tokens");
      token.content = text(entry, "content");
      token.single_word = flag(entry, "single_word", false);
      token.lstrip = flag(entry, "lstrip", false);
      token.rstrip = flag(entry, "rstrip", false);
      token.normalized = flag(entry, "normalized", false);
      token.special = flag(entry, "special", false);
      check_added(token, highest);
      highest = std::max(highest.value_or(0), token.id);
      spec_.added.push_back(std::move(token));
    }
  }

  // Hugging Face ignores the file's ids: a token of the vocabulary keeps its vocabulary id, and any other token gets
  // the next free id.
  void check_added(const AddedToken& token, std::optional<TokenId> highest) {
    const std::string shown = token.content.substr(0, 100);
    if (token.content.empty() || token.content.size() > kMaxAddedBytes)
      fail("added_tokens", fmt::format("token {} is empty or longer than {} bytes", token.id, kMaxAddedBytes));
    if (!added_.insert(token.content).second) fail("added_tokens", fmt::format("'{}' appears twice", shown));
    const auto found = ids_.find(token.content);
    const auto size = static_cast<TokenId>(vocabulary_size_);
    const TokenId expected = found != ids_.end() ? found->second : highest && *highest >= size ? *highest + 1 : size;
    if (token.id != expected)
      fail("added_tokens", fmt::format("'{}' has id {}, but the vocabulary and the tokens before it make it {}", shown,
                                       token.id, expected));
    if (found == ids_.end() && token.id < spec_.vocabulary.size() && !spec_.vocabulary[token.id].empty())
      fail("added_tokens", fmt::format("'{}' has id {}, which is '{}'", shown, token.id, spec_.vocabulary[token.id]));
  }

  void read_post_processor() {
    if (null(root_, "post_processor")) return;
    const Json& post = root_.at("post_processor");
    spec_.post_processor = post.dump();
    if (type(post, "post_processor") != "Sequence") return read_processor(post);
    for (const Json& part : array(post, "processors")) read_processor(part);
  }

  void read_processor(const Json& processor) {
    const std::string kind = type(processor, "post_processor");
    if (kind == "ByteLevel") return;  // only moves offsets
    if (kind != "TemplateProcessing")
      fail("post_processor", fmt::format("'{}' is not supported; TemplateProcessing and ByteLevel are", kind));
    const Json& specials = object(processor, "special_tokens");
    std::vector<TokenId> before, after;
    bool seen = false;
    for (const Json& piece : array(processor, "single")) {
      if (piece.is_object() && piece.contains("Sequence")) {
        if (seen || text(piece.at("Sequence"), "id") != "A") fail("post_processor", "'single' must hold A once");
        seen = true;
        continue;
      }
      const std::string name = text(object(piece, "SpecialToken"), "id");
      for (const Json& value : array(object(specials, name.c_str()), "ids")) {
        const TokenId token = id(value, "post_processor");
        if (!known(token)) fail("post_processor", fmt::format("'{}' has id {}, which is no token", name, token));
        (seen ? after : before).push_back(token);
        if (before.size() + after.size() > 64) fail("post_processor", "more than 64 tokens around a text");
      }
    }
    if (!seen) fail("post_processor", "'single' must hold A once");
    spec_.before.insert(spec_.before.begin(), before.begin(), before.end());
    spec_.after.insert(spec_.after.end(), after.begin(), after.end());
  }

  bool known(TokenId token) const {
    if (token < spec_.vocabulary.size() && !spec_.vocabulary[token].empty()) return true;
    return std::any_of(spec_.added.begin(), spec_.added.end(), [&](const AddedToken& a) { return a.id == token; });
  }

  const Json& root_;
  std::string_view origin_;
  TokenizerSpec spec_;
  std::set<std::string> added_;
  std::unordered_map<std::string, TokenId> ids_;
  std::size_t vocabulary_size_ = 0;
};

Json byte_level(bool add_prefix_space, bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Json pre_tokenizer_json(const TokenizerSpec& spec) {
  if (!spec.split_sequence) return byte_level(spec.add_prefix_space, true);
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", spec.pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(spec.add_prefix_space, false)})}};
}

Json model_json(const TokenizerSpec& spec) {
  // Ids ascend, so that the file reads as a table; the object keeps this order.
  Json vocabulary = Json::object();
  auto& members = vocabulary.get_ref<Json::object_t&>();
  for (TokenId id = 0; id < spec.vocabulary.size(); ++id)
    // Appends directly: the container's own insertion would search for the key from the start each time.
    if (!spec.vocabulary[id].empty())
      static_cast<std::vector<Json::object_t::value_type>&>(members).emplace_back(spec.vocabulary[id], id);
  Json merges = Json::array();
  for (const auto& [left, right] : spec.merges)
    merges.push_back(Json::array({spec.vocabulary[left], spec.vocabulary[right]}));
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", spec.ignore_merges},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

}  // namespace

TokenizerSpec parse_tokenizer_json(std::string_view text, std::string_view origin) {
  const Json root = parse_json(text, origin);
  try {
    return Reader(root, origin).read();
  } catch (const Json::exception& error) {  // the file is malformed in a way that no check above covers
    throw UsageError("{}: not a tokenizer.json: {}", origin, error.what());
  }
}

std::string tokenizer_json(const TokenizerSpec& spec) {
  Json added = Json::array();
  for (const AddedToken& token : spec.added)
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  const Json root = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", nullptr},
      {"pre_tokenizer", pre_tokenizer_json(spec)},
      {"post_processor", spec.post_processor.empty() ? Json() : Json::parse(spec.post_processor)},
      {"decoder", byte_level(true, true)},
      {"model", model_json(spec)},
  };
  return root.dump(1) + "\n";
}

}  // namespace molen::data
