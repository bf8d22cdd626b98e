#include "energy/redfish.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "base/error.h"
#include "energy/coverage.h"
#include "energy/open.h"
#include "energy/test_machine.h"

namespace molen::energy {
namespace {

class FakeService : public RedfishService {
 public:
  explicit FakeService(std::map<std::string, std::string> all) : resources(std::move(all)) {}
  Result<std::optional<std::string>> get(const std::string& path) override {
    ++requests;
    if (path == fails) return Failure{path + ": HTTP 503"};
    const auto found = resources.find(path);
    return found == resources.end() ? std::optional<std::string>() : found->second;
  }
  std::map<std::string, std::string> resources;
  std::string fails;  // the resource that the controller is too busy for
  std::atomic<int> requests = 0;
};

const std::string kList = "/redfish/v1/Chassis";

// A controller with these chassis, as pairs of a name and its members.
std::map<std::string, std::string> chassis(const std::vector<std::pair<std::string, std::string>>& all) {
  std::map<std::string, std::string> resources;
  std::string members;
  for (const auto& [name, links] : all) {
    members += fmt::format(R"({}{{"@odata.id": "{}/{}"}})", members.empty() ? "" : ", ", kList, name);
    resources[kList + "/" + name] = fmt::format(R"({{"Id": "{}"{}{}}})", name, links.empty() ? "" : ", ", links);
  }
  resources[kList] = fmt::format(R"({{"Members": [{}]}})", members);
  return resources;
}
constexpr const char* kMetrics = R"("EnvironmentMetrics": {"@odata.id": "/metrics"})";
constexpr const char* kPower = R"("Power": {"@odata.id": "/power"})";
constexpr const char* kBoth = R"("EnvironmentMetrics": {"@odata.id": "/metrics"}, "Power": {"@odata.id": "/power"})";

std::map<std::string, std::string> of_node(const char* links) {
  auto all = chassis({{"1", links}});
  all["/metrics"] = R"({"PowerWatts": {"Reading": 374.5}})";
  all["/power"] = R"({"PowerControl": [{"PowerConsumedWatts": 344}, {"PowerConsumedWatts": 20}]})";
  return all;
}

RedfishUrl url_of(const std::string& text) {
  return parse_redfish_url(text, "node7.cluster.example");
}

TEST(Redfish, UrlsHaveAServerAndMayNameTheWatts) {
  const RedfishUrl plain = url_of("https://10.0.0.7:8443");
  EXPECT_EQ(plain.server, "https://10.0.0.7:8443");
  EXPECT_EQ(plain.path + plain.pointer, "");
  EXPECT_EQ(url_of("https://bmc/").path, "");
  EXPECT_EQ(url_of("https://{host}-bmc.example").server, "https://node7-bmc.example");
  const RedfishUrl named = url_of("https://bmc/redfish/v1/Chassis/Node0/Power#/PowerControl/1/PowerConsumedWatts");
  EXPECT_EQ(named.server, "https://bmc");
  EXPECT_EQ(named.path, "/redfish/v1/Chassis/Node0/Power");
  EXPECT_EQ(named.pointer, "/PowerControl/1/PowerConsumedWatts");
}

TEST(Redfish, OtherUrlsAreRefused) {
  for (const auto& [text, says] :
       std::vector<std::pair<std::string, std::string>>{{"", "https alone"},
                                                        {"http://bmc", "https alone"},
                                                        {"https://", "host is missing"},
                                                        {"https:///redfish#/a", "host is missing"},
                                                        {"https://root:secret@bmc", "netrc"},
                                                        {"https://bmc/redfish/v1", "needs a pointer"},
                                                        {"https://bmc#/a", "follows a path"},
                                                        {"https://bmc/power#watts", "no JSON pointer"},
                                                        {"https://bmc /", "no spaces"},
                                                        {"https://bmc/\n#/a", "no spaces"}}) {
    try {
      (void)url_of(text);
      FAIL() << text;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << text << ": " << error.what();
      EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos) << error.what();
    }
  }
}

TEST(Redfish, FindsThePowerOfTheOnlyChassisThatHasOne) {
  for (const auto& [links, path, watts] : std::vector<std::tuple<const char*, std::string, double>>{
           {kMetrics, "/metrics", 374.5}, {kPower, "/power", 344.0}, {kBoth, "/metrics", 374.5}}) {
    FakeService service(of_node(links));
    const auto found = find_redfish_power(service, url_of("https://bmc"));
    ASSERT_TRUE(found.ok()) << found.reason();
    EXPECT_EQ(found.value().path, path);
    EXPECT_EQ(read_redfish_power(service, found.value()).value(), watts);
  }
  // Metrics without a power leave that of the older resource. Further chassis without one do not matter.
  auto older = chassis({{"Board", ""}, {"1", kBoth}, {"Fans", R"("Power": {"@odata.id": "/none"})"}});
  older["/metrics"] = R"({"TemperatureCelsius": {"Reading": 30}})";
  older["/power"] = R"({"PowerControl": [{"PowerConsumedWatts": 344}]})";
  FakeService service(older);
  EXPECT_EQ(find_redfish_power(service, url_of("https://bmc")).value().path, "/power");
}

TEST(Redfish, SeveralPowersOrNoneAreReasons) {
  const auto why = [](std::map<std::string, std::string> resources) {
    FakeService service(std::move(resources));
    return find_redfish_power(service, url_of("https://bmc")).reason();
  };
  auto two = chassis({{"Host", kMetrics}, {"HGX", kPower}});
  two["/metrics"] = R"({"PowerWatts": {"Reading": 900}})";
  two["/power"] = R"({"PowerControl": [{"PowerConsumedWatts": 5400}]})";
  EXPECT_EQ(why(two),
            "2 chassis read a power; name that of the node: /metrics#/PowerWatts/Reading, "
            "/power#/PowerControl/0/PowerConsumedWatts");
  EXPECT_EQ(why(chassis({{"1", ""}, {"2", kPower}})), "none of the 2 chassis in /redfish/v1/Chassis reads its power");
  EXPECT_EQ(why({}), "/redfish/v1/Chassis names no chassis");
  EXPECT_EQ(why({{kList, "{}"}}), "/redfish/v1/Chassis names no chassis");
  EXPECT_EQ(why({{kList, R"({"Members": 3})"}}), "/redfish/v1/Chassis names no chassis");
  EXPECT_EQ(why({{kList, "[]"}}), "/redfish/v1/Chassis names no chassis");
  EXPECT_NE(why({{kList, "<html>"}}).find("/redfish/v1/Chassis"), std::string::npos);
  EXPECT_EQ(why({{kList, R"({"Members": [3, {"@odata.id": 3}, {"@odata.id": "https://other/"}, {}]})"}}),
            "none of the 4 chassis in /redfish/v1/Chassis reads its power");
  EXPECT_FALSE(why({{kList, std::string(200, '[')}}).empty()) << "too deep";
}

// Another chassis must not count in place of one that did not answer.
TEST(Redfish, AFailedAnswerEndsTheSearch) {
  auto two = chassis({{"Host", kMetrics}, {"HGX", kPower}});
  two["/power"] = R"({"PowerControl": [{"PowerConsumedWatts": 5400}]})";
  for (const char* fails : {"/redfish/v1/Chassis", "/redfish/v1/Chassis/Host", "/metrics"}) {
    FakeService service(two);
    service.fails = fails;
    EXPECT_EQ(find_redfish_power(service, url_of("https://bmc")).reason(), fmt::format("{}: HTTP 503", fails));
  }
  for (const auto& [answer, says] : std::vector<std::pair<std::string, std::string>>{
           {"{", "/metrics"}, {R"({"PowerWatts": {"Reading": null}})", "null"}}) {
    two["/metrics"] = answer;
    FakeService service(two);
    EXPECT_NE(find_redfish_power(service, url_of("https://bmc")).reason().find(says), std::string::npos) << answer;
  }
  std::vector<std::pair<std::string, std::string>> many;
  for (int i = 0; i < 1000; ++i) many.emplace_back(std::to_string(i), "");
  FakeService service(chassis(many));
  EXPECT_EQ(find_redfish_power(service, url_of("https://bmc")).reason(),
            "/redfish/v1/Chassis names 1000 chassis; name the resource of the node's power");
  EXPECT_EQ(service.requests, 1);
}

TEST(Redfish, AnswersThatAreNoPowerAreReasons) {
  const auto why = [](const std::string& value) {
    FakeService service({{"/power", value}});
    return read_redfish_power(service, url_of("https://bmc/power#/Watts")).reason();
  };
  EXPECT_EQ(why(R"({"Watts": 12.5})"), "");
  EXPECT_EQ(why(R"({"Watts": 0})"), "/power#/Watts reads 0 W");
  EXPECT_EQ(why(R"({"Watts": -3})"), "/power#/Watts reads -3 W");
  EXPECT_EQ(why(R"({"Watts": null})"), "/power#/Watts is null, no number of watts");
  EXPECT_EQ(why(R"({"Watts": "12"})"), "/power#/Watts is \"12\", no number of watts");
  EXPECT_EQ(why(R"({"watts": 12})"), "/power#/Watts: the controller has no such value");
  EXPECT_EQ(why("[1]"), "/power#/Watts: the controller has no such value");
  EXPECT_NE(why(""), "");
  std::string accents;
  for (int i = 0; i < 30; ++i) accents += "\xc3\xa9";
  const std::string cut = why(fmt::format(R"({{"Watts": "{}"}})", accents));  // in the middle of none of them
  EXPECT_EQ(cut, R"(/power#/Watts is "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u0, no number of watts)");
  FakeService none({});
  EXPECT_EQ(read_redfish_power(none, url_of("https://bmc/power#/Watts")).reason(), "/power: HTTP 404");
}

TEST(Redfish, ANodeIsMeasuredByItsController) {
  FakeMachine f;
  const auto service = std::make_shared<FakeService>(of_node(kPower));
  constexpr Seconds kNever(1e6);  // the test's clock is the test's alone
  const Meters m = open_redfish(f.machine, url_of("https://bmc"), std::shared_ptr<RedfishService>(service), kNever);
  ASSERT_EQ(m.meters.size(), 1u);
  const MeterInfo& info = m.meters[0]->info();
  EXPECT_EQ(info.scope, "node");
  EXPECT_EQ(info.source, Source::kPower);
  EXPECT_EQ(info.detail, "https://bmc/power#/PowerControl/0/PowerConsumedWatts every 1000000 s");
  EXPECT_EQ(coverage_of(m, true).partial(), "");
  f.time += 2.0;
  EXPECT_NEAR(m.meters[0]->read().value().total.value, 688.0, 1e-9);
}

TEST(Redfish, IsAskedAgainAndAgain) {
  const auto service = std::make_shared<FakeService>(of_node(kMetrics));
  const Meters m =
      open_redfish(Machine(), url_of("https://bmc"), std::shared_ptr<RedfishService>(service), Seconds(0.001));
  for (int i = 0; i < 30000 && service->requests < 10; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_GE(service->requests, 10);
  EXPECT_GT(m.meters.at(0)->read().value().total.value, 0.0);
}

// As dcmi, it counts in place of a node's parts where it is named.
TEST(Redfish, IsReadOnlyWhereItIsNamed) {
  FakeMachine f;
  OpenOptions o;
  o.machine = f.machine;
  o.nvml.library = "libno-such-library.so.1";
  std::vector<std::string> asked;
  o.redfish = [&](const RedfishUrl& url) {
    asked.push_back(url.server);
    return Result<std::shared_ptr<RedfishService>>(std::make_shared<FakeService>(of_node(kPower)));
  };
  f.tick = [&] { f.zone("intel-rapl:0", "package-0", static_cast<std::uint64_t>(f.time * 1e6)); };
  f.tick();
  EXPECT_EQ(open_meters({"auto"}, o).meters.at(0)->info().scope, "cpu-package0");
  EXPECT_TRUE(asked.empty());
  const Meters both = open_meters({"redfish:https://bmc", "auto"}, o);
  EXPECT_EQ(coverage_of(both, false).summed, (std::set<std::string>{"node"}));
  EXPECT_EQ(asked, (std::vector<std::string>{"https://bmc"}));
  o.redfish = [&](const RedfishUrl&) {
    return Result<std::shared_ptr<RedfishService>>(Failure{"no libcurl, which https needs: x"});
  };
  try {
    (void)open_meters({"redfish:https://bmc"}, o);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("https://bmc: no libcurl, which https needs: x"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace molen::energy
