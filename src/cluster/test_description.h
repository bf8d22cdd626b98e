// Descriptions that tests change, and the messages of their refusals.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cluster/cluster.h"

namespace molen::cluster {

// Runs `make`; returns the text of its UsageError, or "" if there was none.
template <class F>
std::string reason(F make) {
  try {
    make();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

// A description as lines, so that a test can change one and knows its number.
class Lines {
 public:
  explicit Lines(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      lines_.emplace_back(text.substr(at, end - at));
      at = end + 1;
    }
  }
  // Returns the index of the line `key = ...` after the nth header `[table]` or `[[table]]`; of the top level for "".
  std::size_t find(const std::string& table, const std::string& key, int nth = 0) const {
    std::string current;
    int seen = 0;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      const std::string& line = lines_[i];
      if (line.starts_with("[")) {
        current = line.substr(line.find_first_not_of('['), line.find(']') - line.find_first_not_of('['));
        if (current == table) ++seen;
      }
      if (current == table && (table.empty() || seen == nth + 1) && line.starts_with(key + " = ")) return i;
    }
    ADD_FAILURE() << "there is no " << table << "." << key;
    return 0;
  }
  std::string& operator[](std::size_t i) { return lines_[i]; }
  void erase(std::size_t i) { lines_.erase(lines_.begin() + static_cast<std::ptrdiff_t>(i)); }
  std::string text() const {
    std::string all;
    for (const std::string& line : lines_) all += line + "\n";
    return all;
  }

 private:
  std::vector<std::string> lines_;
};

inline Lines usual() {
  return Lines(shipped_text("dgx-h100"));
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\nin: " << text;
}

}  // namespace molen::cluster
