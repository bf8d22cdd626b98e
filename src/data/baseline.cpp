#include "data/baseline.h"

#include <map>

#include "base/error.h"
#include "data/jsonl.h"
#include "data/lines.h"
#include "data/ngram.h"
#include "data/prepare.h"

namespace molen::data {
namespace {

template <class F>
void each_document(const fs::path& folder, const TextManifest& manifest, const std::string& split, F&& visit) {
  JsonlParser parser;
  for (const TextRecord& text : manifest.texts) {
    if (text.split != split) continue;
    const fs::path file = folder / split / text.file.path;
    LineReader lines(file);
    for (std::string_view line; lines.next(line);)
      visit(text.language, parser.parse(line, fmt::format("{}:{}", file.string(), lines.line_number())).text);
  }
}

}  // namespace

std::vector<Baseline> ngram_baselines(const std::filesystem::path& prepared, const std::vector<int>& orders) {
  const fs::path folder = prepared / "text";
  const TextManifest manifest = read_text_manifest(folder);
  std::vector<Baseline> results;
  for (int order : orders) {
    NgramModel model(order);
    each_document(folder, manifest, "train", [&](const std::string&, const std::string& text) { model.train(text); });
    std::map<std::string, Baseline> languages;
    each_document(folder, manifest, "heldout", [&](const std::string& language, const std::string& text) {
      Baseline& sum = languages.try_emplace(language, Baseline{order, language, 0, 0}).first->second;
      sum.bytes += static_cast<std::int64_t>(text.size());
      sum.bits_per_byte += model.bits(text);
    });
    if (languages.empty()) throw UsageError("{}: no held-out text", folder.string());
    for (auto& [language, sum] : languages) {
      sum.bits_per_byte /= static_cast<double>(sum.bytes);
      results.push_back(sum);
    }
  }
  return results;
}

}  // namespace molen::data
