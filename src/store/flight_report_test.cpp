#include "store/flight_report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace molen::store {
namespace {

struct Place {
  std::int64_t step;
  int op;
  bool inside;
};

Sighting living(int rank, int ranks, std::optional<Place> compute, std::optional<Place> comm, bool advances = false) {
  Sighting s;
  s.rank = rank;
  s.process = ProcessState::kAlive;
  s.beats = true;
  s.advances = advances;
  s.flight.emplace();
  s.flight->identity.rank = rank;
  s.flight->identity.ranks = ranks;
  s.flight->identity.host = "node1";
  s.flight->identity.pid = 100 + rank;
  s.flight->phase = FlightPhase::kTrain;
  s.flight->beat_wall_ns = 1'000'000'000'000;
  for (int i = 0; i < 2; ++i)
    if (const auto& p = i == 0 ? compute : comm) {
      s.flight->step = p->step;
      s.flight->streams[static_cast<std::size_t>(i)] = {true, p->step, p->op, p->inside, 9, {}, 0};
    }
  return s;
}
const OpTexts kReportOps = [](const std::string&, int op) {
  return OpText{op % 10 == 0 ? fmt::format("all_reduce {}", op) : fmt::format("part {}", op),
                fmt::format("  {} <-- here\n", op)};
};

TEST(FlightJudge, TheRankThatHasNotEnteredWhatTheOthersWaitIn) {
  const auto j = judge(
      {living(0, 3, Place{7, 25, false}, Place{7, 20, true}), living(1, 3, Place{7, 15, true}, Place{7, 10, false}),
       living(2, 3, Place{7, 25, false}, Place{7, 20, true})},
      kReportOps);
  EXPECT_EQ(j.culprits, std::vector<int>{1});
  EXPECT_EQ(j.waiting, (std::vector<int>{0, 2}));
  EXPECT_EQ(j.waits_in, 20);
  EXPECT_EQ(j.ranks[1].state, RankState::kHung);
  EXPECT_NE(j.summary.find("rank 1 (node1 pid 101) hung: op 15 (part 15) of step 7"), std::string::npos) << j.summary;
  EXPECT_NE(j.summary.find("ranks 0, 2 wait in op 20 (all_reduce 20)"), std::string::npos) << j.summary;
  const std::string text = to_text(j, kReportOps);
  EXPECT_NE(text.find("15 <-- here"), std::string::npos) << text;
  EXPECT_NE(text.find("20 <-- here"), std::string::npos) << text;
  EXPECT_EQ(to_json(j, kReportOps)["culprits"], Json::array({1}));
}

// The whole table for people and the whole JSON for programs of one judgement.
TEST(FlightJudge, IsShownWhole) {
  std::vector<Sighting> ranks{living(0, 3, Place{7, 25, false}, Place{7, 20, true}),
                              living(1, 3, Place{7, 15, true}, Place{7, 10, false}), Sighting{}};
  ranks[2].rank = 2;
  ranks[0].flight->idle_ns = 2'500'000'000;
  ranks[1].flight->idle_ns = 4'000'000'000;
  ranks[1].flight->beat_wall_ns -= 3'000'000'000;
  ranks[0].flight->identity.attempt = 4;
  ranks[0].flight->streams[1].written = 11;
  ranks[0].flight->streams[1].torn = 1;
  ranks[0].flight->streams[1].records.resize(6);
  const auto j = judge(ranks, kReportOps);
  EXPECT_EQ(
      to_text(j, kReportOps),
      "rank 2 has left no record; rank 0 waits in op 20 (all_reduce 20)\n\n"
      "  rank  host                  pid  state      step  no progress  doing\n"
      "     0  node1                 100  waiting       7       2.50 s  waiting in op 20 (all_reduce 20) of step 7\n"
      "     1  node1                 101  hung          7       7.00 s  hung: op 15 (part 15) of step 7\n"
      "        last heartbeat 1970-01-01T00:16:37Z, 3.00 s before the last of all\n"
      "     2  -                       -  absent  \n\n"
      "rank 0 (waiting), step 7, op 20:\n  20 <-- here\n");
  const Json json = to_json(j, kReportOps);
  EXPECT_EQ(json["waits_in"], 20);
  EXPECT_EQ(json["waiting"], Json::array({0}));
  ASSERT_EQ(json["ranks"].size(), 3u);
  Json first = json["ranks"][0];
  EXPECT_DOUBLE_EQ(first["last_beat_s"].get<double>(), 1000.0);
  first.erase("last_beat_s");
  EXPECT_EQ(first, Json::parse(R"({"rank":0,"state":"waiting","doing":"waiting in op 20 (all_reduce 20) of step 7",
      "host":"node1","pid":100,"attempt":4,"phase":"train","step":7,"op":20,"inside":true,"text":"all_reduce 20",
      "excerpt":"  20 <-- here\n","idle_s":2.5,
      "streams":[{"stream":"compute","records":9,"readable":0,"torn":0},
      {"stream":"dp_comm","records":11,"readable":6,"torn":1}]})"));
  EXPECT_EQ(json["ranks"][1]["rank"], 1);
  EXPECT_EQ(json["ranks"][1]["op"], 15);
  EXPECT_EQ(json["ranks"][2]["rank"], 2);
  EXPECT_FALSE(json["ranks"][2].contains("host"));
}

TEST(FlightJudge, AStoppedRankInsideTheSameCollective) {
  auto stopped = living(1, 2, Place{7, 25, false}, Place{7, 20, true});
  stopped.process = ProcessState::kStopped;
  stopped.beats = false;
  const auto j = judge({living(0, 2, Place{7, 25, false}, Place{7, 20, true}), stopped}, kReportOps);
  EXPECT_EQ(j.culprits, std::vector<int>{1});
  EXPECT_EQ(j.waiting, std::vector<int>{0});
}

TEST(FlightJudge, AnEarlierCollectiveThanTheOthers) {
  const auto j = judge({living(0, 2, {}, Place{7, 20, true}), living(1, 2, {}, Place{6, 90, true})}, kReportOps);
  EXPECT_EQ(j.culprits, std::vector<int>{1});
}

TEST(FlightJudge, AllInTheSameCollectiveBlameNobody) {
  const auto j = judge({living(0, 2, {}, Place{7, 20, true}), living(1, 2, {}, Place{7, 20, true})}, kReportOps);
  EXPECT_TRUE(j.culprits.empty());
  EXPECT_NE(j.summary.find("no rank is behind the others"), std::string::npos) << j.summary;
}

// A rank may be in two collectives at once, on two streams. It waits in both, and the earlier one is its place.
TEST(FlightJudge, SeveralStreamsOfCommunication) {
  const auto also_in = [](Sighting s, int op) {
    s.flight->streams[kLastCommStream] = {true, 7, op, true, 9, {}, 0};
    return s;
  };
  const auto first = also_in(living(0, 3, Place{7, 25, false}, Place{7, 20, true}), 24);
  const auto second = also_in(living(1, 3, Place{7, 25, false}, Place{7, 20, false}), 24);
  const auto late = living(2, 3, Place{7, 15, true}, Place{7, 10, false});
  auto j = judge({first, second, late}, kReportOps);
  EXPECT_EQ(j.culprits, std::vector<int>{2});
  EXPECT_EQ(j.waiting, (std::vector<int>{0, 1}));
  EXPECT_EQ(j.waits_in, 20);
  EXPECT_EQ(j.ranks[1].state, RankState::kWaiting);
  // All wait, one of them in an earlier collective than the others.
  j = judge({first, second}, kReportOps);
  EXPECT_EQ(j.culprits, std::vector<int>{0});
}

// A message may be received ahead of its use while this rank hangs in an op of compute. The rank does not count as
// waiting, and the ranks at earlier collectives are not behind it.
TEST(FlightJudge, ARankThatHangsBesideAMessage) {
  const auto receiving = [](Sighting s) {
    s.flight->streams[kLastCommStream] = {true, 7, 100, true, 9, {}, 0};
    return s;
  };
  const auto hung = receiving(living(0, 2, Place{7, 15, true}, Place{7, 10, false}));
  const auto innocent = receiving(living(1, 2, Place{7, 15, false}, Place{7, 20, true}));
  const auto j = judge({hung, innocent}, kReportOps);
  EXPECT_EQ(j.culprits, std::vector<int>{0});
  EXPECT_EQ(j.ranks[0].state, RankState::kHung);
  EXPECT_EQ(j.waiting, std::vector<int>{1});
  EXPECT_EQ(j.waits_in, 20);
}

// Each pipeline stage numbers its ops on its own, so a rank with a smaller number need not be behind.
TEST(FlightJudge, RanksOfOtherProgramsAreNotBehind) {
  auto first = living(0, 4, {}, Place{7, 90, true}), second = living(1, 4, {}, Place{7, 90, true});
  auto third = living(2, 4, {}, Place{7, 20, true}), fourth = living(3, 4, {}, Place{7, 20, true});
  for (auto* s : {&third, &fourth}) s->flight->identity.program_digest = "stage 1";
  const OpTexts of_stages = [](const std::string& program, int op) {
    return OpText{program == "stage 1" ? fmt::format("receive {}", op) : fmt::format("send {}", op), ""};
  };
  EXPECT_TRUE(judge({first, second, third, fourth}, of_stages).culprits.empty());
  fourth.flight->streams[kFirstCommStream].op = 10;
  const auto j = judge({first, second, third, fourth}, of_stages);
  EXPECT_EQ(j.culprits, std::vector<int>{3});
  EXPECT_NE(j.summary.find("receive 10"), std::string::npos) << j.summary;
  EXPECT_NE(j.summary.find("send 90"), std::string::npos) << j.summary;
  // A computing rank holds up ranks of its own program and of others.
  const auto busy = living(0, 4, Place{7, 31, true}, Place{7, 30, false});
  EXPECT_EQ(judge({busy, second, third}, of_stages).culprits, std::vector<int>{0});
}

TEST(FlightJudge, ABusyRankHoldsOthersUpRightly) {
  auto busy = living(0, 2, Place{7, 90, false}, Place{7, 88, false});
  busy.flight->phase = FlightPhase::kCheckpoint;
  EXPECT_TRUE(judge({busy, living(1, 2, {}, Place{8, 3, true})}, kReportOps).culprits.empty());
}

// All ranks of an ended job, in the same place.
std::vector<Sighting> dead_in_a_collective(int ranks) {
  std::vector<Sighting> all;
  for (int r = 0; r < ranks; ++r) {
    auto s = living(r, ranks, Place{7, 25, false}, Place{7, 20, true});
    s.process = ProcessState::kDead;
    s.beats = s.advances = false;
    all.push_back(s);
  }
  return all;
}

TEST(FlightJudge, AfterTheFactTheFirstToFallSilent) {
  std::vector<Sighting> all = dead_in_a_collective(3);
  all[2].flight->beat_wall_ns -= 1'500'000'000;
  EXPECT_EQ(judge(all, kReportOps).culprits, std::vector<int>{2});
  // All fell silent at once: blames the rank that the others found dead.
  all[2].flight->beat_wall_ns = all[0].flight->beat_wall_ns;
  all[0].flight->saw_dead = 1;
  EXPECT_EQ(judge(all, kReportOps).culprits, std::vector<int>{1});
  // Without any such record: blames the rank that was behind.
  all[0].flight->saw_dead = -1;
  all[0].flight->streams[1].inside = false;
  all[0].flight->streams[1].op = 10;
  EXPECT_EQ(judge(all, kReportOps).culprits, std::vector<int>{0});
}

TEST(FlightJudge, ARankThatEndedEarlyIsNotTheFirstToFallSilent) {
  std::vector<Sighting> all = dead_in_a_collective(4);
  all[0].flight->end = FlightEnd::kEnded;
  all[0].flight->beat_wall_ns -= 60'000'000'000;
  all[2].flight->beat_wall_ns -= 1'500'000'000;
  all[3].flight.reset();  // never had a record
  EXPECT_EQ(judge(all, kReportOps).culprits, std::vector<int>{2});
}

// The rank that ended the job died first; a launcher resumed the stopped rank before it killed it.
TEST(FlightJudge, TheVerdictOfTheTimeStands) {
  std::vector<Sighting> all = dead_in_a_collective(2);
  all[0].flight->beat_wall_ns -= 1'500'000'000;
  all[0].flight->end = FlightEnd::kAlarmed;
  all[0].flight->saw_dead = 1;
  const auto j = judge(all, kReportOps);
  EXPECT_EQ(j.culprits, std::vector<int>{1});
  EXPECT_EQ(j.waiting, std::vector<int>{0});
  EXPECT_EQ(j.waits_in, 20);
}

TEST(FlightJudge, WithoutRecordsOrNames) {
  Sighting none;
  none.rank = 1;
  const auto j = judge({living(0, 2, {}, Place{7, 20, true}), none}, {});
  EXPECT_EQ(j.culprits, std::vector<int>{1});
  EXPECT_NE(to_text(j, {}).find("absent"), std::string::npos);
}

// The order of the checks: how the rank left, whether its process exists, whether it beats, and only then its ops.
TEST(FlightJudge, TheStateOfARank) {
  EXPECT_EQ(state_of({}), RankState::kAbsent);
  const auto state = [](Sighting s, auto&& change) {
    change(s);
    return state_of(s);
  };
  const Sighting in_op = living(0, 1, Place{7, 15, true}, {}, true);
  Sighting left = in_op;
  left.process = ProcessState::kDead;
  const auto leaves = [&](FlightEnd end) { return state(left, [&](Sighting& s) { s.flight->end = end; }); };
  EXPECT_EQ(leaves(FlightEnd::kEnded), RankState::kEnded);
  EXPECT_EQ(leaves(FlightEnd::kFailed), RankState::kFailed);
  EXPECT_EQ(leaves(FlightEnd::kAlarmed), RankState::kAlarmed);
  EXPECT_EQ(leaves(FlightEnd::kRunning), RankState::kDead);
  EXPECT_EQ(state(in_op, [](Sighting& s) { s.process = ProcessState::kStopped, s.beats = false; }),
            RankState::kStopped);
  for (const auto process : {ProcessState::kUnknown, ProcessState::kAlive})
    EXPECT_EQ(state(in_op, [&](Sighting& s) { s.process = process, s.beats = false; }), RankState::kSilent);
  EXPECT_EQ(state(in_op, [](Sighting& s) { s.flight->phase = FlightPhase::kValidate, s.advances = false; }),
            RankState::kBusy);
  EXPECT_EQ(state(in_op, [](Sighting& s) { s.advances = false; }), RankState::kHung);
  EXPECT_EQ(state_of(in_op), RankState::kRunning);
  EXPECT_EQ(state(in_op, [](Sighting& s) { s.beats = s.advances = std::nullopt; }), RankState::kRunning)
      << "one look says nothing of beats and progress";
  EXPECT_EQ(state(in_op, [](Sighting& s) { s.flight->streams[0].inside = false; }), RankState::kBetween);
  EXPECT_EQ(state_of(living(0, 1, Place{7, 15, false}, Place{7, 20, true})), RankState::kWaiting);
  EXPECT_EQ(state(in_op, [](Sighting& s) { s.flight->streams[kFirstCommStream].inside = true; }), RankState::kRunning)
      << "beside a collective";
}

// The report has words for each state.
TEST(FlightJudge, SaysWhatARankDoes) {
  const auto doing = [](Sighting s, auto&& change) {
    change(s);
    return judge({s}, kReportOps).ranks[0].doing;
  };
  const Sighting in_op = living(0, 1, Place{7, 15, true}, Place{7, 10, false}, true);
  const Sighting in_comm = living(0, 1, Place{7, 25, false}, Place{7, 20, true});
  const auto end = [](FlightEnd e) { return [e](Sighting& s) { s.flight->end = e; }; };
  EXPECT_EQ(doing(in_op, end(FlightEnd::kEnded)), "ended after step 7");
  EXPECT_EQ(doing(in_op, end(FlightEnd::kFailed)), "ended with an error of its own: op 15 (part 15) of step 7");
  EXPECT_EQ(doing(in_op, end(FlightEnd::kAlarmed)), "ended the job: op 15 (part 15) of step 7");
  EXPECT_EQ(doing(in_comm, end(FlightEnd::kAlarmed)), "ended the job: waited in op 20 (all_reduce 20) of step 7");
  EXPECT_EQ(doing(in_comm, end(FlightEnd::kRunning)), "waiting in op 20 (all_reduce 20) of step 7");
  EXPECT_EQ(doing(in_op, end(FlightEnd::kRunning)), "running: op 15 (part 15) of step 7");
  EXPECT_EQ(doing(in_op, [](Sighting& s) { s.flight->phase = FlightPhase::kCheckpoint; }), "in checkpoint, step 7");
  EXPECT_EQ(doing(in_op, [](Sighting& s) { s.process = ProcessState::kDead; }), "dead: op 15 (part 15) of step 7");
  // Shows the last op of the rank, from whichever stream.
  const auto leave = [](Sighting& s) { s.flight->streams[0].inside = false; };
  EXPECT_EQ(doing(in_op, leave), "between: after op 15 (part 15) of step 7");
  EXPECT_EQ(doing(living(0, 1, Place{7, 15, false}, Place{7, 20, false}, true), leave),
            "between: after op 20 (all_reduce 20) of step 7");
  EXPECT_EQ(doing(in_op, [&](Sighting& s) { leave(s), s.flight->step = 8; }), "between: before the first op of step 8");
  EXPECT_EQ(doing(in_op, [](Sighting& s) { s.flight->step = 8; }), "running: op 15 (part 15) of step 7");
  EXPECT_EQ(doing(living(0, 1, {}, {}, true), end(FlightEnd::kRunning)), "between: before the first op of step 0");
}

TEST(FlightJudge, RanksComeInTheirOrder) {
  const auto j = judge({living(2, 3, {}, Place{7, 20, true}), living(0, 3, {}, Place{7, 20, true}),
                        living(1, 3, Place{7, 15, true}, Place{7, 10, false})},
                       kReportOps);
  std::vector<int> order;
  for (const auto& r : j.ranks) order.push_back(r.seen.rank);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(j.waiting, (std::vector<int>{0, 2}));
}

TEST(FlightJudge, WhoHangsWhereNobodyWaits) {
  const auto hung = [](int rank) { return living(rank, 2, Place{7, 15, true}, Place{7, 10, false}); };
  const auto runs = living(1, 2, Place{7, 15, true}, Place{7, 10, false}, true);
  EXPECT_EQ(judge({hung(0), runs}, kReportOps).culprits, std::vector<int>{0});
  EXPECT_EQ(judge({hung(0)}, kReportOps).culprits, std::vector<int>{0});
  // When every rank is held up, none of them is to blame.
  const auto j = judge({hung(0), hung(1)}, kReportOps);
  EXPECT_TRUE(j.culprits.empty());
  EXPECT_EQ(j.summary, "no rank holds the others up");
}

TEST(FlightJudge, TheSummaryWhereNobodyIsToBlame) {
  std::vector<Sighting> all{living(0, 2, {}, Place{7, 20, true}), living(1, 2, {}, Place{7, 20, true})};
  EXPECT_EQ(judge(all, kReportOps).summary,
            "no rank is behind the others: all are in collectives; ranks 0, 1 wait in op 20 (all_reduce 20)");
  all[1].flight->phase = FlightPhase::kValidate;
  all[1].flight->streams[kFirstCommStream].inside = false;
  EXPECT_EQ(judge(all, kReportOps).summary, "no rank holds the others up; rank 0 waits in op 20 (all_reduce 20)");
  for (auto& s : all) s.flight->end = FlightEnd::kEnded;
  EXPECT_EQ(judge(all, kReportOps).summary, "all ranks ended by themselves");
  EXPECT_EQ(judge({living(0, 1, {}, Place{7, 20, true})}, {}).summary,
            "no rank holds the others up; rank 0 waits in op 20");
}

// A job has thousands of ranks: neither list of ranks in the report grows with their number.
TEST(FlightJudge, ManyRanksAreCounted) {
  std::vector<Sighting> all;
  for (int r = 0; r < 9; ++r) all.push_back(living(r, 30, {}, Place{7, 20, true}));
  const auto waits = [&] {
    const std::string text = judge(all, kReportOps).summary;
    return text.substr(text.find("; ") + 2);
  };
  EXPECT_EQ(waits(), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more wait in op 20 (all_reduce 20)");
  all.pop_back();
  EXPECT_EQ(waits(), "ranks 0, 1, 2, 3, 4, 5, 6, 7 wait in op 20 (all_reduce 20)");
  for (int r = 8; r < 30; ++r) {
    all.push_back(living(r, 30, Place{7, 15, true}, Place{7, 10, false}));
    all.back().process = ProcessState::kDead;
  }
  const auto j = judge(all, kReportOps);
  EXPECT_EQ(j.culprits.size(), 22u);
  EXPECT_TRUE(j.summary.starts_with("rank 8 (node1 pid 108) dead: op 15 (part 15) of step 7; rank 9 (")) << j.summary;
  EXPECT_NE(j.summary.find("; 22 ranks in all; ranks 0, 1,"), std::string::npos) << j.summary;
  EXPECT_LT(j.summary.size(), 600u);
  std::vector<std::string> excerpts;
  const std::string text = to_text(j, kReportOps);
  for (std::size_t at = 0; (at = text.find("\n\nrank", at)) != std::string::npos; at += 2)
    excerpts.push_back(text.substr(at + 2, text.find(',', at) - at - 2));
  EXPECT_EQ(excerpts, (std::vector<std::string>{"rank 8 (dead)", "rank 9 (dead)", "rank 10 (dead)", "rank 11 (dead)",
                                                "ranks 0"}));
}

// Ranks beat four times a second: beats less than 0.7 s apart count as simultaneous.
TEST(FlightJudge, HowFarApartTheLastBeatsAre) {
  std::vector<Sighting> all = dead_in_a_collective(4);
  const std::int64_t last = all[0].flight->beat_wall_ns;
  all[2].flight->beat_wall_ns = last - 700'000'000;
  EXPECT_TRUE(judge(all, kReportOps).culprits.empty());
  EXPECT_EQ(to_text(judge(all, kReportOps), kReportOps).find("heartbeat"), std::string::npos);
  all[2].flight->beat_wall_ns = last - 700'000'001;
  EXPECT_EQ(judge(all, kReportOps).culprits, std::vector<int>{2});
  // Blames the ranks that fell silent together with the first one, and not a rank that fell silent later.
  all[2].flight->beat_wall_ns = last - 2'000'000'000;
  all[1].flight->beat_wall_ns = last - 1'300'000'000;
  all[3].flight->beat_wall_ns = last - 1'299'999'999;
  EXPECT_EQ(judge(all, kReportOps).culprits, (std::vector<int>{1, 2}));
  const std::string text = to_text(judge(all, kReportOps), kReportOps);
  EXPECT_EQ(text.substr(0, text.find(";")), "rank 1 (node1 pid 101) dead: op 20 (all_reduce 20) of step 7");
  EXPECT_NE(text.find("\n        last heartbeat 1970-01-01T00:16:38Z, 1.30 s before the last of all\n     2 "),
            std::string::npos)
      << text;
}

TEST(FlightJudge, TroubleOfARanksOwnComesBeforeItsPlace) {
  const auto waits = [](int rank) { return living(rank, 4, Place{7, 25, false}, Place{7, 20, true}); };
  std::vector<Sighting> all{waits(0), waits(1), waits(2), living(3, 4, Place{7, 15, true}, Place{7, 10, false})};
  EXPECT_EQ(judge(all, kReportOps).culprits, std::vector<int>{3});
  all[0].beats = false;
  EXPECT_EQ(judge(all, kReportOps).culprits, std::vector<int>{0});
  all[1].process = ProcessState::kStopped;
  EXPECT_EQ(judge(all, kReportOps).culprits, std::vector<int>{1});
  all[2].flight->end = FlightEnd::kFailed;
  EXPECT_EQ(judge(all, kReportOps).culprits, std::vector<int>{2});
  all[3].process = ProcessState::kDead;
  EXPECT_EQ(judge(all, kReportOps).culprits, std::vector<int>{3});
}

// A file may make any claim about other ranks.
TEST(FlightJudge, ARankThatIsNotThereIsNotToBlame) {
  std::vector<Sighting> all = dead_in_a_collective(2);
  all[0].flight->end = FlightEnd::kAlarmed;
  all[0].flight->saw_dead = 2;
  EXPECT_TRUE(judge(all, kReportOps).culprits.empty());
}

}  // namespace
}  // namespace molen::store
