#include "plan/complete.h"

#include <algorithm>

#include "base/error.h"
#include "cluster/site.h"
#include "data/manifest.h"
#include "data/tokenizer/tokenizer.h"
#include "plan/resolve.h"

namespace molen::plan {
namespace {

void take_vocabulary(config::Config& c, const std::string& tokenizer) {
  const std::string where = c.where("data.tokenizer");
  try {
    config::assign(c, "model.vocabulary", data::Tokenizer::load(tokenizer).vocab_size(),
                   {config::Origin::Kind::kOther, "derived: data.tokenizer"});
  } catch (const MissingFileError& error) {
    throw MissingFileError("{}: {}; it would give model.vocabulary", where, error.what());
  } catch (const UsageError& error) {
    throw UsageError("{}: {}", where, error.what());
  }
}

void require_model(const config::Config& c) {
  const arch::Architecture arch = resolve_architecture(c);
  if (c.data.sequence_length > arch.max_sequence)
    throw UsageError("{}: {} is more than the {} that {} takes (model.max_sequence)", c.where("data.sequence_length"),
                     c.data.sequence_length, arch.max_sequence, arch.name);
}

}  // namespace

void complete(config::Config& c, config::Problems& problems) {
  const auto& m = c.model;
  const bool own = m.family && !m.preset;
  if (own && !m.vocabulary && c.data.tokenizer) {
    const std::string tokenizer = *c.data.tokenizer;
    problems.none_of([&] { take_vocabulary(c, tokenizer); });
  }
  // Skips problems of the model that the checks have reported. When there is no model, the code that needs one reports
  // that.
  const bool said = std::any_of(problems.all().begin(), problems.all().end(),
                                [](const std::string& text) { return text.find("model.") != std::string::npos; });
  if (!said && (m.preset || (own && m.layers && m.hidden && m.heads && m.vocabulary)))
    problems.none_of([&] { require_model(c); });
}

constexpr Seconds kLeastSampling(0.001);

void require_training(const config::Config& c, config::Problems& problems) {
  if (!c.model.preset && !c.model.family)
    problems.add("model.preset: a preset (`molen model list`), or model.family with its sizes, is needed");
  if (c.data.train.empty())
    problems.add("data.train: at least one entry is needed, e.g. train = [{{ path = \"data/train\" }}]");
  for (const auto& [key, sets] :
       {std::pair{"data.train", &c.data.train}, std::pair{"data.validation", &c.data.validation}})
    for (const config::DataSource& set : *sets)
      if (const std::string why = data::no_manifest(set.path); !why.empty()) problems.add("{}: {}", c.where(key), why);
  if (c.data.tokenizer && !fs::exists(*c.data.tokenizer))
    problems.add("{}: {}: there is no such file", c.where("data.tokenizer"), *c.data.tokenizer);
  if (c.energy.sample_every < kLeastSampling)
    problems.add("{}: {} would keep a core busy; {} is the least", c.where("energy.sample_every"),
                 config::print(c.energy.sample_every), config::print(kLeastSampling));
  if (c.energy.meters == std::vector<std::string>{"none"})
    for (const auto& [key, set] : {std::pair{"energy.energy_budget", c.energy.energy_budget.has_value()},
                                   std::pair{"energy.co2_budget", c.energy.co2_budget.has_value()}})
      if (set)
        problems.add("{}: a budget is compared with what meters count, and energy.meters is [\"none\"]", c.where(key));
  if (c.energy.site) {
    try {
      cluster::find_site(*c.energy.site);
    } catch (const UsageError& error) {
      problems.add("{}: {}", c.where("energy.site"), error.what());
    }
  }
}

}  // namespace molen::plan
