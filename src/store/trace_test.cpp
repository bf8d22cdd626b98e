#include "store/trace.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "base/test_golden.h"

namespace molen::store {
namespace {

Json parsed(const std::vector<TraceSpan>& spans, const std::vector<TraceCounter>& counters = {}) {
  return parse_json(trace_json(spans, counters), "trace");
}

std::vector<Json> of_kind(const Json& document, const std::string& ph) {
  std::vector<Json> out;
  for (const auto& e : document["traceEvents"])
    if (e["ph"] == ph) out.push_back(e);
  return out;
}

TEST(Trace, SpansInMicrosecondsOnNamedThreads) {
  const Json t = parsed({{"forward \"q\"", "compute", "compute", 100.0, 100.002, {{"bytes", 12}}, 1},
                         {"all-reduce", "comm", "dp", 100.001, 100.0015, {}, 1}},
                        {{"watts", 100.0, 250.5, 1}, {"watts", 100.001, NAN, 1}});
  EXPECT_EQ(t["displayTimeUnit"], "ms");
  const auto spans = of_kind(t, "X");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["name"], "forward \"q\"");
  EXPECT_EQ(spans[0]["ts"], 0.0);
  EXPECT_EQ(spans[0]["dur"], 2000.0);
  EXPECT_EQ(spans[0]["args"]["bytes"], 12);
  EXPECT_EQ(spans[1]["ts"], 1000.0);
  EXPECT_EQ(spans[1]["dur"], 500.0);
  EXPECT_EQ(spans[1]["pid"], 1);
  EXPECT_NE(spans[0]["tid"], spans[1]["tid"]);
  std::map<std::int64_t, std::string> names;
  for (const auto& m : of_kind(t, "M"))
    if (m["name"] == "thread_name") names[m["tid"].get<std::int64_t>()] = m["args"]["name"].get<std::string>();
  EXPECT_EQ(names[spans[0]["tid"].get<std::int64_t>()], "compute");
  EXPECT_EQ(names[spans[1]["tid"].get<std::int64_t>()], "dp");
  ASSERT_EQ(of_kind(t, "C").size(), 1u);  // a value that is not a number is no sample
  EXPECT_EQ(of_kind(t, "C")[0]["args"]["value"], 250.5);
}

// Each process and thread is named once, under its own ids, and sorted by them; counters are on the spans' clock.
TEST(Trace, TheWholeOfASmallOne) {
  const Json t = parsed(
      {{"b", "compute", "main", 5.0, 5.003, {{"bytes", 12}}, 3}, {"a", "comm", "dp", 5.001, 5.002, Json::object(), 3}},
      {{"watts", 5.0015, 250.5, 4}});
  EXPECT_EQ(t, Json::parse(R"({"traceEvents":[
      {"name":"process_name","ph":"M","pid":3,"tid":0,"args":{"name":"rank 3"}},
      {"name":"process_sort_index","ph":"M","pid":3,"tid":0,"args":{"sort_index":3}},
      {"name":"thread_name","ph":"M","pid":3,"tid":1,"args":{"name":"main"}},
      {"name":"thread_sort_index","ph":"M","pid":3,"tid":1,"args":{"sort_index":1}},
      {"name":"thread_name","ph":"M","pid":3,"tid":2,"args":{"name":"dp"}},
      {"name":"thread_sort_index","ph":"M","pid":3,"tid":2,"args":{"sort_index":2}},
      {"name":"b","cat":"compute","ph":"X","ts":0.0,"dur":3000.0,"pid":3,"tid":1,"args":{"bytes":12}},
      {"name":"a","cat":"comm","ph":"X","ts":1000.0,"dur":1000.0,"pid":3,"tid":2,"args":{}},
      {"name":"watts","ph":"C","ts":1500.0,"pid":4,"tid":0,"args":{"value":250.5}}],"displayTimeUnit":"ms"})"))
      << t.dump(1);
}

// A span that overlaps another without nesting goes to a further thread. A span that follows directly or lies within
// another stays.
TEST(Trace, OverlapsGoToFurtherThreads) {
  const Json t = parsed({{"outer", "", "t", 0, 4, {}, 0},
                         {"inner", "", "t", 0, 2, {}, 0},
                         {"crosses", "", "t", 3, 5, {}, 0},
                         {"follows", "", "t", 4, 6, {}, 0}});
  std::map<std::string, std::int64_t> lane;
  for (const Json& e : of_kind(t, "X")) lane[e["name"].get<std::string>()] = e["tid"].get<std::int64_t>();
  EXPECT_EQ(lane, (std::map<std::string, std::int64_t>{{"outer", 1}, {"inner", 1}, {"crosses", 2}, {"follows", 1}}));
  EXPECT_EQ(of_kind(t, "M")[4]["args"]["name"], "t (2)");
}

// The earliest event of all is at 0, even if it is a counter.
TEST(Trace, BeginsWithTheEarliest) {
  const Json t = parsed({{"a", "", "t", 2, 3, {}, 0}}, {{"watts", 1.5, 1, 0}});
  EXPECT_EQ(of_kind(t, "C")[0]["ts"], 0.0);
  EXPECT_EQ(of_kind(t, "X")[0]["ts"], 5e5);
}

TEST(Trace, EmptyIsValid) {
  EXPECT_TRUE(parsed({})["traceEvents"].empty());
}

TEST(Trace, RefusesImpossibleTimes) {
  const GoldenMessages golden;
  const auto refusal = [](const TraceSpan& span, const std::vector<TraceCounter>& counters) -> std::string {
    try {
      (void)trace_json({span}, counters);
      return "";
    } catch (const Error& e) {
      return GoldenMessages::note(e.what());
    }
  };
  EXPECT_EQ(refusal({"a", "", "t", 2, 1, {}, 0}, {}), "trace: 'a' ends before it starts (1 s, 2 s)");
  EXPECT_EQ(refusal({"a", "", "t", NAN, 1, {}, 0}, {}), "trace: the times of 'a' are not finite");
  EXPECT_EQ(refusal({"a", "", "t", 0, INFINITY, {}, 0}, {}), "trace: the times of 'a' are not finite");
  EXPECT_EQ(refusal({"a", "", "t", 1, 1, {}, 0}, {{"w", NAN, 1, 0}}), "trace: the time of counter 'w' is not finite");
  EXPECT_EQ(refusal({"a", "", "t", 1, 1, {}, 0}, {{"w", 1, NAN, 0}}), "");
}

// The display unit for viewers; text is escaped only as JSON requires.
TEST(Trace, TheDocument) {
  const std::string text = trace_json({{"m\u00fchle", "", "t", 0, 1, {}, 0}});
  EXPECT_EQ(parse_json(text, "trace")["displayTimeUnit"], "ms");
  EXPECT_NE(text.find("m\u00fchle"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(Trace, NamesThatAreNoUtf8DoNotLoseTheTrace) {
  EXPECT_EQ(of_kind(parsed({{"\xff", "", "t", 0, 1, {}, 0}}), "X").size(), 1u);
}

// The format requires that X events of one thread nest or do not overlap.
RC_GTEST_PROP(Trace, SpansOfAThreadNest, ()) {
  const auto raw = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(0, 40), rc::gen::inRange(0, 20)));
  std::vector<TraceSpan> spans;
  for (const auto& [start, length] : raw)
    spans.push_back({"s", "c", "t", start * 1e-3, (start + length) * 1e-3, {}, 0});
  const auto events = of_kind(parsed(spans), "X");
  RC_ASSERT(events.size() == spans.size());
  for (std::size_t i = 0; i < events.size(); ++i)
    for (std::size_t j = i + 1; j < events.size(); ++j) {
      if (events[i]["tid"] != events[j]["tid"]) continue;
      const double a = events[i]["ts"].get<double>(), b = a + events[i]["dur"].get<double>();
      const double c = events[j]["ts"].get<double>(), d = c + events[j]["dur"].get<double>();
      RC_ASSERT((b <= c + 1e-6 || d <= a + 1e-6) || (a <= c && d <= b + 1e-6) || (c <= a && b <= d + 1e-6));
    }
}

}  // namespace
}  // namespace molen::store
