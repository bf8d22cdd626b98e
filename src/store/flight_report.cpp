#include "store/flight_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <map>

#include "base/clock.h"
#include "base/units.h"

namespace molen::store {
namespace {

// Ranks beat four times a second, so a rank whose last beat is this much earlier than those of the others stopped
// before them.
constexpr std::int64_t kApartNs = 700'000'000;

// A rank's progress in the order that all ranks of one program share: its current or last collective. A place further
// on compares as larger.
struct Place {
  std::int64_t step = 0;
  int op = -1;
  bool inside = false;
  auto operator<=>(const Place&) const = default;
};

bool before(const FlightStream& a, const FlightStream& b) {
  return std::pair(a.step, a.op) < std::pair(b.step, b.op);
}

// Returns the first collective, in the order of the program, in which the rank waits, on whichever stream; null when it
// waits in none. A rank inside an op of compute does not wait for other ranks: messages that are under way beside the
// op need nothing of it.
const FlightStream* waits_in(const FlightState& f) {
  if (f.streams[0].inside) return nullptr;
  const FlightStream* first = nullptr;
  for (int i = kFirstCommStream; i <= kLastCommStream; ++i) {
    const FlightStream& s = f.streams[static_cast<std::size_t>(i)];
    if (s.inside && (!first || before(s, *first))) first = &s;
  }
  return first;
}

Place comm_place(const FlightState& f) {
  const FlightStream* c = waits_in(f);
  if (!c)  // the rank waits in none: take the last one that ended
    for (int i = kFirstCommStream; i <= kLastCommStream; ++i)
      if (const FlightStream& s = f.streams[static_cast<std::size_t>(i)]; s.any && (!c || before(*c, s))) c = &s;
  // A rank that has left a collective is further than one inside it.
  if (c && c->step >= f.step) return {c->step, c->op, !c->inside};
  return {f.step, -1, false};
}

// Returns the stream that tells most about the rank's activity.
const FlightStream* telling(const FlightState& f) {
  if (const FlightStream* comm = waits_in(f)) return comm;
  const FlightStream* latest = nullptr;
  for (const FlightStream& s : f.streams) {
    if (s.inside) return &s;
    if (s.any && (!latest || std::pair(s.step, s.op) > std::pair(latest->step, latest->op))) latest = &s;
  }
  return latest;
}

const std::string& program_of(const FlightState& f) {
  return f.identity.program_digest;
}

std::string op_name(const FlightState& f, int op, const OpTexts& ops) {
  const std::string name = ops ? ops(program_of(f), op).name : "";
  return name.empty() ? fmt::format("op {}", op) : fmt::format("op {} ({})", op, name);
}

std::string place_text(const FlightState& f, const OpTexts& ops) {
  if (f.phase != FlightPhase::kTrain) return fmt::format("{}, step {}", name_of(f.phase), f.step);
  const FlightStream* s = telling(f);
  if (!s || (s->step < f.step && !s->inside)) return fmt::format("before the first op of step {}", f.step);
  return fmt::format("{}{} of step {}", s->inside ? "" : "after ", op_name(f, s->op, ops), s->step);
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  constexpr std::size_t kMost = 8;
  for (std::size_t i = 0; i < ranks.size() && i < kMost; ++i) text += fmt::format("{}{}", i ? ", " : "", ranks[i]);
  if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string doing(const Judgement::Rank& r, const OpTexts& ops) {
  if (!r.seen.flight) return "has left no record";
  const FlightState& f = *r.seen.flight;
  const std::string where = place_text(f, ops);
  switch (r.state) {
    case RankState::kEnded:
      return fmt::format("ended after step {}", f.step);
    case RankState::kFailed:
      return fmt::format("ended with an error of its own: {}", where);
    case RankState::kAlarmed:
      return fmt::format("ended the job: {}{}", waits_in(f) ? "waited in " : "", where);
    case RankState::kWaiting:
      return "waiting in " + where;
    case RankState::kBusy:
      return "in " + where;
    default:
      return fmt::format("{}: {}", name_of(r.state), where);
  }
}

bool gone(RankState s) {
  return s == RankState::kDead || s == RankState::kAbsent;
}

template <class F>
std::vector<int> ranks_where(const Judgement& j, F&& condition) {
  std::vector<int> found;
  for (const auto& r : j.ranks)
    if (condition(r)) found.push_back(r.seen.rank);
  return found;
}

// Returns the ranks whose processes ended first, when all are gone after the job: by their last beats, else by what
// other ranks saw.
std::vector<int> first_gone(const Judgement& j) {
  std::vector<int> seen;
  std::int64_t last = 0;
  for (const auto& r : j.ranks)
    if (r.seen.flight) {
      last = std::max(last, r.seen.flight->beat_wall_ns);
      if (r.seen.flight->saw_dead >= 0) seen.push_back(r.seen.flight->saw_dead);
    }
  auto silent = ranks_where(j, [&](const Judgement::Rank& r) {
    return r.state == RankState::kDead && r.seen.flight && last - r.seen.flight->beat_wall_ns > kApartNs;
  });
  if (!silent.empty()) {
    // The earliest silent rank, and the ranks that fell silent together with it.
    std::int64_t first = last;
    for (const auto& r : j.ranks)
      if (r.state == RankState::kDead && r.seen.flight) first = std::min(first, r.seen.flight->beat_wall_ns);
    return ranks_where(j, [&](const Judgement::Rank& r) {
      return r.state == RankState::kDead && r.seen.flight && r.seen.flight->beat_wall_ns - first <= kApartNs;
    });
  }
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  return seen;
}

// Returns the ranks to blame among living ranks. If some ranks wait in a collective and some do not: those that do not
// wait and are furthest behind in their program. If all wait: those in an earlier collective than others of their
// program. If none waits: the hung ranks.
std::vector<int> behind(const Judgement& j) {
  const auto in_step = [](const Judgement::Rank& r) {
    return r.seen.flight && r.state != RankState::kEnded && r.state != RankState::kFailed;
  };
  const auto waits = [](const Judgement::Rank& r) { return waits_in(*r.seen.flight) != nullptr; };
  bool any_waits = false, any_free = false;
  for (const auto& r : j.ranks)
    if (in_step(r)) (waits(r) ? any_waits : any_free) = true;
  if (!any_waits) {
    const auto hung = ranks_where(j, [](const auto& r) { return r.state == RankState::kHung; });
    return hung.size() < j.ranks.size() || hung.size() == 1 ? hung : std::vector<int>{};
  }
  const auto compared = [&](const Judgement::Rank& r) { return in_step(r) && !(any_free && waits(r)); };
  struct Extent {
    Place least, most;
  };
  std::map<std::string, Extent> extents;  // by program: places of two programs do not compare
  for (const auto& r : j.ranks) {
    if (!compared(r)) continue;
    const Place p = comm_place(*r.seen.flight);
    const auto [at, fresh] = extents.try_emplace(program_of(*r.seen.flight), Extent{p, p});
    at->second = {std::min(at->second.least, p), std::max(at->second.most, p)};
  }
  return ranks_where(j, [&](const Judgement::Rank& r) {
    if (!compared(r)) return false;
    const Extent& e = extents.at(program_of(*r.seen.flight));
    // If all ranks are in the same collective, none is behind.
    return comm_place(*r.seen.flight) == e.least && (any_free || e.least != e.most);
  });
}

std::vector<int> find_culprits(const Judgement& j) {
  // A rank that ended the job recorded its verdict, which stands: what the launcher did afterwards (it continues a
  // stopped rank before it kills it) blurs the picture.
  for (const auto& r : j.ranks)
    if (r.state == RankState::kAlarmed && r.seen.flight->saw_dead >= 0) return {r.seen.flight->saw_dead};
  auto dead = ranks_where(j, [](const auto& r) { return gone(r.state); });
  if (!dead.empty()) {
    const bool some_live = std::any_of(j.ranks.begin(), j.ranks.end(), [](const auto& r) {
      return !gone(r.state) && r.state != RankState::kEnded && r.state != RankState::kAlarmed;
    });
    if (some_live) return dead;
    const auto first = first_gone(j);
    return !first.empty() ? first : behind(j);
  }
  for (const RankState s : {RankState::kFailed, RankState::kStopped, RankState::kSilent}) {
    auto found = ranks_where(j, [s](const auto& r) { return r.state == s; });
    if (!found.empty()) return found;
  }
  // The others wait rightly for a rank that validates or writes a checkpoint: nobody is to blame.
  if (std::any_of(j.ranks.begin(), j.ranks.end(), [](const auto& r) { return r.state == RankState::kBusy; })) return {};
  return behind(j);
}

void find_waits(Judgement& j) {
  std::optional<Place> first;
  std::string program;
  for (const auto& r : j.ranks) {
    const bool culprit = std::find(j.culprits.begin(), j.culprits.end(), r.seen.rank) != j.culprits.end();
    if (culprit || !r.seen.flight || !waits_in(*r.seen.flight)) continue;
    if (r.state == RankState::kEnded || r.state == RankState::kFailed) continue;
    if (j.waiting.empty()) program = program_of(*r.seen.flight);
    j.waiting.push_back(r.seen.rank);
    const Place p = comm_place(*r.seen.flight);
    if (program_of(*r.seen.flight) == program && (!first || p < *first)) first = p;
  }
  if (first) j.waits_in = first->op;
}

std::string summarize(const Judgement& j, const OpTexts& ops) {
  std::string text;
  for (const int c : j.culprits) {
    if (!text.empty()) text += "; ";
    if (text.size() > 400) {
      text += fmt::format("{} ranks in all", j.culprits.size());
      break;
    }
    const auto& r = *std::find_if(j.ranks.begin(), j.ranks.end(), [c](const auto& x) { return x.seen.rank == c; });
    const std::string where =
        r.seen.flight ? fmt::format(" ({} pid {})", r.seen.flight->identity.host, r.seen.flight->identity.pid) : "";
    text += fmt::format("rank {}{} {}", c, where,
                        r.state == RankState::kWaiting ? r.doing + ", behind the others" : r.doing);
  }
  if (text.empty()) {
    if (j.waiting.size() > 1 && j.waiting.size() == j.ranks.size())
      text = "no rank is behind the others: all are in collectives";
    else if (j.waiting.empty() &&
             std::all_of(j.ranks.begin(), j.ranks.end(), [](const auto& r) { return r.state == RankState::kEnded; }))
      return "all ranks ended by themselves";
    else
      text = "no rank holds the others up";
  }
  if (j.waits_in)
    for (const auto& r : j.ranks)
      if (r.seen.rank == j.waiting.front())
        text += fmt::format("; {} wait{} in {}", list_of(j.waiting), j.waiting.size() == 1 ? "s" : "",
                            op_name(*r.seen.flight, *j.waits_in, ops));
  return text;
}

}  // namespace

std::string_view name_of(RankState state) {
  constexpr std::array<std::string_view, 12> names{"absent", "ended", "failed",  "alarmed", "dead", "stopped",
                                                   "silent", "busy",  "waiting", "between", "hung", "running"};
  return names.at(static_cast<std::size_t>(state));
}

RankState state_of(const Sighting& seen) {
  if (!seen.flight) return RankState::kAbsent;
  const FlightState& f = *seen.flight;
  if (f.end == FlightEnd::kEnded) return RankState::kEnded;
  if (f.end == FlightEnd::kFailed) return RankState::kFailed;
  if (f.end == FlightEnd::kAlarmed) return RankState::kAlarmed;
  if (seen.process == ProcessState::kDead) return RankState::kDead;
  if (seen.process == ProcessState::kStopped) return RankState::kStopped;
  if (!seen.beats.value_or(true)) return RankState::kSilent;
  if (f.phase != FlightPhase::kTrain) return RankState::kBusy;
  const bool stuck = !seen.advances.value_or(true);
  if (waits_in(f)) return RankState::kWaiting;
  if (stuck) return RankState::kHung;
  return f.streams[0].inside ? RankState::kRunning : RankState::kBetween;
}

Judgement judge(std::vector<Sighting> ranks, const OpTexts& ops) {
  Judgement j;
  std::sort(ranks.begin(), ranks.end(), [](const Sighting& a, const Sighting& b) { return a.rank < b.rank; });
  for (Sighting& seen : ranks) {
    Judgement::Rank r;
    r.state = state_of(seen);
    r.seen = std::move(seen);
    r.doing = doing(r, ops);
    j.ranks.push_back(std::move(r));
  }
  j.culprits = find_culprits(j);
  std::erase_if(j.culprits, [&](int c) {  // a hostile file may name a rank that is not there
    return std::none_of(j.ranks.begin(), j.ranks.end(), [c](const auto& r) { return r.seen.rank == c; });
  });
  find_waits(j);
  j.summary = summarize(j, ops);
  return j;
}

std::string to_text(const Judgement& j, const OpTexts& ops) {
  std::string text = j.summary + "\n\n";
  std::int64_t last = 0;
  for (const auto& r : j.ranks)
    if (r.seen.flight) last = std::max(last, r.seen.flight->beat_wall_ns);
  text += fmt::format("{:>6}  {:<16} {:>8}  {:<8} {:>6} {:>12}  {}\n", "rank", "host", "pid", "state", "step",
                      "no progress", "doing");
  for (const auto& r : j.ranks) {
    if (!r.seen.flight) {
      text += fmt::format("{:>6}  {:<16} {:>8}  {:<8}\n", r.seen.rank, "-", "-", name_of(r.state));
      continue;
    }
    const FlightState& f = *r.seen.flight;
    const std::int64_t behind_ns = last - f.beat_wall_ns, silent_ns = behind_ns > kApartNs ? behind_ns : 0;
    text += fmt::format(
        "{:>6}  {:<16} {:>8}  {:<8} {:>6} {:>12}  {}\n", r.seen.rank, f.identity.host, f.identity.pid, name_of(r.state),
        f.step, human(Seconds((static_cast<double>(f.idle_ns) + static_cast<double>(silent_ns)) * 1e-9)), r.doing);
    if (silent_ns > 0)
      text += fmt::format("        last heartbeat {}, {} before the last of all\n",
                          utc_timestamp(static_cast<double>(f.beat_wall_ns) * 1e-9),
                          human(Seconds(static_cast<double>(silent_ns) * 1e-9)));
  }
  const auto excerpt = [&](const std::string& title, const FlightState& f, const FlightStream& s) {
    const std::string lines = ops ? ops(program_of(f), s.op).excerpt : "";
    if (!lines.empty()) text += fmt::format("\n{}, step {}, op {}:\n{}", title, s.step, s.op, lines);
  };
  constexpr std::size_t kShown = 4;
  for (std::size_t i = 0; i < j.culprits.size() && i < kShown; ++i)
    for (const auto& r : j.ranks)
      if (r.seen.rank == j.culprits[i] && r.seen.flight)
        if (const FlightStream* s = telling(*r.seen.flight))
          excerpt(fmt::format("rank {} ({})", r.seen.rank, name_of(r.state)), *r.seen.flight, *s);
  if (j.waits_in)
    for (const auto& r : j.ranks)
      if (r.seen.rank == j.waiting.front()) {
        FlightStream s = *waits_in(*r.seen.flight);
        s.op = *j.waits_in;
        excerpt(fmt::format("{} (waiting)", list_of(j.waiting)), *r.seen.flight, s);
      }
  return text;
}

Json to_json(const Judgement& j, const OpTexts& ops) {
  Json ranks = Json::array();
  for (const auto& r : j.ranks) {
    Json row{{"rank", r.seen.rank}, {"state", name_of(r.state)}, {"doing", r.doing}};
    if (r.seen.flight) {
      const FlightState& f = *r.seen.flight;
      const FlightStream* s = telling(f);
      const auto op = s ? Json(s->op) : Json();
      row.update({{"host", f.identity.host},
                  {"pid", f.identity.pid},
                  {"attempt", f.identity.attempt},
                  {"phase", name_of(f.phase)},
                  {"step", f.step},
                  {"op", op},
                  {"inside", s && s->inside},
                  {"text", s && ops ? Json(ops(program_of(f), s->op).name) : Json()},
                  {"excerpt", s && ops ? Json(ops(program_of(f), s->op).excerpt) : Json()},
                  {"idle_s", static_cast<double>(f.idle_ns) * 1e-9},
                  {"last_beat_s", static_cast<double>(f.beat_wall_ns) * 1e-9}});
      Json streams = Json::array();
      for (std::size_t i = 0; i < f.streams.size(); ++i) {
        const FlightStream& stream = f.streams[i];
        if (i > kFirstCommStream && !stream.any) continue;  // streams that most programs do not use
        streams.push_back({{"stream", kFlightStreamNames[i]},
                           {"records", stream.written},
                           {"readable", stream.records.size()},
                           {"torn", stream.torn}});
      }
      row["streams"] = streams;
    }
    ranks.push_back(row);
  }
  return {{"summary", j.summary},
          {"culprits", j.culprits},
          {"waiting", j.waiting},
          {"waits_in", j.waits_in ? Json(*j.waits_in) : Json()},
          {"ranks", ranks}};
}

}  // namespace molen::store
