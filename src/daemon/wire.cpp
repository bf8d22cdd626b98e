#include "daemon/wire.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/json_fields.h"
#include "collect/limits.h"
#include "collect/record.h"

namespace molen::daemon {
namespace {

constexpr int kMostDepth = 6;  // an answer, its listing, a list, an entry, its values, and one to spare for the message
constexpr std::int64_t kMostValue = std::int64_t{1} << 53;

const std::vector<std::string> kRequestKeys{"request", "settings", "setting", "value", "limits", "seconds"};
const std::vector<std::string> kAnswerKeys{"welcome",  "listing", "readings", "leased",   "set",
                                           "restored", "refused", "closing",  "limitable"};
const std::vector<std::string> kMeterKeys{"scope", "meter", "detail", "source", "joules_per_tick", "changes_every"};
const std::vector<std::string> kSettingKeys{"id",   "name",   "scope", "control",  "detail",  "kind",  "least",
                                            "most", "values", "step",  "readable", "present", "holder"};
const std::vector<std::string> kReadingKeys{"scope", "joules", "gaps", "ticks", "age", "reason"};
const std::vector<std::pair<Request::Kind, std::string>> kRequests{
    {Request::Kind::kList, "list"},  {Request::Kind::kRead, "read"},       {Request::Kind::kLease, "lease"},
    {Request::Kind::kSet, "set"},    {Request::Kind::kRestore, "restore"}, {Request::Kind::kLimitable, "limitable"},
    {Request::Kind::kLimit, "limit"}};

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string name_in(const JsonFields& fields, std::string_view key) {
  std::string name = fields.text(key);
  if (!collect::is_name(name))
    throw UsageError("{}: '{}' must be 1 to {} printable ASCII characters without spaces", fields.origin(), key,
                     collect::kMostNameBytes);
  return name;
}

// Returns a text without control characters, cut where it is too long; "" where the key is absent.
std::string text_in(const JsonFields& fields, std::string_view key) {
  return collect::as_text(fields.text(key, ""));
}

std::int64_t count_in(const JsonFields& fields, std::string_view key) {
  const std::int64_t value = fields.integer(key);
  if (value < 0 || value > kMostValue)
    throw UsageError("{}: '{}' must be between 0 and 2^53, is {}", fields.origin(), key, value);
  return value;
}

double not_negative_in(const JsonFields& fields, std::string_view key) {
  const double value = fields.number(key);
  if (value < 0) throw UsageError("{}: '{}' must not be negative, is {}", fields.origin(), key, value);
  return value;
}

// Calls f(element, origin) for each element of the list `key` of an object.
template <class F>
void each_in(const Json& json, const char* key, const std::string& origin, std::size_t most, F f) {
  const Json& list = json_member(json, key, origin);
  if (!list.is_array() || list.size() > most)
    throw UsageError("{}: '{}' must be a list of at most {} elements", origin, key, most);
  for (std::size_t i = 0; i < list.size(); ++i) f(list[i], fmt::format("{}: {}[{}]", origin, key, i));
}

Json json_of(const MeterEntry& m) {
  return {{"scope", m.scope},
          {"meter", m.meter},
          {"detail", collect::as_text(m.detail)},
          {"source", energy::name_of(m.source)},
          {"joules_per_tick", m.joules_per_tick},
          {"changes_every", m.changes_every_s}};
}

MeterEntry meter_in(const Json& json, const std::string& origin) {
  const JsonFields fields(json, origin);
  fields.require_known(kMeterKeys);
  MeterEntry m;
  m.scope = name_in(fields, "scope");
  m.meter = name_in(fields, "meter");
  m.detail = text_in(fields, "detail");
  const std::string source = fields.text("source");
  for (const auto known : {energy::Source::kCounter, energy::Source::kPower, energy::Source::kModel})
    if (source == energy::name_of(known)) m.source = known;
  if (m.source == energy::Source::kNone) throw UsageError("{}: 'source' must be counter, power or model", origin);
  m.joules_per_tick = not_negative_in(fields, "joules_per_tick");
  m.changes_every_s = not_negative_in(fields, "changes_every");
  return m;
}

Json json_of(const SettingEntry& s) {
  Json json{{"id", s.id},
            {"name", s.name},
            {"scope", s.scope},
            {"control", collect::as_text(s.control)},
            {"detail", collect::as_text(s.detail)},
            {"kind", actuate::name_of(s.kind)},
            {"least", s.least},
            {"most", s.most},
            {"values", s.values},
            {"step", s.step},
            {"readable", s.readable}};
  json["present"] = s.present ? Json(*s.present) : Json();
  if (!s.holder.empty()) json["holder"] = collect::as_text(s.holder);
  return json;
}

SettingEntry setting_in(const Json& json, const std::string& origin) {
  const JsonFields fields(json, origin);
  fields.require_known(kSettingKeys);
  SettingEntry s;
  s.id = name_in(fields, "id");
  s.name = name_in(fields, "name");
  s.scope = name_in(fields, "scope");
  s.control = text_in(fields, "control");
  s.detail = text_in(fields, "detail");
  s.holder = text_in(fields, "holder");
  const std::string kind = fields.text("kind");
  s.kind = kind == name_of(actuate::Kind::kPower) ? actuate::Kind::kPower : actuate::Kind::kClock;
  if (kind != name_of(s.kind)) throw UsageError("{}: 'kind' must be \"clock\" or \"power limit\"", origin);
  s.least = count_in(fields, "least");
  s.most = count_in(fields, "most");
  s.step = count_in(fields, "step");
  s.readable = fields.boolean("readable");
  if (fields.find("present") != nullptr) s.present = count_in(fields, "present");
  each_in(json, "values", origin, kMostEntries, [&](const Json& value, const std::string& at) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostValue))
      throw UsageError("{}: must be a whole number up to 2^53", at);
    s.values.push_back(value.get<std::int64_t>());
  });
  if (!std::is_sorted(s.values.begin(), s.values.end())) throw UsageError("{}: 'values' must ascend", origin);
  if (s.least < 1 || s.most < s.least || s.step < 1)
    throw UsageError("{}: {} to {} in steps of {} is no range", origin, s.least, s.most, s.step);
  return s;
}

Json json_of(const Listing& listing) {
  Json meters = Json::array(), settings = Json::array(), withheld = Json::array();
  for (const MeterEntry& m : listing.meters) meters.push_back(json_of(m));
  for (const SettingEntry& s : listing.settings) settings.push_back(json_of(s));
  for (const auto& w : listing.withheld)
    withheld.push_back({{"id", w.id}, {"scope", w.scope}, {"reason", collect::as_text(w.reason)}});
  return {{"meters", meters}, {"settings", settings}, {"withheld", withheld}};
}

Listing listing_in(const Json& json, const std::string& origin) {
  JsonFields(json, origin).require_known(std::vector<std::string>{"meters", "settings", "withheld"});
  Listing listing;
  each_in(json, "meters", origin, kMostEntries,
          [&](const Json& j, const std::string& at) { listing.meters.push_back(meter_in(j, at)); });
  each_in(json, "settings", origin, kMostEntries,
          [&](const Json& j, const std::string& at) { listing.settings.push_back(setting_in(j, at)); });
  each_in(json, "withheld", origin, kMostEntries, [&](const Json& j, const std::string& at) {
    const JsonFields fields(j, at);
    fields.require_known(std::vector<std::string>{"id", "scope", "reason"});
    listing.withheld.push_back({name_in(fields, "id"), name_in(fields, "scope"), text_in(fields, "reason")});
  });
  return listing;
}

Json json_of(const ReadingEntry& r) {
  Json json{{"scope", r.scope}};
  json["joules"] = r.reading ? Json(r.reading->total.value) : Json();
  if (r.reading) {
    json["gaps"] = r.reading->gaps;
    json["ticks"] = r.reading->ticks;
    json["age"] = r.reading->age_s;
  } else {
    json["reason"] = collect::as_text(r.reason);
  }
  return json;
}

ReadingEntry reading_in(const Json& json, const std::string& origin) {
  const JsonFields fields(json, origin);
  fields.require_known(kReadingKeys);
  ReadingEntry r;
  r.scope = name_in(fields, "scope");
  r.reason = text_in(fields, "reason");
  if (json_member(json, "joules", origin).is_null()) {
    if (r.reason.empty()) throw UsageError("{}: no joules and no 'reason'", origin);
    return r;
  }
  r.reading = energy::Reading{Joules(not_negative_in(fields, "joules")), count_in(fields, "gaps"),
                              count_in(fields, "ticks"), not_negative_in(fields, "age")};
  return r;
}

Json json_of(const actuate::Restoration& r) {
  Json notes = Json::array();
  for (const std::string& note : r.notes) notes.push_back(collect::as_text(note));
  return {{"notes", notes}, {"restored", r.restored}, {"left_alone", r.left_alone}, {"failed", r.failed}};
}

actuate::Restoration restoration_in(const Json& json, const std::string& origin) {
  const JsonFields fields(json, origin);
  fields.require_known(std::vector<std::string>{"notes", "restored", "left_alone", "failed"});
  actuate::Restoration r;
  const auto parts = [&](std::string_view key) {
    return static_cast<int>(std::min<std::int64_t>(count_in(fields, key), INT32_MAX));
  };
  r.restored = parts("restored");
  r.left_alone = parts("left_alone");
  r.failed = parts("failed");
  each_in(json, "notes", origin, kMostEntries, [&](const Json& note, const std::string& at) {
    if (!note.is_string()) throw UsageError("{}: must be a text", at);
    r.notes.push_back(collect::as_text(note.get<std::string>()));
  });
  return r;
}

Json json_of(const Limitable& limitable) {
  Json settings = Json::array();
  for (const LimitableSetting& s : limitable.settings) {
    settings.push_back({{"id", s.id}, {"scope", s.scope}, {"least", s.least}, {"most", s.most}});
    settings.back()["present"] = s.present ? Json(*s.present) : Json();
  }
  return {{"settings", settings}, {"seconds", limitable.seconds}};
}

Limitable limitable_in(const Json& json, const std::string& origin) {
  const JsonFields fields(json, origin);
  fields.require_known(std::vector<std::string>{"settings", "seconds"});
  Limitable limitable;
  limitable.seconds = not_negative_in(fields, "seconds");
  each_in(json, "settings", origin, kMostEntries, [&](const Json& one, const std::string& at) {
    const JsonFields setting(one, at);
    setting.require_known(std::vector<std::string>{"id", "scope", "least", "most", "present"});
    LimitableSetting s{name_in(setting, "id"), name_in(setting, "scope"), count_in(setting, "least"),
                       count_in(setting, "most")};
    if (setting.find("present") != nullptr) s.present = count_in(setting, "present");
    if (s.least < 1 || s.most < s.least) throw UsageError("{}: {} to {} is no range", at, s.least, s.most);
    limitable.settings.push_back(std::move(s));
  });
  return limitable;
}

// Reads the limits of a request.
void limits_in(const Json& json, const JsonFields& fields, Request& request) {
  std::set<std::string> known;
  each_in(json, "limits", fields.origin(), kMostSettings, [&](const Json& one, const std::string& at) {
    const JsonFields limit(one, at);
    limit.require_known(std::vector<std::string>{"setting", "value"});
    request.limits.push_back({name_in(limit, "setting"), count_in(limit, "value")});
    if (!known.insert(request.limits.back().id).second) throw UsageError("{}: this setting stands twice", at);
  });
  request.seconds = not_negative_in(fields, "seconds");
  if (request.seconds > collect::kLongestLimitS)
    throw UsageError("{}: 'seconds' must be at most {:g}, is {:g}", fields.origin(), collect::kLongestLimitS,
                     request.seconds);
}

}  // namespace

std::string request_line(const Request& request) {
  const auto named =
      std::find_if(kRequests.begin(), kRequests.end(), [&](const auto& r) { return r.first == request.kind; });
  Json json{{"request", named->second}};
  if (request.kind == Request::Kind::kLease) json["settings"] = request.settings;
  if (request.kind == Request::Kind::kSet) {
    json["setting"] = request.settings.at(0);
    json["value"] = request.value;
  }
  if (request.kind == Request::Kind::kLimit) {
    json["limits"] = Json::array();
    for (const SettingValue& limit : request.limits)
      json["limits"].push_back({{"setting", limit.id}, {"value", limit.value}});
    json["seconds"] = request.seconds;
  }
  return line_of(json);
}

Request parse_request(std::string_view line, const std::string& origin) {
  const Json json = parse_json(line, origin, kMostDepth);
  const JsonFields fields(json, origin);
  fields.require_known(kRequestKeys);
  const std::string name = fields.text("request");
  const auto named = std::find_if(kRequests.begin(), kRequests.end(), [&](const auto& r) { return r.second == name; });
  if (named == kRequests.end())
    throw UsageError("{}: 'request' must be list, read, lease, set, restore, limitable or limit", origin);
  Request request{named->first};
  const bool leases = request.kind == Request::Kind::kLease, sets = request.kind == Request::Kind::kSet;
  const bool limits = request.kind == Request::Kind::kLimit;
  for (const auto& [key, has_place] :
       {std::pair("settings", leases), std::pair("setting", sets), std::pair("value", sets),
        std::pair("limits", limits), std::pair("seconds", limits)})
    if (json.contains(key) && !has_place)
      throw UsageError("{}: '{}' has no place in a request to {}", origin, key, name);
  if (limits) limits_in(json, fields, request);
  if (leases) {
    std::set<std::string> known;
    each_in(json, "settings", origin, kMostSettings, [&](const Json& id, const std::string& at) {
      if (!id.is_string() || !collect::is_name(id.get<std::string>()))
        throw UsageError("{}: must be the id of a setting", at);
      request.settings.push_back(id.get<std::string>());
      if (!known.insert(request.settings.back()).second) throw UsageError("{}: this setting stands twice", at);
    });
    if (request.settings.empty()) throw UsageError("{}: 'settings' is empty", origin);
  }
  if (sets) {
    request.settings = {name_in(fields, "setting")};
    request.value = count_in(fields, "value");
  }
  return request;
}

std::string answer_line(const Answer& answer) {
  Json json = Json::object();
  switch (answer.kind) {
    case Answer::Kind::kWelcome:
      json["welcome"] = kProtocol;
      break;
    case Answer::Kind::kListing:
      json["listing"] = json_of(answer.listing);
      break;
    case Answer::Kind::kReadings:
      json["readings"] = Json::array();
      for (const ReadingEntry& r : answer.readings) json["readings"].push_back(json_of(r));
      break;
    case Answer::Kind::kLeased:
      json["leased"] = true;
      break;
    case Answer::Kind::kSet:
      json["set"] = answer.present ? Json(*answer.present) : Json();
      break;
    case Answer::Kind::kRestored:
      json["restored"] = json_of(answer.restoration);
      break;
    case Answer::Kind::kLimitable:
      json["limitable"] = json_of(answer.limitable);
      break;
    case Answer::Kind::kRefused:
      json["refused"] = collect::as_text(answer.reason);
      break;
    case Answer::Kind::kClosing:
      json["closing"] = collect::as_text(answer.reason);
      break;
  }
  std::string line = line_of(json);
  if (line.size() > kMostAnswerBytes)
    throw Error("an answer of {} bytes; {} are the most", line.size(), kMostAnswerBytes);
  return line;
}

std::string refused_line(std::string_view reason) {
  Answer answer;
  answer.kind = Answer::Kind::kRefused;
  answer.reason = reason;
  return answer_line(answer);
}

std::string closing_line(std::string_view reason) {
  Answer answer;
  answer.kind = Answer::Kind::kClosing;
  answer.reason = reason;
  return answer_line(answer);
}

Answer parse_answer(std::string_view line, const std::string& origin) {
  const Json json = parse_json(line, origin, kMostDepth);
  const JsonFields fields(json, origin);
  fields.require_known(kAnswerKeys);
  if (json.size() != 1) throw UsageError("{}: an answer has one key, this one has {}", origin, json.size());
  const std::string key = json.items().begin().key();
  Answer answer;
  if (key == "refused" || key == "closing") {
    answer.kind = key == "refused" ? Answer::Kind::kRefused : Answer::Kind::kClosing;
    answer.reason = text_in(fields, key);
    if (answer.reason.empty()) throw UsageError("{}: '{}' has no reason", origin, key);
  } else if (key == "listing") {
    answer.kind = Answer::Kind::kListing;
    answer.listing = listing_in(json["listing"], origin);
  } else if (key == "readings") {
    answer.kind = Answer::Kind::kReadings;
    each_in(json, "readings", origin, kMostEntries,
            [&](const Json& j, const std::string& at) { answer.readings.push_back(reading_in(j, at)); });
  } else if (key == "leased") {
    answer.kind = Answer::Kind::kLeased;
    if (!fields.boolean("leased")) throw UsageError("{}: 'leased' must be true", origin);
  } else if (key == "set") {
    answer.kind = Answer::Kind::kSet;
    if (fields.find("set") != nullptr) answer.present = count_in(fields, "set");
  } else if (key == "restored") {
    answer.kind = Answer::Kind::kRestored;
    answer.restoration = restoration_in(json["restored"], origin);
  } else if (key == "limitable") {
    answer.kind = Answer::Kind::kLimitable;
    answer.limitable = limitable_in(json["limitable"], origin);
  } else if (const std::int64_t protocol = fields.integer("welcome"); protocol != kProtocol) {
    throw UsageError("{}: the daemon speaks protocol {} and this program {}: use molen of one version", origin,
                     protocol, kProtocol);
  }
  return answer;
}

}  // namespace molen::daemon
