// Tests the whole messages of refused settings, texts and edited programs (tests/golden/messages/Refusals.*.txt), and
// the whole texts of the edited programs (tests/golden/program/texts.txt).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/test_golden.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "program/test_edit.h"
#include "program/text/text.h"
#include "program/verify/verify.h"

namespace molen::program {
namespace {

Setting plain(int shards = 1, int zero = 0) {
  Setting s;
  s.mesh[mesh::Axis::kDpShard] = shards;
  s.zero = zero;
  s.global_batch = 4 * shards;
  s.micro_batch = 2;
  s.sequence = 16;
  s.head_chunk = 32;
  return s;
}

arch::Architecture two_layers(bool tied = false) {
  arch::Architecture a = tiny(tied);
  a.layers = 2;
  return a;
}

TEST(Refusals, OfSettings) {
  const GoldenMessages golden;
  using Change = std::function<void(Setting&)>;
  const auto at = [](mesh::Axis axis, int ranks) -> Change { return [=](Setting& s) { s.mesh[axis] = ranks; }; };
  const std::vector<Change> changes{
      [](Setting& s) { s.global_batch = 0; },
      [](Setting& s) { s.global_batch = -3; },
      [](Setting& s) { s.micro_batch = -2; },
      [](Setting& s) { s.sequence = -1; },
      [](Setting& s) { s.micro_batch = 0; },
      [](Setting& s) { s.sequence = 0; },
      at(mesh::Axis::kDpShard, 0),
      at(mesh::Axis::kDpReplicate, 0),
      at(mesh::Axis::kCp, 0),
      at(mesh::Axis::kCp, 3),
      at(mesh::Axis::kTp, 0),
      at(mesh::Axis::kTp, 5),
      at(mesh::Axis::kPp, 0),
      at(mesh::Axis::kPp, 3),
      [](Setting& s) { s.context_form = ContextForm::kRing; },
      [](Setting& s) { s.pipeline.chunks = 0; },
      [](Setting& s) { s.pipeline.chunks = 2; },
      [](Setting& s) { s.mesh[mesh::Axis::kPp] = 2, s.pipeline.stage = 2; },
      [](Setting& s) { s.mesh[mesh::Axis::kPp] = 2, s.pipeline.stage = -1; },
      [](Setting& s) { s.mesh[mesh::Axis::kPp] = 2, s.pipeline.schedule = ScheduleKind::kZbH1; },
      [](Setting& s) {
        s.mesh[mesh::Axis::kPp] = 2, s.pipeline.schedule = ScheduleKind::kZbV, s.pipeline.halves = true;
      },
      [](Setting& s) {
        s.mesh[mesh::Axis::kPp] = 2, s.pipeline.layers = {1, 1, 1};
      },
      [](Setting& s) {
        s.mesh[mesh::Axis::kPp] = 2, s.pipeline.layers = {2, 0};
      },
      [](Setting& s) {
        s.mesh[mesh::Axis::kPp] = 2, s.pipeline.layers = {2, 1};
      },
      [](Setting& s) { s.mesh[mesh::Axis::kTp] = 2, s.sequence_parallel = true, s.sequence = s.micro_batch = 1; },
      [](Setting& s) { s.zero = -1; },
      [](Setting& s) { s.zero = 4; },
      [](Setting& s) { s.mesh[mesh::Axis::kDpReplicate] = 3, s.zero = 2; },
      [](Setting& s) { s.mesh[mesh::Axis::kDpShard] = 2, s.zero = 3, s.own_over_dp = true; },
      [](Setting& s) {
        s.mesh[mesh::Axis::kDpShard] = s.mesh[mesh::Axis::kDpReplicate] = 2, s.zero = 1, s.own_over_dp = true;
      },
      [](Setting& s) { s.recompute = Recompute::full(), s.recompute.every = 0; },
      [](Setting& s) { s.recompute.add(arch::Part::kDown); },
      [](Setting& s) { s.prefetch = -1; },
      [](Setting& s) { s.reduce = DType::kI32; },
      [](Setting& s) {
        s.compute = s.master = DType::kF64, s.kernels = arch::Kernels::kReference, s.reduce = DType::kF16;
      },
      [](Setting& s) { s.compute = s.master = DType::kF64; },
      [](Setting& s) { s.offload.gradients = true; },
      [](Setting& s) { s.offload.parameters = true; },
      [](Setting& s) {
        s.mesh[mesh::Axis::kDpShard] = 2, s.zero = 1, s.offload = {true, false, true, false};
      },
      [](Setting& s) {
        s.mesh[mesh::Axis::kDpShard] = s.mesh[mesh::Axis::kDpReplicate] = 2, s.zero = 3, s.own_over_dp = true,
        s.offload = {true, false, true, false};
      },
      [](Setting& s) { s.tensor_chunks = 0; },
      [](Setting& s) { s.tensor_chunks = 2; },
      [](Setting& s) { s.tensor_chunks = 1 << 20; },
      [](Setting& s) { s.expert_tiles = 0; },
      [](Setting& s) { s.expert_tiles = 2; },
      [](Setting& s) { s.expert_tiles = 1 << 20; },
      [](Setting& s) {
        s.mesh[mesh::Axis::kTp] = 2, s.sequence_parallel = true, s.tensor_chunks = 4, s.sequence = 3, s.micro_batch = 1;
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Setting s = plain();
    changes[i](s);
    EXPECT_NOTED(build(two_layers(), s), UsageError) << i;
  }
  arch::Architecture one = tiny(true);
  Setting s = plain();
  s.mesh[mesh::Axis::kPp] = 2, s.offload = {true, true, false, false};
  EXPECT_NOTED(build(one, s), UsageError);
  one.layers = 1, s = plain(), s.offload.activations = true;
  EXPECT_NOTED(build(one, s), UsageError);
  // Biases of routers move by numbers of tokens, which 16 bits would round.
  for (const DType reduce : {DType::kBF16, DType::kF16}) {
    arch::Architecture sparse = tiny_sparse();
    s = plain(), s.reduce = reduce;
    build(sparse, s);
    sparse.experts->bias_rate = 0.001;
    EXPECT_NOTED(build(sparse, s), UsageError);
  }
  Schedule other = make_schedule(ScheduleKind::k1f1b, 3, 1, 5);
  s = plain(), s.mesh[mesh::Axis::kPp] = 2, s.pipeline.schedule = ScheduleKind::kFile;
  EXPECT_NOTED(build(two_layers(), s, &other), UsageError);
  other = make_schedule(ScheduleKind::kZbH1, 2, 1, 2);
  EXPECT_NOTED(build(two_layers(), s, &other), UsageError);
  other = make_schedule(ScheduleKind::kGpipe, 2, 1, 2);
  for (auto& order : other.order) std::swap(order[0], order[1]);
  EXPECT_NOTED(build(two_layers(), s, &other), UsageError);
}

TEST(Refusals, APieceNeedsARowForEachTensorRank) {
  Setting s = plain(2, 1);
  s.mesh[mesh::Axis::kTp] = 2, s.sequence_parallel = true, s.micro_batch = 1, s.tensor_chunks = 4;
  s.sequence = 8;
  EXPECT_TRUE(verify(build(two_layers(true), s)).empty()) << "two rows for two ranks";
  s.sequence = 7;
  EXPECT_THROW(build(two_layers(true), s), UsageError);
}

// Returns programs that together have each kind of op.
std::vector<Program> programs() {
  std::vector<Program> all;
  Setting s = plain(2, 3);
  s.reduce = DType::kBF16, s.prefetch = 1;
  all.push_back(build(two_layers(), s));
  s = plain(2, 1), s.mesh[mesh::Axis::kTp] = 2, s.sequence_parallel = true, s.tensor_chunks = 2;
  all.push_back(build(two_layers(true), s));
  s = plain(), s.mesh[mesh::Axis::kTp] = 2, s.recompute = Recompute::full();
  all.push_back(build(two_layers(), s));
  for (const ContextForm form : {ContextForm::kGather, ContextForm::kRing}) {
    s = plain(), s.mesh[mesh::Axis::kCp] = 2, s.context_form = form;
    all.push_back(build(two_layers(), s));
  }
  for (int stage = 0; stage < 2; ++stage) {
    s = plain(), s.mesh[mesh::Axis::kPp] = 2, s.pipeline = pipeline_of(ScheduleKind::kZbH1, 1);
    s.pipeline.stage = stage;
    all.push_back(build(two_layers(true), s));
  }
  s = plain(), s.offload = {true, true, true, true};
  all.push_back(build(two_layers(), s));
  s = plain(2, 2), s.mesh[mesh::Axis::kDpReplicate] = 2, s.own_over_dp = true;
  all.push_back(build(two_layers(), s));
  return all;
}

TEST(Texts, OfProgramsAndTheirPlansAreTheGoldenOnes) {
  std::string text;
  for (const Program& p : programs()) text += print(p, plan_memory(p)) + "\n";
  const std::filesystem::path golden = "tests/golden/program/texts.txt";
  if (std::getenv("MOLEN_UPDATE_GOLDEN")) write_file_atomic(golden, text);
  EXPECT_EQ(text, read_file(golden));
}

std::string findings_of(const Program& p) {
  const auto found = verify(p);
  std::string text = fmt::format("{} findings", found.size());
  for (std::size_t i = 0; i < std::min<std::size_t>(found.size(), 2); ++i) text += "; " + found[i].text;
  return text;
}

// Removes numbers, so that messages that differ only in numbers are noted once.
std::string without_numbers(std::string text) {
  std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
  return text;
}

// Returns why a text is refused; empty if it is a program, which `made` gets.
std::string parsed(const std::string& text, std::optional<Program>* made = nullptr) {
  try {
    Program p = parse(text, "p");
    if (made) *made = std::move(p);
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text)
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

std::string joined(const std::vector<std::string>& parts, char separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : std::string(1, separator)) + part;
  return text;
}

// Returns damaged forms of a word: empty, with another name, the next number, and a list without its first member.
std::vector<std::string> damages_of(const std::string& word) {
  std::vector<std::string> damages{""};
  const std::size_t begin = word.find('=') + 1;
  const std::string key = word.substr(0, begin), value = word.substr(begin);
  damages.push_back(key + "x");
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc() && end == value.data() + value.size()) damages.push_back(key + std::to_string(number + 1));
  if (const auto comma = value.find(','); comma != std::string::npos) damages.push_back(key + value.substr(comma + 1));
  return damages;
}

// Damages each word of the first line of each kind; lines are of one kind if they have the same keys.
TEST(Refusals, OfTexts) {
  const GoldenMessages golden;
  std::set<std::string> seen, said;
  for (const Program& p : programs()) {
    const std::vector<std::string> lines = split(print(p), '\n');
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].starts_with("arch") || lines[i].starts_with("setting")) continue;
      const std::vector<std::string> words = split(lines[i], ' ');
      std::string kind;
      for (const std::string& word : words)
        if (!word.empty() && word.find_first_of("0123456789.%") == std::string::npos)
          kind += word.substr(0, word.starts_with("pass=") || word.starts_with("part=") ? word.size() : word.find('='));
      if (!seen.insert(kind).second) continue;
      for (std::size_t w = 0; w < words.size(); ++w) {
        if (words[w].empty()) continue;
        for (const std::string& damage : damages_of(words[w])) {
          std::vector<std::string> damaged = words, all = lines;
          damaged[w] = damage;
          if (damage.empty()) damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>(w));
          all[i] = joined(damaged, ' ');
          std::optional<Program> made;
          const std::string why = parsed(joined(all, '\n'), &made);
          if (made) {  // the verifier may accept or refuse, but must not read out of bounds
            EXPECT_NO_THROW(verify(without_setting(*std::move(made)))) << words[w] << " -> " << damage;
          }
          if (!why.empty() && said.insert(without_numbers(why)).second)
            GoldenMessages::note(fmt::format("{} -> {}: {}", words[w].substr(0, 60), damage.substr(0, 60), why));
        }
      }
    }
  }
}

// Tests each text with one line repeated and with one line missing.
TEST(Refusals, OfTextsWithOtherLines) {
  const GoldenMessages golden;
  const std::vector<std::string> lines = split(print(programs().front()), '\n');
  std::set<std::string> seen;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    if (!seen.insert(lines[i].substr(0, lines[i].find_first_of(" 0123456789."))).second) continue;
    std::vector<std::string> twice = lines, gone = lines;
    twice.insert(twice.begin() + static_cast<std::ptrdiff_t>(i), lines[i]);
    gone.erase(gone.begin() + static_cast<std::ptrdiff_t>(i));
    GoldenMessages::note("twice: " + parsed(joined(twice, '\n')));
    GoldenMessages::note("gone: " + parsed(joined(gone, '\n')));
  }
  const std::string good = joined(lines, '\n');
  for (const char* text : {"", "molen-program 13\n", "molen-program\n", "molen-program 16\n", "molen-program 16\nx\n",
                           "molen-program 16\nbody\n", "molen-program 16\n%0 agree\n", "molen-program 16\nschedule a\n",
                           "molen-program 16\nbody a\nbody a\n", "molen-program 16\nbuffer a\n"})
    GoldenMessages::note(parsed(text));
  GoldenMessages::note(parsed(good + "\nbody x\n%x set_flag flag=0\n"));
  GoldenMessages::note(parsed(good + "\nschedule\n"));
  GoldenMessages::note(parsed(good + "\n%0 agree\n"));
}

TEST(Refusals, OfStagesThatDoNotMeet) {
  const GoldenMessages golden;
  Setting s = plain();
  s.mesh[mesh::Axis::kPp] = 2;
  const std::vector<Program> stages = build_stages(two_layers(), s);
  ASSERT_EQ(stages.size(), 2u);
  arch::Architecture wide = two_layers();
  wide.ffn = 48;
  const std::vector<Program> others = build_stages(wide, s);
  const Program &first = stages[0], &second = stages[1];
  for (const auto& world : std::vector<std::vector<Program>>{
           {first}, {first, first}, {second, second}, {second, first}, {first, second, second}, {first, others[1]}})
    for (const Finding& f : verify_world(world)) GoldenMessages::note(f.text);
  std::set<std::string> seen;
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t b = 0; b < stages[i].bodies.size(); ++b)
      for (std::size_t k = 0; k < stages[i].bodies[b].steps.size(); ++k) {
        const auto& op = stages[i].bodies[b].steps[k].op;
        if (!std::holds_alternative<Send>(op) && !std::holds_alternative<Receive>(op)) continue;
        std::vector<Program> world = stages;
        world[i] = without(stages[i], b, k);
        for (const Finding& f : verify_world(world))
          if (seen.insert(without_numbers(f.text)).second) GoldenMessages::note(f.text);
      }
}

// Tests each program with one op missing, and with one op swapped with the op before it.
TEST(Refusals, OfEditedPrograms) {
  const GoldenMessages golden;
  std::set<std::string> seen;
  for (const Program& p : programs())
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
        const std::string gone = findings_of(without(p, b, k));
        if (seen.insert(without_numbers(gone)).second) GoldenMessages::note("gone: " + gone);
        if (k == 0) continue;
        Program q = p;
        std::swap(q.bodies[b].steps[k - 1].op, q.bodies[b].steps[k].op);
        const std::string swapped = findings_of(q);
        if (seen.insert(without_numbers(swapped)).second) GoldenMessages::note("swapped: " + swapped);
      }
}

// Returns whether one of the findings contains all of these words.
bool finds(const Program& p, const std::vector<std::string>& words) {
  const auto findings = verify(pass::costs(p));  // stale costs alone would reveal an edit
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
    return std::all_of(words.begin(), words.end(),
                       [&](const std::string& word) { return f.text.find(word) != std::string::npos; });
  });
}

TEST(Findings, AnOperandOfAnotherRange) {
  std::set<std::pair<std::string, Arg>> seen;
  for (const Program& p : programs())
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
        const Step& step = p.bodies[b].steps[k];
        for (std::size_t i = 0; i < step.operands.size(); ++i) {
          if (!seen.insert({kind_of(step.op), step.operands[i].arg}).second) continue;
          Program q = p;
          Use& use = q.bodies[b].steps[k].operands[i];
          use.range = use.range == Range::kAll ? Range::kOwn : Range::kAll;
          EXPECT_TRUE(finds(q, {"operand " + p.buffers[static_cast<std::size_t>(use.buffer)].name + " must be"}))
              << print_step(p, step);
        }
      }
  EXPECT_GT(seen.size(), 20u);
}

// Returns the program with an op that sets a clock before each of its instances.
Program with_clocks(Program p, const SetClock& clock) {
  Step step;
  step.op = clock;
  step.stream = Stream::kCompute;
  p.bodies.push_back({"clock", {step}});
  std::vector<Instance> schedule;
  for (const Instance& instance : p.schedule) {
    schedule.push_back({static_cast<int>(p.bodies.size()) - 1, -1});
    schedule.push_back(instance);
  }
  p.schedule = std::move(schedule);
  return p;
}

TEST(Findings, ClocksMaySetAnywhereAndChangeNothing) {
  for (const Program& p : programs()) {
    const Program clocked = with_clocks(p, {1'200'000});
    EXPECT_TRUE(verify(clocked).empty()) << verify(clocked).front().text;
    EXPECT_EQ(parse(print(clocked), "text"), clocked);
    EXPECT_NE(print(clocked).find("%0 set_clock khz=1200000 stream=compute phase=data"), std::string::npos);
    EXPECT_EQ(plan_memory(clocked).peak, plan_memory(p).peak);
  }
}

TEST(Findings, AClockThatNoDeviceHas) {
  const Program p = programs().front();
  EXPECT_TRUE(finds(with_clocks(p, {0}), {"body clock", "sets a clock of 0 kHz"}));
  EXPECT_TRUE(finds(with_clocks(p, {kMostKhz + 1}), {"sets a clock of 100000001 kHz"}));
  EXPECT_FALSE(finds(with_clocks(p, {kMostKhz}), {"sets a clock"}));
  Program sometimes = with_clocks(p, {1'000'000});
  sometimes.bodies.back().steps.front().unless = Flag::kNonFinite;
  EXPECT_TRUE(finds(sometimes, {"a clock must be set in every step"}));
  Program beside = with_clocks(p, {1'000'000});
  beside.bodies.back().steps.front().stream = Stream::kHost;
  EXPECT_TRUE(finds(beside, {"belongs on the stream compute"}));
  Program with_operand = with_clocks(p, {1'000'000});
  with_operand.bodies.back().steps.front().operands.push_back({Arg::kScalars, p.buffer("scalars")});
  EXPECT_FALSE(verify(with_operand).empty());
  const std::string text = print(with_clocks(p, {1'000'000}));
  const auto where = text.find("khz=1000000");
  for (const char* wrong : {"khz=0", "khz=-5", "khz=100000001", "khz=fast", ""})
    EXPECT_THROW(parse(std::string(text).replace(where, std::string("khz=1000000").size(), wrong), "p.txt"), UsageError)
        << wrong;
}

TEST(Findings, APieceOfTheRowsInPlaceOfAnother) {
  Setting s = plain(2, 1);
  s.mesh[mesh::Axis::kTp] = 2, s.sequence_parallel = true, s.tensor_chunks = 2;
  const Program p = build(two_layers(), s);
  int found = 0;
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
      for (std::size_t other = k + 1; other < p.bodies[b].steps.size(); ++other) {
        const auto *mine = std::get_if<Compute>(&p.bodies[b].steps[k].op),
                   *theirs = std::get_if<Compute>(&p.bodies[b].steps[other].op);
        if (!mine || !theirs || mine->part != theirs->part || mine->layer != theirs->layer ||
            mine->pass != theirs->pass || mine->portion != 0 || theirs->portion != 1)
          continue;
        Program q = p;
        for (std::size_t i = 0; i < q.bodies[b].steps[k].operands.size(); ++i)
          q.bodies[b].steps[k].operands[i].buffer = p.bodies[b].steps[other].operands[i].buffer;
        found += finds(q, {"is for piece 1 of the rows where it must be for piece 0 of the rows"});
      }
  EXPECT_GT(found, 0);
}

TEST(Findings, AttentionInStepsWithoutARing) {
  Program p = build(two_layers(), plain());
  EXPECT_TRUE(verify(p).empty());
  for (Body& body : p.bodies)
    for (Step& step : body.steps)
      if (auto* c = std::get_if<Compute>(&step.op); c && c->part == arch::Part::kAttention) c->portion = 0;
  EXPECT_TRUE(finds(p, {"in this program it is computed at once"}));
}

TEST(Findings, ACopyOfState) {
  const Program p = build(two_layers(), plain(2, 3));
  std::set<Value> roles;
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    if (p.buffers[i].unit < 0 || p.buffers[i].lifetime == Lifetime::kTransient) continue;
    roles.insert(p.buffers[i].role);
    Program q = p;
    q.buffers[i].copy = 1;
    EXPECT_TRUE(finds(q, {"buffer " + p.buffers[i].name + ": copies are transient"}));
  }
  EXPECT_GE(roles.size(), 4u);
}

// A gradient that both ends of a pipeline hold is summed over the ends before it is summed over data-parallel ranks.
TEST(Findings, AReductionBeforeTheOtherEndHasAddedItsShare) {
  for (const bool replicas : {false, true})
    for (int stage = 0; stage < 2; ++stage) {
      Setting s = plain(2, replicas ? 2 : 0);
      if (replicas) s.mesh[mesh::Axis::kDpReplicate] = 2, s.global_batch *= 2;
      s.mesh[mesh::Axis::kPp] = 2;
      s.pipeline.stage = stage;
      const Program p = build(two_layers(true), s);
      EXPECT_TRUE(verify(p).empty());
      int removed = 0;
      for (std::size_t b = 0; b < p.bodies.size(); ++b)
        for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
          const auto* sum = std::get_if<AllReduce>(&p.bodies[b].steps[k].op);
          if (!sum || sum->axis != Axis::kEmbedding) continue;
          ++removed;
          EXPECT_TRUE(
              finds(without(p, b, k),
                    {replicas ? "sums over the replicas before the other end of the pipeline has added its share"
                              : "reduces before the other end of the pipeline has added its share"}))
              << "stage " << stage;
        }
      EXPECT_EQ(removed, 1);
    }
}

TEST(Findings, ASumOverReplicasThatAreNotThere) {
  for (const int zero : {0, 2}) {
    Setting s = plain(2, zero);
    if (zero == 0) s.mesh[mesh::Axis::kDpReplicate] = 2, s.global_batch *= 2;
    Program p = build(two_layers(), s);
    EXPECT_TRUE(verify(p).empty());
    for (Body& body : p.bodies)
      for (Step& step : body.steps) {
        if (auto* sum = std::get_if<AllReduce>(&step.op); sum && sum->axis == Axis::kDp) sum->axis = Axis::kReplicate;
        if (auto* sum = std::get_if<ReduceScatter>(&step.op); sum && sum->axis == Axis::kShard)
          sum->axis = Axis::kReplicate;
      }
    EXPECT_TRUE(finds(p, {"there are no replicas to sum over"})) << "zero " << zero;
  }
}

}  // namespace
}  // namespace molen::program
