#include "collect/limits.h"

#include <set>
#include <utility>

#include "base/error.h"
#include "base/json_fields.h"
#include "collect/record.h"

namespace molen::collect {
namespace {

std::string limit_name(const JsonFields& fields, std::string_view key) {
  std::string name = fields.text(key);
  if (!is_name(name))
    throw UsageError("{}: '{}' must be 1 to {} printable ASCII characters without spaces", fields.origin(), key,
                     kMostNameBytes);
  return name;
}

double limit_watts(const JsonFields& fields, std::string_view key) {
  const double watts = fields.number(key);
  if (!(watts >= kLeastLimitW && watts <= kMostLimitW))
    throw UsageError("{}: '{}' must be {:g} W to {:g} W, is {:g} W", fields.origin(), key, kLeastLimitW, kMostLimitW,
                     watts);
  return watts;
}

// Calls f(element, origin) for each element of a list of settings, of which no two have the same name.
template <class F>
void each_setting(const Json& list, const std::string& origin, F f) {
  if (!list.is_array() || list.size() > kMostLimits)
    throw UsageError("{}: must be a list of at most {} settings", origin, kMostLimits);
  std::set<std::string> known;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", origin, i);
    if (!known.insert(f(list[i], at)).second) throw UsageError("{}: this setting stands twice", at);
  }
}

}  // namespace

Json to_json(const Limitable& limits) {
  Json settings = Json::array();
  for (const LimitableSetting& s : limits.settings) {
    Json one{{"setting", s.setting}, {"scope", s.scope}, {"least", s.least_w}, {"most", s.most_w}};
    if (s.present_w) one["present"] = *s.present_w;
    settings.push_back(std::move(one));
  }
  Json json{{"settings", std::move(settings)}};
  if (!limits.problem.empty()) json["problem"] = as_text(limits.problem);
  return json;
}

Limitable limitable_of(const Json& json, const std::string& origin) {
  const JsonFields fields(json, origin);
  fields.require_known(std::vector<std::string>{"settings", "problem"});
  Limitable limits;
  limits.problem = as_text(fields.text("problem", ""));
  each_setting(json_member(json, "settings", origin), origin + ": settings",
               [&](const Json& one, const std::string& at) {
                 const JsonFields setting(one, at);
                 setting.require_known(std::vector<std::string>{"setting", "scope", "least", "most", "present"});
                 LimitableSetting s{limit_name(setting, "setting"), limit_name(setting, "scope"),
                                    limit_watts(setting, "least"), limit_watts(setting, "most"), std::nullopt};
                 if (s.most_w < s.least_w)
                   throw UsageError("{}: {:g} W to {:g} W is no range", at, s.least_w, s.most_w);
                 if (setting.find("present") != nullptr) s.present_w = limit_watts(setting, "present");
                 limits.settings.push_back(std::move(s));
                 return limits.settings.back().setting;
               });
  return limits;
}

Json to_json(const std::vector<Limit>& limits) {
  Json list = Json::array();
  for (const Limit& limit : limits) list.push_back({{"setting", limit.setting}, {"watts", limit.watts}});
  return list;
}

std::vector<Limit> limits_of(const Json& json, const std::string& origin) {
  std::vector<Limit> limits;
  each_setting(json, origin, [&](const Json& one, const std::string& at) {
    const JsonFields fields(one, at);
    fields.require_known(std::vector<std::string>{"setting", "watts"});
    limits.push_back({limit_name(fields, "setting"), limit_watts(fields, "watts")});
    return limits.back().setting;
  });
  return limits;
}

}  // namespace molen::collect
