#include "base/json.h"

#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json_elements.h"

namespace molen {
namespace {

// Builds the document from the parser's events. Json's objects are lists of members, which the library searches for
// each new key: 100,000 keys would take minutes. This builder keeps the keys of the open objects in hash sets instead.
class Builder : public nlohmann::json_sax<Json> {
 public:
  using Element = std::function<void(std::size_t, const Json&)>;
  // If `element` is not null, passes it the elements of the root's member `list` and does not keep them.
  Builder(std::string_view origin, int max_depth, std::string_view list = {}, const Element* element = nullptr)
      : origin_(origin), max_depth_(max_depth), list_(list), element_(element) {}
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    check_depth();
    if (!open_.back().keys.insert(value).second)
      throw UsageError("{}: JSON key '{}' appears twice in one object", origin_, value);
    key_ = std::move(value);
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw UsageError("{}: not valid JSON: {}", origin_, error.what());
  }

 private:
  struct Open {
    Json* value;
    std::unordered_set<std::string> keys;  // of an object
  };

  void check_depth() const {
    if (open_.size() > static_cast<std::size_t>(max_depth_))
      throw UsageError("{}: JSON nested deeper than {} levels", origin_, max_depth_);
  }

  // A pointer to a place stays valid while its value is built: its container grows only afterwards.
  Json* place(Json value) {
    check_depth();
    if (open_.empty()) return &(root_ = std::move(value));
    Json& parent = *open_.back().value;
    if (parent.is_array()) return &parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
    auto& members = static_cast<std::vector<Json::object_t::value_type>&>(parent.get_ref<Json::object_t&>());
    return &members.emplace_back(std::move(key_), std::move(value)).second;
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (element_ != nullptr && open_.size() == 1 && value.is_array()) in_list_ = key_ == list_;
    Json* placed = place(std::move(value));
    open_.push_back({placed, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    if (open_.size() == 1) in_list_ = false;
    if (open_.size() != 2 || !in_list_) return true;
    auto& elements = open_.back().value->get_ref<Json::array_t&>();
    (*element_)(count_++, elements.back());
    elements.pop_back();
    return true;
  }

  std::string_view origin_;
  int max_depth_;
  Json root_;
  std::vector<Open> open_;
  std::string key_;
  std::string_view list_;
  const Element* element_ = nullptr;
  bool in_list_ = false;
  std::size_t count_ = 0;
};

Json parse_with(Builder& builder, std::string_view text, std::string_view origin) {
  // The parser takes a NUL for the end of its input and would leave the rest unread.
  if (text.find('\0') != std::string_view::npos) throw UsageError("{}: not valid JSON: a NUL byte", origin);
  try {
    Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const Json::exception& error) {
    throw UsageError("{}: not valid JSON: {}", origin, error.what());
  }
  return builder.take();
}

}  // namespace

Json parse_json(std::string_view text, std::string_view origin, int max_depth) {
  Builder builder(origin, max_depth);
  return parse_with(builder, text, origin);
}

Json parse_json_elements(std::string_view text, std::string_view origin, std::string_view list,
                         const std::function<void(std::size_t, const Json&)>& element) {
  Builder builder(origin, 64, list, &element);
  return parse_with(builder, text, origin);
}

Json read_json(const std::filesystem::path& path, std::int64_t limit) {
  return parse_json(read_file(path, limit), path.string());
}

const Json& json_member(const Json& object, std::string_view key, std::string_view origin) {
  if (!object.is_object() || !object.contains(key)) throw UsageError("{}: no '{}'", origin, key);
  return object.at(std::string(key));
}

}  // namespace molen
