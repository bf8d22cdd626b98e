#include "collect/wire.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>

#include "base/error.h"
#include "base/json.h"

#include "collect/test_records.h"

namespace molen::collect {
namespace {

const std::string kPeriodText =
    R"({"scope":"gpu0","start":100,"end":160,"joules":6000,"meter":"nvml","source":"counter","counted":true})";

std::string batch_refusal(const std::string& line) {
  try {
    parse_batch(line, "n1", "here");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

std::string hello_refusal(const std::string& line) {
  try {
    parse_hello(line, "here");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

std::string with_period(const std::string& period) {
  return R"({"session":"s","seq":1,"periods":[)" + period + "]}";
}

// The period above with one member replaced or added.
std::string changed(const std::string& key, const std::string& value) {
  Json json = parse_json(kPeriodText, "test");
  json[key] = parse_json(value, "test");
  return with_period(json.dump());
}

rc::Gen<std::string> names() {
  return rc::gen::map(rc::gen::container<std::string>(rc::gen::inRange<char>('!', '\x7f')),
                      [](const std::string& s) { return as_name(s); });
}

rc::Gen<Period> periods() {
  return rc::gen::exec([] {
    Period p;
    p.scope = *names(), p.meter = *names(), p.job = *names(), p.user = *names();
    p.start_s = *rc::gen::inRange<std::int64_t>(0, 1'000'000'000'000) * 1e-3 + 0.1;
    p.end_s = p.start_s + *rc::gen::inRange(1, 1'000'000) * 1e-3;
    p.counted = *rc::gen::arbitrary<bool>();
    if (*rc::gen::arbitrary<bool>()) {
      p.joules = *rc::gen::inRange(0, 1'000'000) * 1e-6 / 3 * (p.end_s - p.start_s);
      p.source = energy::Source::kPower;
    } else {
      p.reason = as_text("no reading: " + *rc::gen::arbitrary<std::string>());
    }
    return p;
  });
}

RC_GTEST_PROP(Wire, ABatchComesBackAsItWasSent, ()) {
  Batch batch{"n1", *names(), *rc::gen::inRange<std::int64_t>(1, kMostCount), {}, {}};
  for (int i = *rc::gen::inRange(1, 20); i > 0; --i) batch.periods.push_back(*periods());
  for (int i = *rc::gen::inRange(0, 3); i > 0; --i)
    batch.events.push_back({1.5e9 + i / 7.0, *names(), as_text(*rc::gen::arbitrary<std::string>()),
                            *rc::gen::inRange<std::int64_t>(0, kMostCount)});
  const std::string line = batch_line(batch);
  RC_ASSERT(line.ends_with('\n') && line.find('\n') == line.size() - 1);
  RC_ASSERT(parse_batch(line.substr(0, line.size() - 1), "n1", "here") == batch);
}

RC_GTEST_PROP(Wire, CleanedTextsAreWhatTheCollectorAccepts, ()) {
  const std::string any = *rc::gen::container<std::string>(rc::gen::arbitrary<char>());
  RC_ASSERT(is_text(as_text(any)));
  RC_ASSERT(is_name(as_name(any)));
}

TEST(Wire, ALongTextIsCutBetweenCharacters) {
  std::string text;
  while (text.size() < 2 * kMostTextBytes) text += "\u20ac";
  EXPECT_EQ(as_text(text).size(), kMostTextBytes / 3 * 3);
  EXPECT_TRUE(is_text(as_text(text)));
  EXPECT_EQ(as_text("a\nb\x7f"), "a b ");
  EXPECT_EQ(as_name(" a b\n"), "_a_b_");
  EXPECT_EQ(as_name(""), "-");
}

TEST(Wire, HelloNamesNodeAndProtocol) {
  const std::string line = hello_line({"node1", std::string(kProofBytes, 'a')});
  const Hello hello = parse_hello(line.substr(0, line.size() - 1), "here");
  EXPECT_EQ(hello.node, "node1");
  EXPECT_EQ(hello.proof, std::string(kProofBytes, 'a'));
  EXPECT_EQ(parse_hello(R"({"molen_energy":1,"node":"a"})", "here").proof, "");
  EXPECT_NE(
      hello_refusal(R"({"molen_energy":3,"node":"a","shape":0})").find("speaks protocol 3 and this collector 1 and 2"),
      std::string::npos);
  EXPECT_EQ(parse_hello(R"({"molen_energy":2,"node":"a"})", "here").protocol, 2);
  EXPECT_NE(hello_refusal(R"({"molen_energy":1,"node":"cap:all"})").find("'node' begins with cap:"), std::string::npos);
  EXPECT_NE(hello_refusal(R"({"node":"a"})").find("here: 'molen_energy' is missing"), std::string::npos);
  EXPECT_NE(hello_refusal(R"({"molen_energy":1,"node":"a b"})").find("'node' must be"), std::string::npos);
  EXPECT_NE(hello_refusal(R"({"molen_energy":1,"node":"a","nod":"b"})").find("unknown key 'nod'"), std::string::npos);
  EXPECT_NE(hello_refusal(R"({"molen_energy":1,"node":"a","proof":")" + std::string(65, 'x') + "\"}")
                .find("'proof' must have 64 bytes, has 65"),
            std::string::npos);
  EXPECT_NE(hello_refusal("GET / HTTP/1.1").find("here"), std::string::npos);
}

TEST(Wire, AnswersComeBack) {
  const auto back = [](std::string line) { return parse_answer(line.substr(0, line.size() - 1), "here"); };
  EXPECT_EQ(back(welcome_line()).kind, Answer::Kind::kWelcome);
  const Answer stored = back(stored_line("abc", 17));
  EXPECT_EQ(stored.kind, Answer::Kind::kStored);
  EXPECT_EQ(stored.session, "abc");
  EXPECT_EQ(stored.ack, 17);
  EXPECT_EQ(back(refused_line("no\nroom")).reason, "no room");
  for (const char* line : {"", "[]", R"({"ack":1})", R"({"ack":0,"session":"s"})", R"({"welcome":9})", R"({"x":1})"})
    EXPECT_THROW(parse_answer(line, "here"), UsageError) << line;
}

// Questions for limits and their answers are lines of protocol 2 only.
TEST(Wire, LimitsComeBack) {
  const auto line = [](std::string text) { return text.substr(0, text.size() - 1); };
  const Limitable limitable{
      {{"nvml-power:GPU-1", "gpu0", 200, 700.5, 650}, {"powercap:cpu-package0", "cpu-package0", 60, 250, {}}},
      "one\nproblem"};
  const NodeLine asked = parse_node_line(line(ask_line(limitable, "once")), "n", kLimitProtocol, "here");
  ASSERT_TRUE(std::holds_alternative<Ask>(asked));
  Limitable expected = limitable;
  expected.problem = "one problem";
  EXPECT_EQ(std::get<Ask>(asked), (Ask{expected, "once"}));
  EXPECT_THROW(parse_node_line(line(ask_line(limitable, "once")), "n", kProtocol, "here"), UsageError)
      << "another protocol";
  EXPECT_TRUE(std::holds_alternative<Batch>(
      parse_node_line(line(batch_line(test_batch("n", "s", 1))), "n", kLimitProtocol, "here")));
  const LimitOrder order{{{"nvml-power:GPU-1", 333.3}}, 61.5};
  const Answer answer = parse_answer(line(limits_line(order)), "here");
  EXPECT_EQ(answer.kind, Answer::Kind::kLimits);
  EXPECT_EQ(answer.order, order);
  EXPECT_EQ(parse_answer(line(limits_line({})), "here").order, LimitOrder{});
  EXPECT_EQ(parse_answer(line(welcome_line(2)), "here").protocol, 2);
}

TEST(Wire, LimitsOfAnotherFormAreRefused) {
  const auto refusal = [](const std::string& settings) {
    try {
      (void)parse_node_line(R"({"nonce":"once","limitable":)" + settings + "}", "n", kLimitProtocol, "here");
      return std::string("accepted");
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  const std::string one = R"({"setting":"a","scope":"gpu0","least":1,"most":2})";
  EXPECT_EQ(refusal(R"({"settings":[)" + one + "]}"), "accepted");
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"3", "here: limitable: must be a JSON object"},
           {R"({"setting":[]})", "unknown key 'setting'"},
           {R"({"problem":"x"})", "settings"},
           {R"({"settings":{}})", "must be a list of at most 64 settings"},
           {R"({"settings":[)" + one + "," + one + "]}", "settings[1]: this setting stands twice"},
           {R"({"settings":[{"setting":"a","scope":"gpu0","least":3,"most":2}]})", "3 W to 2 W is no range"},
           {R"({"settings":[{"setting":"a","scope":"gpu0","least":0,"most":2}]})", "'least' must be 1 W to 1e+06 W"},
           {R"({"settings":[{"setting":"a b","scope":"gpu0","least":1,"most":2}]})", "'setting' must be"},
           {R"({"settings":[{"setting":"a","scope":"gpu0","least":1,"most":2,"present":1e9}]})", "'present' must be"}})
    EXPECT_NE(refusal(text).find(says), std::string::npos) << refusal(text);
  for (const char* line : {R"({"limits":[]})", R"({"limits":[],"seconds":-1})", R"({"limits":[],"seconds":3601})",
                           R"({"limits":3,"seconds":1})", R"({"limits":[{"setting":"a","watts":0}],"seconds":1})",
                           R"({"limits":[{"setting":"a"}],"seconds":1})"})
    EXPECT_THROW(parse_answer(line, "here"), UsageError) << line;
}

TEST(Wire, RefusesARecordThatBreaksALimit) {
  EXPECT_EQ(batch_refusal(with_period(kPeriodText)), "accepted");
  EXPECT_EQ(batch_refusal(changed("joules", "5.9e7")), "accepted") << "just below 1 MW for 60 s";
  const std::vector<std::array<std::string, 3>> cases{
      {"scope", R"("")", "periods[0]: 'scope' must be 1 to 128"},
      {"scope", R"("a b")", "'scope' must be"},
      {"scope", '"' + std::string(129, 'x') + '"', "'scope' must be"},
      {"meter", "7", "'meter' must be a string, is 7"},
      {"start", "-1", "'start' must be a time"},
      {"start", "160", "'end' must be after 'start'"},
      {"end", "1e12", "'end' must be a time"},
      {"end", "1e9", "more than 31 days"},
      {"end", "\"now\"", "'end' must be a number"},
      {"joules", "-1", "'joules' must be 0 or more"},
      {"joules", "6.1e7", "more than 1e+06 W"},
      {"joules", "null", "'reason' is missing"},
      {"reason", R"("why")", "only for a period without joules"},
      {"source", R"("none")", "'source' must not be none"},
      {"source", R"("guess")", "must be counter, power, model or none"},
      {"counted", "1", "'counted' must be true or false"},
      {"job", R"("a\u0000b")", "'job' must be"},
      {"step", R"("\u00e9")", "'step' must be"},
      {"user", '"' + std::string(129, 'u') + '"', "'user' must be"},
      {"watts", "1", "unknown key 'watts'"},
  };
  for (const auto& [key, value, says] : cases)
    EXPECT_NE(batch_refusal(changed(key, value)).find(says), std::string::npos)
        << key << " " << value << ": " << batch_refusal(changed(key, value));
}

TEST(Wire, ANullReadingSaysWhy) {
  const std::string null =
      R"({"scope":"cpu","start":1,"end":2,"joules":null,"reason":"R","meter":"null","source":"none","counted":true})";
  EXPECT_EQ(batch_refusal(with_period(null)), "accepted");
  const auto without = [&](const char* key) {
    Json json = parse_json(null, "test");
    json.erase(key);
    return batch_refusal(with_period(json.dump()));
  };
  EXPECT_NE(without("joules").find("joules"), std::string::npos) << "a key that was forgotten is no null";
  EXPECT_NE(without("reason").find("'reason' is missing"), std::string::npos);
  std::string control = null;
  control.replace(control.find("\"R\""), 3, R"("\u0007")");
  EXPECT_NE(batch_refusal(with_period(control)).find("without control characters"), std::string::npos);
}

TEST(Wire, RefusesABatchThatBreaksALimit) {
  const auto says = [](const std::string& line, const std::string& part) {
    EXPECT_NE(batch_refusal(line).find(part), std::string::npos) << batch_refusal(line);
    EXPECT_TRUE(batch_refusal(line).starts_with("here")) << batch_refusal(line);
  };
  says("", "here");
  says("[1]", "must be a JSON object");
  says(R"({"session":"s","seq":1})", "neither periods nor events");
  says(R"({"session":"s","seq":0,"events":[{"time":1,"kind":"k"}]})", "'seq' must be 1 to 2^53");
  says(R"({"session":"s","seq":1.5,"events":[]})", "'seq' must be a whole number");
  says(R"({"session":"","seq":1,"events":[{"time":1,"kind":"k"}]})", "'session' must be");
  says(R"({"session":"s","seq":1,"periods":{}})", "'periods' must be a list");
  says(R"({"session":"s","seq":1,"seq":2,"periods":[]})", "seq");
  says(R"({"session":"s","seq":1,"periods":[[[[[1]]]]]})", "nested deeper");
  says(R"({"session":"s","seq":1,"events":[{"time":1,"kind":"k","count":-1}]})", "events[0]: 'count' must be");
  says(R"({"session":"s","seq":1,"events":[{"time":1,"kind":""}]})", "events[0]: 'kind' must be");
  std::string many;
  for (std::size_t i = 0; i <= kMostRecords; ++i) many += std::string(i > 0 ? "," : "") + R"({"time":1,"kind":"k"})";
  says(R"({"session":"s","seq":1,"events":[)" + many + "]}", "513 records; 512 are the most");
}

TEST(Wire, DoesNotSendWhatTheCollectorRefuses) {
  Batch batch = test_batch("n1", "s", 1);
  batch.periods[0].joules = -1.0;
  EXPECT_THROW(batch_line(batch), Error);
  batch = test_batch("n1", "s", 1);
  batch.events.assign(400, {1.0, "kind", std::string(300, 'x'), 0});
  EXPECT_THROW(batch_line(batch), Error) << "longer than a line may be";
}

TEST(LineBuffer, GivesTheSameLinesHoweverTheyArrive) {
  const std::string all = "one\n\ntwo three\nfour\n";
  for (std::size_t step = 1; step <= all.size(); ++step) {
    LineBuffer buffer(64);
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < all.size(); at += step) {
      buffer.append(all.substr(at, step));
      while (const auto line = buffer.next()) lines.emplace_back(*line);
    }
    EXPECT_EQ(lines, (std::vector<std::string>{"one", "", "two three", "four"})) << step;
    EXPECT_TRUE(buffer.empty());
  }
}

TEST(LineBuffer, HoldsOneLineAndNoMore) {
  LineBuffer buffer(8);
  EXPECT_EQ(buffer.room(), 8u);
  buffer.append("1234567");
  EXPECT_FALSE(buffer.too_long());
  EXPECT_EQ(buffer.room(), 1u);
  buffer.append("8");
  EXPECT_TRUE(buffer.too_long()) << "seven bytes and a newline are the most";
  EXPECT_EQ(buffer.room(), 0u);
  LineBuffer whole(8);
  whole.append("1234567\n");
  EXPECT_FALSE(whole.too_long());
  EXPECT_EQ(whole.room(), 0u);
  EXPECT_EQ(whole.next(), "1234567");
  EXPECT_EQ(whole.room(), 8u);
}

TEST(Session, NoTwoAreEqual) {
  EXPECT_TRUE(is_name(new_session()));
  EXPECT_NE(new_session(), new_session());
}

}  // namespace
}  // namespace molen::collect
