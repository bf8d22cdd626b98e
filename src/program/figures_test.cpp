// Compares a summary of programs of small settings with tests/golden/program/figures.txt. A change of a pass thus shows
// which programs it changes, and how. MOLEN_UPDATE_GOLDEN=1 writes the file anew; read the difference before you keep
// the file.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>
#include <type_traits>

#include "base/file.h"
#include "base/test_sanitized.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "program/test_cases.h"
#include "program/test_edit.h"
#include "program/text/text.h"
#include "program/values/payload.h"
#include "program/verify/verify.h"

namespace molen::program {
namespace {

std::string figures_of(const TestCase& c) {
  const Program p = build(c.arch, c.setting);
  const MemoryPlan plan = plan_memory(p);
  const auto ops = expand(p);
  std::map<std::string, int> kinds;
  std::int64_t waits = 0, moved = 0, scratch = 0;
  double flops = 0, hardware = 0;
  for (const Expanded& e : ops) {
    ++kinds[kind_of(e.step->op)];
    waits += std::ssize(e.after);
    moved += e.step->moved.value, flops += e.step->model_flops.value, hardware += e.step->hardware_flops.value,
        scratch += e.step->scratch.value;
  }
  std::int64_t bytes = 0;
  for (const Buffer& b : p.buffers) bytes += b.bytes().value;
  std::string text = fmt::format("{}\n  {} buffers of {} bytes, peak {}, persistent {}, host {}\n", c.name,
                                 p.buffers.size(), bytes, plan.peak.value, plan.persistent.value, plan.host.value);
  text += fmt::format("  {} ops, {} waits, {} bytes moved, {} of scratch, {:.0f} model flops, {:.0f} done\n ",
                      ops.size(), waits, moved, scratch, flops, hardware);
  for (const auto& [kind, count] : kinds) text += fmt::format(" {} {}", count, kind);
  for (int last = 0; last < 2; ++last) {  // the first rank of each axis, then the last
    mesh::PerAxis at{};
    if (last)
      for (const mesh::Axis axis : {mesh::Axis::kDpShard, mesh::Axis::kDpReplicate, mesh::Axis::kCp, mesh::Axis::kTp})
        at[axis] = c.setting.mesh[axis] - 1;
    text += last ? "\n  last rank:" : "\n  first rank:";
    for (const auto& [call, payload] : calls_of(p, ops, at))
      text += fmt::format(" {}/{} {} x, {} bytes;", name_of(call.first), call.second, payload.calls, payload.bytes);
  }
  return text + "\n";
}

TEST(Figures, OfEachProgramAreTheGoldenOnes) {
  std::string text;
  for (const TestCase& c : test_cases()) {
    SCOPED_TRACE(c.name);
    EXPECT_TRUE(verify(build(c.arch, c.setting)).empty());
    text += figures_of(c);
  }
  const std::filesystem::path golden = "tests/golden/program/figures.txt";
  if (std::getenv("MOLEN_UPDATE_GOLDEN")) write_file_atomic(golden, text);
  EXPECT_EQ(text, read_file(golden));
}

TEST(Figures, TheTextOfEachProgramIsTheProgram) {
  for (const TestCase& c : test_cases()) {
    const Program p = build(c.arch, c.setting);
    EXPECT_EQ(parse(print(p), c.name), p) << c.name;
  }
}

// docs/anatomy.md shows lines of a real program: each buffer and op on the page is in the program that the page
// describes.
TEST(Figures, TheAnatomyPageShowsARealProgram) {
  arch::Architecture a = arch::preset("llama-tiny");
  a.layers = 1;
  Setting s;
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.zero = 2;
  s.global_batch = 4;
  s.sequence = 128;
  s.head_chunk = 1024;
  s.compute = DType::kBF16;
  s.kernels = arch::Kernels::kAten;
  const Program p = build(a, s);
  std::set<std::string> lines;
  for (const Body& body : p.bodies)
    for (std::size_t k = 0; k < body.steps.size(); ++k)
      lines.insert(fmt::format("{} %{} {}", body.name, k, print_step(p, body.steps[k])));
  const std::string text = print(p), page = read_file("docs/anatomy.md");
  std::string body;
  std::size_t shown = 0;
  for (std::size_t at = 0, end = 0; at < page.size(); at = end + 1) {
    end = std::min(page.find('\n', at), page.size());
    const std::string line = page.substr(at, end - at);
    if (!line.starts_with("    ")) continue;
    const std::string code = line.substr(4);
    if (code.starts_with("body ")) body = code.substr(5);
    if (code.starts_with('%')) {
      EXPECT_TRUE(lines.count(body + " " + code)) << code;
    } else {
      EXPECT_NE(text.find(code + "\n"), std::string::npos) << code;
    }
    ++shown;
  }
  EXPECT_GT(shown, 20u);
}

// The fuzzer starts from these seeds, which are sound programs of the present format. MOLEN_UPDATE_GOLDEN builds each
// one anew from its architecture and setting. Other seeds may hold any text.
TEST(Figures, TheSeedsOfTheFuzzerAreSound) {
  for (const char* name : {"arguments", "fields", "gather", "halves", "host", "hybrid", "messages", "pieces",
                           "pipeline", "recompute", "ring", "tensor", "zero1"}) {
    const std::filesystem::path seed = std::filesystem::path("tests/fuzz/seeds/program") / (std::string(name) + ".txt");
    SCOPED_TRACE(name);
    std::string text = read_file(seed);
    if (std::getenv("MOLEN_UPDATE_GOLDEN")) {
      const std::size_t arch = text.find("\narch ") + 1, setting = text.find("\nsetting ") + 1;
      const auto line = [&](std::size_t at) { return text.substr(at, text.find('\n', at) - at); };
      const Program bare =
          parse("molen-program 16\n" + line(arch) + "\n" + line(setting) + "\nbody a\nschedule a\n", "seed");
      text = print(build(bare.arch, bare.setting));
      write_file_atomic(seed, text);
    }
    EXPECT_TRUE(verify(parse(text, name)).empty());
  }
}

// Ops find an operand by its argument, so a text may list operands in any order.
TEST(Figures, TheOrderOfOperandsInATextIsFree) {
  // Reverses the list of each access.
  const auto turned = [](const std::string& text) {
    std::string made, word;
    const auto add = [&] {
      std::size_t list = word.size();
      for (const Access access : kAllAccesses)
        if (word.starts_with(fmt::format("{}=", name_of(access)))) list = name_of(access).size() + 1;
      made += word.substr(0, list);
      for (std::size_t end = word.size(); end > list;) {
        const std::size_t comma = std::max(word.rfind(',', end - 1) + 1, list);
        made += word.substr(comma, end - comma) + (comma > list ? "," : "");
        end = comma > list ? comma - 1 : list;
      }
      word.clear();
    };
    for (const char c : text) {
      if (c == ' ' || c == '\n') {
        add();
        made += c;
      } else {
        word += c;
      }
    }
    return made;
  };
  std::size_t changed = 0;
  for (const TestCase& c : test_cases()) {
    const Program p = build(c.arch, c.setting);
    const std::string text = print(p), other = turned(text);
    changed += other != text;
    EXPECT_EQ(other.size(), text.size()) << c.name;
    EXPECT_EQ(parse(other, c.name), p) << c.name;
  }
  EXPECT_EQ(changed, test_cases().size());
}

TEST(Figures, OperandsThatAnOpDoesNotHaveAreRefused) {
  const std::string text = print(build(tiny(), [] {
    Setting s;
    s.sequence = 8;
    return s;
  }()));
  const auto says = [&](const std::string& from, const std::string& to) {
    return refusal(rewrite(text, {" forward part=embed"}, from, to));
  };
  const auto has = [](const std::string& all, const std::string& part) { return all.find(part) != std::string::npos; };
  EXPECT_TRUE(has(says("writes=y:x.0", "writes=x.0"), "expected OPERAND:BUFFER, got 'x.0'"));
  EXPECT_TRUE(has(says("writes=y:x.0", "writes=yy:x.0"), "no op has an operand 'yy'"));
  EXPECT_TRUE(has(says("ids:ids,", ""), "forward embed: no operand 'ids'; it reads ids, param; writes y"));
  EXPECT_TRUE(has(says("y:x.0", "y:x.0,y:x.1"), "operand 'y' appears twice; it reads ids, param; writes y"));
  EXPECT_TRUE(has(says("y:x.0", "y:x.0,stats:x.1"), "'stats' is no operand; it reads ids, param; writes y"));
  // The verifier reports the same for a program that was never a text.
  Program p = parse(text, "sound");
  Step& embed = *std::find_if(p.bodies[0].steps.begin(), p.bodies[0].steps.end(),
                              [](const Step& s) { return kind_of(s.op) == "forward embed"; });
  embed.operand(Arg::kY).arg = Arg::kX;
  EXPECT_TRUE(has(verify(p).at(0).text,
                  "has the operands [reads ids, param; writes x] where it needs [reads ids, param; writes y]"))
      << verify(p).at(0).text;
}

// The costs that a text states for an op must be right, even when the text states zero.
TEST(Figures, OtherCostsOfAnOpAreRefused) {
  std::set<std::string> tried;
  for (const TestCase& c : test_cases()) {
    const Program p = build(c.arch, c.setting);
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
        if (!tried.insert(kind_of(p.bodies[b].steps[k].op)).second) continue;
        for (int cost = 0; cost < 7; ++cost) {
          Program q = p;
          Step& step = q.bodies[b].steps[k];
          if (cost == 0) step.scratch += Bytes(64);
          if (cost == 1) step.moved += Bytes(1);
          if (cost == 2) step.model_flops += Flops(1);
          if (cost == 3) step.hardware_flops += Flops(1);
          if (cost >= 4 && cost < 6 && step.epilogues.empty()) continue;
          if (cost == 4) step.epilogues.back().moved += Bytes(1);
          if (cost == 5) step.epilogues.pop_back();
          if (cost == 6) step.epilogues.push_back({Epilogue::kPack, Bytes(8)});
          EXPECT_FALSE(verify(q).empty()) << c.name << ": " << kind_of(step.op) << ", cost " << cost;
        }
      }
  }
  EXPECT_GT(tried.size(), 30u);
}

// Two operands of an op must not share a buffer, unless the op only reads both or the signature says that one lies
// within the other.
TEST(Figures, OperandsInOneBufferAreRefused) {
  std::size_t turn = 0;
  std::set<std::string> said;
  for (const TestCase& c : test_cases()) {
    const Program p = build(c.arch, c.setting);
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
        for (std::size_t i = 0; i < p.bodies[b].steps[k].operands.size(); ++i)
          for (std::size_t j = 0; j < i; ++j) {
            const Use& one = p.bodies[b].steps[k].operands[i];
            const Use& other = p.bodies[b].steps[k].operands[j];
            if (one.buffer == other.buffer || (!one.changes() && !other.changes()) || turn++ % (3 * long_stride()) != 0)
              continue;
            Program q = p;
            Step& step = q.bodies[b].steps[k];
            step.operands[i].buffer = other.buffer;
            std::string all;
            for (const Finding& finding : verify(pass::costs(q))) all += finding.text + "\n";
            const bool twice = all.find("twice") != std::string::npos,
                       reads = all.find("while it reads") != std::string::npos;
            EXPECT_TRUE(twice || reads || all.find("names no parameter unit") != std::string::npos ||
                        all.find("where it needs [") != std::string::npos)
                << c.name << ": " << print_step(q, step) << "\n"
                << all;
            if (twice) said.insert("twice");
            if (reads) said.insert("reads");
          }
  }
  EXPECT_EQ(said.size(), 2u);
}

// An op may access each operand in only one way. Whether a gradient is overwritten or added to depends on the place in
// the step.
TEST(Figures, EveryOtherAccessIsRefused) {
  std::size_t turn = 0, tried = 0;
  for (const TestCase& c : test_cases()) {
    const Program p = build(c.arch, c.setting);
    std::set<std::tuple<std::string, Arg, Access>> seen;  // in this case
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
        for (std::size_t i = 0; i < p.bodies[b].steps[k].operands.size(); ++i)
          for (const Access other : kAllAccesses) {
            const Use& use = p.bodies[b].steps[k].operands[i];
            const std::string kind = kind_of(p.bodies[b].steps[k].op) + p.bodies[b].name;
            if (use.access == other || seen.count({kind, use.arg, other}) > 0 || turn++ % long_stride() != 0) continue;
            seen.insert({kind, use.arg, other});
            Program q = p;
            q.bodies[b].steps[k].operands[i].access = other;
            EXPECT_FALSE(verify(pass::costs(std::move(q))).empty())
                << c.name << ": " << kind << " " << name_of(other) << " " << name_of(use.arg);
            ++tried;
          }
  }
  EXPECT_GT(tried * long_stride(), 1000u);
}

// Ops find an operand by its argument, so no op has two operands with the same argument.
TEST(Figures, EachArgumentOfAnOpIsThereOnce) {
  for (const TestCase& c : test_cases())
    for (const Body& body : build(c.arch, c.setting).bodies)
      for (const Step& step : body.steps) {
        std::set<Arg> seen;
        for (const Use& use : step.operands)
          EXPECT_TRUE(seen.insert(use.arg).second) << c.name << ": " << kind_of(step.op);
      }
}

// Names of buffers are labels, and nothing depends on them.
TEST(Figures, AProgramWithOtherNamesIsTheSame) {
  for (const TestCase& c : test_cases()) {
    const Program p = build(c.arch, c.setting);
    const Program q = renamed(p);
    EXPECT_TRUE(verify(q).empty()) << c.name;
    EXPECT_EQ(parse(print(q), c.name), q) << c.name;
    const MemoryPlan before = plan_memory(p), after = plan_memory(q);
    EXPECT_EQ(before.buffer_offset, after.buffer_offset) << c.name;
    EXPECT_EQ(summarize(p, before).parameters, summarize(q, after).parameters) << c.name;
    EXPECT_EQ(calls_of(p, expand(p), {}), calls_of(q, expand(q), {})) << c.name;
  }
}

// The verifier checks the fields of a buffer against what ops need.
TEST(Figures, AnotherUnitOfAStateIsRefused) {
  std::size_t tried = 0;
  for (const TestCase& c : test_cases()) {
    const Program p = build(c.arch, c.setting);
    for (std::size_t b = 0; b < p.buffers.size(); ++b) {
      if (p.buffers[b].unit < 0 || p.buffers[b].copy > 0) continue;
      Program q = p;
      q.buffers[b].unit = (p.buffers[b].unit + 1) % static_cast<int>(p.units.size());
      if (q.buffers[b].unit == p.buffers[b].unit) continue;
      ++tried;
      EXPECT_FALSE(verify(q).empty()) << c.name << ": " << p.buffers[b].name << " of another unit";
      break;
    }
  }
  EXPECT_GT(tried, test_cases().size() / 2);
}

TEST(Figures, TwoBuffersOfOneStateAreRefused) {
  Program p = build(test_cases().front().arch, test_cases().front().setting);
  Buffer twin = p.buffers[static_cast<std::size_t>(p.find_buffer(Value::kMoment1, 0))];
  twin.name = "twin";
  p.buffers.push_back(twin);
  const auto found = verify(p);
  ASSERT_FALSE(found.empty());
  EXPECT_NE(found.front().text.find("and twin both keep m of unit embed"), std::string::npos) << found.front().text;
}

// Replaces an op's axis by each other axis.
template <class O>
concept OverAnAxis = requires(O o) {
  o.axis = Axis::kTp;
};
TEST(Figures, EveryCollectiveOverOtherRanksIsRefused) {
  std::size_t tried = 0, turn = 0;
  for (const TestCase& c : test_cases()) {
    const Program p = build(c.arch, c.setting);
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
        const auto axis = axis_of(p.bodies[b].steps[k].op);
        if (!axis) continue;
        for (const Axis other : kAllAxes) {
          if (other == *axis || turn++ % long_stride() != 0) continue;
          Program q = p;
          const bool changed = std::visit(
              [&](auto& op) {
                if constexpr (OverAnAxis<std::remove_cvref_t<decltype(op)>>) {
                  op.axis = other;
                  return true;
                }
                return false;
              },
              q.bodies[b].steps[k].op);
          if (!changed) continue;
          ++tried;
          EXPECT_FALSE(verify(q).empty()) << c.name << ": " << kind_of(p.bodies[b].steps[k].op) << " %" << k << " over "
                                          << name_of(other) << " where " << name_of(*axis) << " is right";
        }
      }
  }
  EXPECT_GT(tried * long_stride(), 500u);
}

// If a half of a backward ran again, it would add its gradient twice.
TEST(Figures, EveryHalfThatRunsTwiceIsRefused) {
  std::size_t tried = 0, turn = 0;
  for (const TestCase& c : test_cases()) {
    const Program p = build(c.arch, c.setting);
    if (!p.setting.pipeline.halves) continue;
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (const Step& step : p.bodies[b].steps) {
        const auto* compute = std::get_if<Compute>(&step.op);
        if (!compute || compute->pass != Pass::kBackwardInput || turn++ % kStride != 0) continue;
        Program q = p;
        q.bodies[b].steps.push_back(step);  // at the end, where no edge refers to an op after it
        const auto found = verify(q);
        ++tried;
        EXPECT_TRUE(
            std::any_of(found.begin(), found.end(),
                        [](const Finding& f) { return f.text.find("runs a second time") != std::string::npos; }))
            << c.name << ": " << kind_of(step.op);
      }
  }
  EXPECT_GT(tried * kStride, 20u);
}

}  // namespace
}  // namespace molen::program
