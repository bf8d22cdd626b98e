#include "serve/run_lines.h"

#include <cmath>

#include "base/error.h"
#include "serve/run_data.h"
#include "store/lines.h"

namespace molen::serve {

std::vector<fs::path> with_abandoned(const fs::path& run, const std::string& name) {
  std::vector<fs::path> files{run / name};
  for (const auto& entry : fs::directory_iterator(run))
    if (entry.path().filename().string().starts_with(name + ".abandoned-")) files.push_back(entry.path());
  return files;
}

void each_event(const fs::path& file, const std::string& without,
                const std::function<void(const std::string& name, const Json& event)>& take) {
  constexpr std::size_t kLongest = std::size_t{1} << 20;
  if (!fs::exists(file)) return;
  store::each_line(file, [&](std::string_view line, std::int64_t) {
    if (line.size() > kLongest || (!without.empty() && line.find(without) != std::string_view::npos)) return;
    try {
      const Json event = parse_json(line, file.string());
      if (event.is_object()) take(text_of(event, "event"), event);
    } catch (const UsageError&) {
    }
  });
}

std::int64_t whole(const Json& event, const char* key) {
  const double value = number_of(event, key);
  return std::abs(value) < 1e15 ? static_cast<std::int64_t>(value) : 0;
}

}  // namespace molen::serve
