#include "daemon/wire.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace molen::daemon {
namespace {

std::string cut_newline(std::string line) {
  EXPECT_TRUE(line.ends_with('\n'));
  line.pop_back();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  return line;
}

std::string refusal_of_request(const std::string& line) {
  try {
    (void)parse_request(line, "the request");
    return "accepted";
  } catch (const UsageError& error) {
    return error.what();
  }
}

std::string refusal_of_answer(const std::string& line) {
  try {
    (void)parse_answer(line, "the answer");
    return "accepted";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(DaemonWire, RequestsComeBackTheSame) {
  for (const Request& request :
       {Request{Request::Kind::kList}, Request{Request::Kind::kRead}, Request{Request::Kind::kRestore},
        Request{Request::Kind::kLease, {"cpufreq:cpu-package0", "nvml-power:GPU-1"}},
        Request{Request::Kind::kSet, {"nvml-power:GPU-1"}, 300000000}, Request{Request::Kind::kLimitable},
        Request{Request::Kind::kLimit, {}, 0, {{"nvml-power:GPU-1", 300000000}, {"powercap:cpu-package0", 1}}, 61.5},
        Request{Request::Kind::kLimit}})
    EXPECT_EQ(parse_request(cut_newline(request_line(request)), "the request"), request);
  EXPECT_EQ(request_line({Request::Kind::kSet, {"a"}, 7}), "{\"request\":\"set\",\"setting\":\"a\",\"value\":7}\n");
}

TEST(DaemonWire, RequestsOfAnotherFormAreRefused) {
  EXPECT_EQ(refusal_of_request(R"({"request":"reboot"})"),
            "the request: 'request' must be list, read, lease, set, restore, limitable or limit");
  EXPECT_EQ(refusal_of_request(R"({"request":"list","uid":0})"), "the request: unknown key 'uid'");
  EXPECT_EQ(refusal_of_request(R"({"request":"list","value":1})"),
            "the request: 'value' has no place in a request to list");
  EXPECT_EQ(refusal_of_request(R"({"request":"set","setting":"a","value":1,"settings":[]})"),
            "the request: 'settings' has no place in a request to set");
  EXPECT_EQ(refusal_of_request(R"({"request":"lease"})").find("the request: "), 0u);
  EXPECT_EQ(refusal_of_request(R"({"request":"lease","settings":[]})"), "the request: 'settings' is empty");
  EXPECT_EQ(refusal_of_request(R"({"request":"lease","settings":["a","a"]})"),
            "the request: settings[1]: this setting stands twice");
  EXPECT_EQ(refusal_of_request(R"({"request":"lease","settings":["a b"]})"),
            "the request: settings[0]: must be the id of a setting");
  EXPECT_EQ(refusal_of_request(R"({"request":"lease","settings":[7]})"),
            "the request: settings[0]: must be the id of a setting");
  EXPECT_EQ(refusal_of_request(R"({"request":"set","setting":"a","value":-1})"),
            "the request: 'value' must be between 0 and 2^53, is -1");
  EXPECT_EQ(refusal_of_request(R"({"request":"set","setting":"a","value":1.5})"),
            "the request: 'value' must be a whole number, is 1.5");
  EXPECT_EQ(refusal_of_request(R"({"request":"limit","limits":[],"seconds":3601})"),
            "the request: 'seconds' must be at most 3600, is 3601");
  EXPECT_EQ(refusal_of_request(
                R"({"request":"limit","limits":[{"setting":"a","value":1},{"setting":"a","value":2}],"seconds":1})"),
            "the request: limits[1]: this setting stands twice");
  EXPECT_EQ(refusal_of_request(R"({"request":"limit","limits":[]})"), "the request: 'seconds' is missing");
  EXPECT_EQ(refusal_of_request(R"({"request":"limitable","seconds":1})"),
            "the request: 'seconds' has no place in a request to limitable");
  for (const char* line : {"", "list", "[]", "{}", "{\"request\":1}", "{\"request\":\"list\"", "GET / HTTP/1.1",
                           "\xff\xfe", "{\"request\":\"list\",\"request\":\"set\"}", "[[[[[[[[[[[["})
    EXPECT_EQ(refusal_of_request(line).find("the request"), 0u) << line;
  std::string many = R"({"request":"lease","settings":[)";
  for (std::size_t i = 0; i <= kMostSettings; ++i) many += fmt::format("{}\"s{}\"", i > 0 ? "," : "", i);
  EXPECT_EQ(refusal_of_request(many + "]}"), "the request: 'settings' must be a list of at most 64 elements");
}

Answer full_listing() {
  Answer answer;
  answer.kind = Answer::Kind::kListing;
  answer.listing.meters = {{"cpu-package0", "rapl-perf", "event 2", energy::Source::kCounter, 6.1e-5, 0.1}};
  SettingEntry clock{"nvml-clock:GPU-1",    "nvml-clock", "gpu0", "highest clock of the GPU", "H100",
                     actuate::Kind::kClock, 345000,       1980000};
  clock.values = {345000, 1980000};
  clock.readable = false;
  SettingEntry power{"nvml-power:GPU-1",    "nvml-power", "gpu0",   "limit", "H100",
                     actuate::Kind::kPower, 200000000,    700000000};
  power.present = 700000000;
  power.step = 1000000;
  power.holder = "process 7 of ann";
  answer.listing.settings = {clock, power};
  answer.listing.withheld = {{"nvml-power:GPU-2", "gpu1", "belongs to no job of user 7 on this node"}};
  return answer;
}

TEST(DaemonWire, AnswersComeBackTheSame) {
  Answer readings;
  readings.kind = Answer::Kind::kReadings;
  readings.readings = {{"cpu-package0", energy::Reading{Joules(12.5), 1, 200, 0.25}, ""},
                       {"dram0", std::nullopt, "no counter"}};
  Answer set;
  set.kind = Answer::Kind::kSet;
  set.present = 1500000;
  Answer unknown;
  unknown.kind = Answer::Kind::kSet;
  Answer restored;
  restored.kind = Answer::Kind::kRestored;
  restored.restoration.notes = {"put back"};
  restored.restoration.restored = 2;
  Answer leased;
  leased.kind = Answer::Kind::kLeased;
  for (const Answer& answer : {Answer{}, full_listing(), readings, set, unknown, restored, leased}) {
    const std::string line = answer_line(answer);
    const Answer again = parse_answer(cut_newline(line), "the answer");
    EXPECT_EQ(again.kind, answer.kind);
    EXPECT_EQ(answer_line(again), line) << "every member";
  }
  const Answer back = parse_answer(cut_newline(answer_line(full_listing())), "the answer");
  EXPECT_EQ(back.listing.settings[1].holder, "process 7 of ann");
  EXPECT_EQ(back.listing.settings[0].present, std::nullopt);
  EXPECT_EQ(parse_answer(cut_newline(refused_line("no\nright")), "the answer").reason, "no right");
  EXPECT_EQ(parse_answer(cut_newline(closing_line("too slow")), "the answer").kind, Answer::Kind::kClosing);
}

TEST(DaemonWire, AnswersOfAnotherFormAreRefused) {
  EXPECT_EQ(refusal_of_answer(R"({"welcome":2})"),
            "the answer: the daemon speaks protocol 2 and this program 1: use molen of one version");
  EXPECT_EQ(refusal_of_answer(R"({"welcome":1,"set":1})"), "the answer: an answer has one key, this one has 2");
  EXPECT_EQ(refusal_of_answer(R"({"refused":""})"), "the answer: 'refused' has no reason");
  EXPECT_EQ(refusal_of_answer(R"({"leased":false})"), "the answer: 'leased' must be true");
  EXPECT_EQ(refusal_of_answer(R"({"readings":[{"scope":"a","joules":null}]})"),
            "the answer: readings[0]: no joules and no 'reason'");
  EXPECT_EQ(refusal_of_answer(R"({"readings":[{"scope":"a","joules":-1,"gaps":0,"ticks":0,"age":0}]})"),
            "the answer: readings[0]: 'joules' must not be negative, is -1");
  std::string listing = answer_line(full_listing());
  listing.pop_back();
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = listing;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return refusal_of_answer(text.replace(at, from.size(), to));
  };
  EXPECT_EQ(changed("345000,1980000", "1980000,345000"), "the answer: settings[0]: 'values' must ascend");
  EXPECT_EQ(changed("\"least\":345000", "\"least\":0"),
            "the answer: settings[0]: 0 to 1980000 in steps of 1 is no range");
  EXPECT_EQ(changed("\"kind\":\"clock\"", "\"kind\":\"fan\""),
            "the answer: settings[0]: 'kind' must be \"clock\" or \"power limit\"");
  EXPECT_EQ(changed("\"source\":\"counter\"", "\"source\":\"none\""),
            "the answer: meters[0]: 'source' must be counter, power or model");
  EXPECT_EQ(changed("\"withheld\"", "\"hidden\"").find("the answer: unknown key 'hidden'"), 0u);
  for (const char* line : {"", "{}", "[]", "nonsense", "{\"readings\":7}", "{\"listing\":[]}", "{\"restored\":{}}"})
    EXPECT_EQ(refusal_of_answer(line).find("the answer"), 0u) << line;
}

TEST(DaemonWire, AnAnswerThatIsTooLongIsAnError) {
  Answer answer = full_listing();
  answer.listing.withheld.assign(2200, {"nvml-power:GPU-2", "gpu1", std::string(500, 'x')});
  EXPECT_THROW((void)answer_line(answer), Error);
}

}  // namespace
}  // namespace molen::daemon
