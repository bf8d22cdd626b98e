#include "energy/redfish.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "energy/polled_power.h"

namespace molen::energy {
namespace {

constexpr int kDeepest = 32;              // levels of a document
constexpr std::size_t kMostChassis = 32;  // that are asked for their power
// A request may take 5 s (redfish_curl.cpp), and controllers are often busy.
constexpr double kLongestUnansweredS = 30.0;

// Returns a resource; nothing where there is none.
Result<std::optional<Json>> document(RedfishService& service, const std::string& path) {
  const auto body = service.get(path);
  if (!body) return Failure{body.reason()};
  if (!body.value()) return std::optional<Json>();
  try {
    return std::optional<Json>(parse_json(*body.value(), path, kDeepest));
  } catch (const UsageError& error) {
    return Failure{error.what()};
  }
}

std::string place_of(const RedfishUrl& url) {
  return fmt::format("{}#{}", url.path, url.pointer);
}

// Returns what a link of a resource leads to: {"Power": {"@odata.id": "/redfish/v1/Chassis/1/Power"}}; empty: nothing.
std::string link_of(const Json& reference) {
  if (!reference.is_object()) return "";
  const auto id = reference.find("@odata.id");
  const bool is_path = id != reference.end() && id->is_string() && id->get_ref<const std::string&>().starts_with('/');
  return is_path ? id->get<std::string>() : "";
}

// Returns the value that the pointer leads to; null where there is none.
const Json* find(const Json& resource, const RedfishUrl& url) {
  try {
    return &resource.at(Json::json_pointer(url.pointer));
  } catch (const Json::exception&) {
    return nullptr;
  }
}

Result<double> watts_of(const Json& value, const RedfishUrl& url) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40);
  if (!value.is_number()) return Failure{fmt::format("{} is {}, no number of watts", place_of(url), text)};
  const double watts = value.get<double>();
  if (!(watts > 0.0) || !std::isfinite(watts)) return Failure{fmt::format("{} reads {} W", place_of(url), watts)};
  return watts;
}

// Returns where a chassis has its power; nothing where it has none.
Result<std::optional<RedfishUrl>> power_of_chassis(RedfishService& service, const Json& chassis, RedfishUrl url) {
  constexpr std::pair<const char*, const char*> kPlaces[] = {{"EnvironmentMetrics", "/PowerWatts/Reading"},
                                                             {"Power", "/PowerControl/0/PowerConsumedWatts"}};
  for (const auto& [name, pointer] : kPlaces) {
    const auto reference = chassis.find(name);
    if (reference == chassis.end()) continue;
    url.path = link_of(*reference), url.pointer = pointer;
    if (url.path.empty()) continue;
    const auto resource = document(service, url.path);
    if (!resource) return Failure{resource.reason()};
    const Json* const value = resource.value() ? find(*resource.value(), url) : nullptr;
    if (value == nullptr) continue;
    if (const auto watts = watts_of(*value, url); !watts) return Failure{watts.reason()};
    return std::optional(std::move(url));
  }
  return std::optional<RedfishUrl>();
}

}  // namespace

RedfishUrl parse_redfish_url(const std::string& text, const std::string& host) {
  const auto wrong = [&](const std::string& why) {
    const std::string shown = text.find('@') == std::string::npos ? text : "...";  // no password is shown
    return UsageError("energy.meters: 'redfish:{}': {}; give https://HOST, or https://HOST/PATH#POINTER of the watts",
                      shown, why);
  };
  const std::string scheme = "https://";
  if (!text.starts_with(scheme)) throw wrong("the controller is reached by https alone");
  for (const char c : text)
    if (static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7f)
      throw wrong("a URL has no spaces and no characters beyond ASCII");
  const std::size_t slash = std::min(text.find('/', scheme.size()), text.size()),
                    hash = std::min(text.find('#'), text.size());
  if (hash < slash) throw wrong("the pointer follows a path");
  RedfishUrl url{text.substr(0, slash), text.substr(slash, hash - slash),
                 hash < text.size() ? text.substr(hash + 1) : ""};
  if (url.path == "/" && url.pointer.empty()) url.path.clear();
  if (url.server.size() == scheme.size()) throw wrong("the host is missing");
  if (url.server.find('@') != std::string::npos) throw wrong("users and passwords belong in a netrc file");
  if (url.path.empty() != url.pointer.empty()) throw wrong("a path needs a pointer to the watts in it");
  try {
    (void)Json::json_pointer(url.pointer);
  } catch (const Json::exception&) {
    throw wrong(fmt::format("'{}' is no JSON pointer", url.pointer));
  }
  const std::string place = "{host}";
  if (const auto at = url.server.find(place); at != std::string::npos)
    url.server.replace(at, place.size(), host.substr(0, host.find('.')));
  return url;
}

Result<RedfishUrl> find_redfish_power(RedfishService& service, RedfishUrl url) {
  if (!url.pointer.empty()) return url;
  const std::string list = "/redfish/v1/Chassis";
  const auto all = document(service, list);
  if (!all) return Failure{all.reason()};
  const bool named = all.value() && all.value()->is_object() && all.value()->contains("Members");
  const Json members = named ? all.value()->at("Members") : Json();
  if (!members.is_array()) return Failure{list + " names no chassis"};
  if (members.size() > kMostChassis)
    return Failure{fmt::format("{} names {} chassis; name the resource of the node's power", list, members.size())};
  std::vector<RedfishUrl> found;
  for (const Json& member : members) {
    const std::string path = link_of(member);
    if (path.empty()) continue;
    const auto chassis = document(service, path);
    if (!chassis) return Failure{chassis.reason()};
    if (!chassis.value() || !chassis.value()->is_object()) continue;
    const auto one = power_of_chassis(service, *chassis.value(), url);
    if (!one) return Failure{one.reason()};
    if (one.value()) found.push_back(*one.value());
  }
  if (found.size() == 1) return std::move(found.front());
  if (found.empty()) return Failure{fmt::format("none of the {} chassis in {} reads its power", members.size(), list)};
  std::string text;
  for (const RedfishUrl& one : found) text += (text.empty() ? "" : ", ") + place_of(one);
  return Failure{fmt::format("{} chassis read a power; name that of the node: {}", found.size(), text)};
}

Result<double> read_redfish_power(RedfishService& service, const RedfishUrl& url) {
  const auto resource = document(service, url.path);
  if (!resource) return Failure{resource.reason()};
  if (!resource.value()) return Failure{fmt::format("{}: HTTP 404", url.path)};
  const Json* const value = find(*resource.value(), url);
  if (value == nullptr) return Failure{fmt::format("{}: the controller has no such value", place_of(url))};
  return watts_of(*value, url);
}

Meters open_redfish(const Machine& machine, const RedfishUrl& url,
                    const Result<std::shared_ptr<RedfishService>>& service, Seconds ask_every) {
  Meters found;
  const auto fail = [&](const std::string& reason) {
    found.unavailable.push_back({"redfish", "node", fmt::format("{}: {}", url.server, reason)});
    return std::move(found);
  };
  if (!service) return fail(service.reason());
  const auto place = find_redfish_power(*service.value(), url);
  if (!place) return fail(place.reason());
  const auto watts = read_redfish_power(*service.value(), place.value());
  if (!watts) return fail(watts.reason());
  const std::string remote = fmt::format("{}{}#{}", url.server, place.value().path, place.value().pointer);
  MeterInfo info{"redfish",  "node", Source::kPower, fmt::format("{} every {} s", remote, ask_every.value),
                 Seconds(0), true};
  info.remote = remote;
  found.meters.push_back(std::make_unique<PolledMeter>(
      std::move(info), [asked = service.value(), at = place.value()] { return read_redfish_power(*asked, at); },
      machine.clock, watts.value(), kLongestUnansweredS, ask_every));
  return found;
}

}  // namespace molen::energy
