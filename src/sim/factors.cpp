#include "sim/factors.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/suggest.h"
#include "sim/shipped_factors.h"

namespace molen::sim {
namespace {

constexpr std::int64_t kLargestFactors = 1 << 22;

double positive(const Json& value, const std::string& origin, const std::string& name) {
  if (!value.is_number() || !(value.get<double>() > 0.0) || !std::isfinite(value.get<double>()))
    throw UsageError("{}: {}: {} is not a positive number", origin, name, value.dump());
  return value.get<double>();
}

}  // namespace

const Factors& Factors::shipped() {
  static const Factors factors = [] {
    Factors all;
    const Json json = Json::parse(kShippedFactors);
    for (const auto& [name, f] : json.at("factors").items())
      all.all_.push_back({name, f.at("meaning").get<std::string>(), positive(f.at("value"), "factors", name),
                          f.at("prior").get<double>(), positive(f.at("start"), "factors", name)});
    all.spread_ = positive(json.at("spread"), "factors", "spread");
    all.memory_spread_ = positive(json.at("memory_spread"), "factors", "memory_spread");
    return all;
  }();
  return factors;
}

namespace {

Json json_of_text(const std::string& text, const std::string& origin) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    throw UsageError("{}: not JSON: {}", origin, e.what());
  }
}

}  // namespace

void Factors::set(const Json& values, const std::string& origin) {
  if (!values.is_object()) throw UsageError("{}: an object of names and numbers is expected", origin);
  std::vector<std::string> names;
  for (const Factor& f : all_) names.push_back(f.name);
  for (const auto& [name, value] : values.items()) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      throw UsageError("{}: there is no factor '{}'{}", origin, name, did_you_mean(name, names));
    all_[static_cast<std::size_t>(found - names.begin())].value = positive(value, origin, name);
  }
}

Factors Factors::parse(const std::string& text, const std::string& origin) {
  Factors factors = shipped();
  factors.set(json_of_text(text, origin), origin);
  return factors;
}

Factors Factors::read(const fs::path& path) {
  return parse(read_file(path, kLargestFactors), path.string());
}

std::vector<Factors> Factors::read_sets(const fs::path& path) {
  const Json json = json_of_text(read_file(path, kLargestFactors), path.string());
  std::vector<Factors> sets;
  for (const Json& values : json.is_array() ? json : Json::array({json})) {
    sets.push_back(shipped());
    sets.back().set(values, path.string());
  }
  if (sets.empty()) throw UsageError("{}: there is no set of factors", path.string());
  return sets;
}

double Factors::of(std::string_view name) const {
  for (const Factor& f : all_)
    if (f.name == name) return f.value;
  throw Error("there is no factor '{}'", name);
}

Json Factors::to_json() const {
  Json json = Json::object();
  for (const Factor& f : all_)
    json[f.name] = {
        {"value", f.value}, {"prior", f.prior}, {"start", f.start}, {"fitted", f.prior > 0.0}, {"meaning", f.meaning}};
  return json;
}

}  // namespace molen::sim
