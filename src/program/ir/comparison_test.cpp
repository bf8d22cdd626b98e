// Tests a predicted step beside a measured one: sums by kind, by axis, and the parts of a step.
#include "program/ir/comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/test_golden.h"
#include "program/build/build.h"

namespace molen::program {
namespace {

Setting compared_setting(int data, int tensor, int stages) {
  Setting s;
  s.mesh[mesh::Axis::kDpShard] = data, s.mesh[mesh::Axis::kTp] = tensor, s.mesh[mesh::Axis::kPp] = stages;
  s.global_batch = 4 * data, s.micro_batch = 1, s.sequence = 64;
  return s;
}

// The table is printed without breaking its lines, on consoles of 100 columns.
TEST(Comparison, TheTableFitsTheConsole) {
  Comparison c;
  for (const Pass pass :
       {Pass::kForward, Pass::kBackward, Pass::kRecompute, Pass::kBackwardInput, Pass::kBackwardWeights})
    for (const auto& [part, name] : arch::kPartNames) {
      if (pass == Pass::kBackwardWeights && part == arch::Part::kExpertActivation) continue;  // it has no weights
      Compute op;
      op.pass = pass, op.part = part;
      c.rows.push_back({kind_of(Op(op)), 7999, 1234.5, 0.1234, 999.9, std::int64_t{1} << 45, 0.5});
    }
  c.predicted_step_s = 0.1234, c.measured_step_s = 1.2345, c.step_spread = 0.25;
  std::istringstream table(to_table(c));
  int lines = 0;
  for (std::string line; std::getline(table, line); ++lines) EXPECT_LE(line.size(), 100U) << line;
  EXPECT_EQ(lines, static_cast<int>(c.rows.size()) + 2);
}

// Sums predicted and measured seconds by kind of op, the slowest kind first. Every op of the program counts once.
TEST(Comparison, SumsTheKindsOfAProgram) {
  const GoldenMessages golden;
  const Program program = build(arch::preset("llama-tiny"), compared_setting(1, 1, 1));
  const std::vector<Expanded> ops = expand(program);
  Timeline predicted, measured;
  predicted.ops.resize(ops.size()), measured.ops.resize(ops.size());
  std::map<std::string, KindRow> want;
  double now = 0.0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const std::string kind = kind_of(ops[i].step->op);
    const double took = kind == "zero_fill" ? 100.0 : 0.25 * static_cast<double>(i % 3 + 1), waited = 0.125;
    predicted.ops[i] = {now, now + 2.0, 0.0, 0.0};
    measured.ops[i] = {now, now + took, 0.0, waited};
    now += took;
    KindRow& row = want[kind];
    ++row.count;
    row.predicted_s += 2.0;
    row.measured_s += took - waited;
    row.waited_s += waited;
    row.bytes += ops[i].step->moved.value;
  }
  ASSERT_EQ(kind_of(ops[0].step->op), "zero_fill") << "the first counts, too";
  predicted.total_s = 30.0, measured.total_s = 20.0;
  const Comparison c = compare(ops, predicted, measured);
  EXPECT_DOUBLE_EQ(c.step_error(), 0.5);
  ASSERT_EQ(c.rows.size(), want.size());
  EXPECT_EQ(c.rows[0].kind, "zero_fill");
  for (const KindRow& row : c.rows) {
    const KindRow& w = want[row.kind];
    EXPECT_EQ(row.count, w.count) << row.kind;
    EXPECT_DOUBLE_EQ(row.predicted_s, w.predicted_s) << row.kind;
    EXPECT_DOUBLE_EQ(row.measured_s, w.measured_s) << row.kind;
    EXPECT_DOUBLE_EQ(row.waited_s, w.waited_s) << row.kind;
    EXPECT_EQ(row.bytes, w.bytes) << row.kind;
  }
  for (std::size_t r = 1; r < c.rows.size(); ++r)
    EXPECT_GE(c.rows[r - 1].measured_s + c.rows[r - 1].waited_s, c.rows[r].measured_s + c.rows[r].waited_s);
  measured.ops.pop_back();
  EXPECT_NOTED(compare(ops, predicted, measured), Error);
  EXPECT_EQ(Comparison{}.step_error(), 0.0);
}

// The expected values are computed by hand. Of 8 seconds, 1 was waiting, 2 were an epilogue and 0.5 another epilogue.
// The thread computed for 4 seconds.
TEST(Comparison, AnEpilogueHasARowOfItsOwn) {
  Step step;
  step.op = ReduceScatter{};
  step.moved = Bytes(100);
  step.epilogues = {{Epilogue::kAdd, Bytes(30)}, {Epilogue::kCopy, Bytes(20)}};
  OpTime time{1.0, 9.0, 4.0, 1.0};
  time.epilogue_s[static_cast<std::size_t>(Epilogue::kAdd)] = 2.0;
  time.epilogue_s[static_cast<std::size_t>(Epilogue::kCopy)] = 0.5;
  time.epilogue_cpu_s[static_cast<std::size_t>(Epilogue::kAdd)] = 1.5;
  time.epilogue_cpu_s[static_cast<std::size_t>(Epilogue::kCopy)] = 0.25;
  const std::vector<Work> work = work_of(step, time);
  ASSERT_EQ(work.size(), 3u);
  const auto expect = [](const Work& w, const std::string& kind, double seconds, double cpu_s, std::int64_t bytes) {
    EXPECT_EQ(w.kind, kind);
    EXPECT_DOUBLE_EQ(w.seconds, seconds) << kind;
    EXPECT_DOUBLE_EQ(w.cpu_s, cpu_s) << kind;
    EXPECT_EQ(w.bytes, bytes) << kind;
  };
  expect(work[0], "reduce_scatter", 4.5, 2.25, 100);
  expect(work[1], "epilogue add", 2.0, 1.5, 30);
  expect(work[2], "epilogue copy", 0.5, 0.25, 20);
  Expanded op{};
  op.step = &step;
  Timeline predicted, measured;
  predicted.ops = {time}, measured.ops = {time};
  predicted.ops[0].waited_s = 0.0;
  const Comparison c = compare({op}, predicted, measured);
  ASSERT_EQ(c.rows.size(), 3u);
  const auto row = std::ranges::find(c.rows, "epilogue add", &KindRow::kind);
  ASSERT_NE(row, c.rows.end());
  EXPECT_EQ(row->count, 1);
  EXPECT_DOUBLE_EQ(row->predicted_s, 2.0);
  EXPECT_DOUBLE_EQ(row->measured_s, 2.0);
  EXPECT_EQ(row->bytes, 30);
  EXPECT_DOUBLE_EQ(c.rows[0].predicted_s, 5.5);
  EXPECT_DOUBLE_EQ(c.rows[0].waited_s, 1.0);
}

TEST(Comparison, TheTable) {
  Comparison c;
  c.rows = {{"all_reduce", 2, 3.0, 4.0, 0.5, 2048, 0.254}, {"set_flag", 1, 0.5, 0.0, 0.0, 0}};
  c.predicted_step_s = 6.0, c.measured_step_s = 4.0, c.step_spread = 0.1;
  EXPECT_EQ(to_table(c),
            "op                                 count  predicted    80 %   measured   error    waiting      bytes\n"
            "all_reduce                             2     3.00 s   +-25%     4.00 s  -25.0%   500.0 ms   2.00 KiB\n"
            "set_flag                               1   500.0 ms       -     0.0 us       -          -          -\n"
            "step                                   3     6.00 s   +-10%     4.00 s  +50.0%          -          -\n");
}

// Each op takes a time of its own, predicted and measured; communication runs beside compute in part. The parts of a
// step add up to it, whatever overlaps.
TEST(Comparison, ThePartsOfAStepAddUpToIt) {
  for (const auto& [data, tensor, stages] : {std::tuple{1, 1, 1}, {2, 1, 1}, {2, 2, 1}, {1, 2, 2}}) {
    const Program program = build(arch::preset("llama-tiny"), compared_setting(data, tensor, stages));
    const std::vector<Expanded> ops = expand(program);
    const auto timeline = [&](double scale) {
      Timeline t;
      std::map<Stream, double> free;
      for (std::size_t i = 0; i < ops.size(); ++i) {
        double& at = free[ops[i].step->stream];
        const double start = std::max(at, 0.125 * static_cast<double>(i % 5));
        at = start + scale * static_cast<double>(i % 7 + 1);
        t.ops.push_back({start, at, at - start});
        t.total_s = std::max(t.total_s, at + 1.0);
      }
      return t;
    };
    const Timeline predicted = timeline(0.5), measured = timeline(0.75);
    const Comparison c = compare(ops, predicted, measured);
    double of_predicted = 0.0, of_measured = 0.0;
    for (const StepPart& part : c.parts) {
      of_predicted += part.predicted_s, of_measured += part.measured_s;
      EXPECT_GE(part.predicted_s, 0.0) << part.name;
      EXPECT_GE(part.measured_s, 0.0) << part.name;
    }
    EXPECT_NEAR(of_predicted, predicted.total_s, 1e-12 * predicted.total_s * static_cast<double>(ops.size()));
    EXPECT_NEAR(of_measured, measured.total_s, 1e-12 * measured.total_s * static_cast<double>(ops.size()));
    for (std::size_t i = 1; i < c.parts.size(); ++i)
      EXPECT_GE(std::abs(c.parts[i - 1].error_s()), std::abs(c.parts[i].error_s()));
    std::vector<Stream> streams;
    for (const AxisRow& row : c.axes) {
      streams.push_back(row.stream);
      EXPECT_DOUBLE_EQ(row.predicted_exposed_s, exposed_seconds(ops, predicted, row.stream));
      EXPECT_DOUBLE_EQ(row.measured_exposed_s, exposed_seconds(ops, measured, row.stream));
      EXPECT_GE(row.measured_s, row.measured_exposed_s);
    }
    std::vector<Stream> wanted;
    if (data > 1) wanted.push_back(Stream::kDpComm);
    if (tensor > 1) wanted.push_back(Stream::kTpComm);
    if (stages > 1) wanted.push_back(Stream::kPpComm);
    EXPECT_EQ(streams, wanted) << "axes of " << data << " x " << tensor << " x " << stages;
    Comparison spread = c;
    spread.step_spread = 0.25, spread.rows.front().spread = 0.5;
    EXPECT_EQ(comparison_from_json(to_json(spread)).rows.front().spread, 0.5);
    EXPECT_EQ(to_json(comparison_from_json(to_json(spread))), to_json(spread));
  }
}

// By hand: compute until 1 and from 4 to 5 of 8 seconds. Tensor ranks exchange from 0.5 to 2.5, data ranks reduce from
// 2 to 6. Until 2.5 the wait is one for tensor ranks, then until 4 and from 5 to 6 one for data ranks; nothing runs
// after.
TEST(Comparison, WaitingIsDividedAmongStreamsThatOverlap) {
  const Program program = build(arch::preset("llama-tiny"), compared_setting(2, 2, 1));
  const std::vector<Expanded> all = expand(program);
  const auto first_on = [&](Stream stream) {
    return *std::ranges::find_if(all, [&](const Expanded& op) { return op.step->stream == stream; });
  };
  const std::vector<Expanded> ops{first_on(Stream::kCompute), first_on(Stream::kTpComm), first_on(Stream::kDpComm),
                                  first_on(Stream::kCompute)};
  Timeline t;
  t.ops = {{0.0, 1.0, 1.0}, {0.5, 2.5, 0.0}, {2.0, 6.0, 0.0}, {4.0, 5.0, 1.0}};
  t.total_s = 8.0;
  std::map<std::string, double> parts;
  for (const StepPart& part : compare(ops, t, t).parts) parts[part.name] = part.measured_s;
  EXPECT_DOUBLE_EQ(parts["waiting for tp_comm"], 1.5);
  EXPECT_DOUBLE_EQ(parts["waiting for dp_comm"], 2.5);
  EXPECT_DOUBLE_EQ(parts["rest"], 2.0);
  EXPECT_DOUBLE_EQ(parts[kind_of(ops[0].step->op)], 2.0);
  EXPECT_EQ(parts.size(), 4u);
}

TEST(Comparison, NamesTheLargestErrors) {
  Comparison c;
  EXPECT_EQ(largest_errors(c), "");
  c.measured_step_s = 2.0;
  c.parts = {
      {"waiting for tp", 1.5, 1.0}, {"forward attention", 0.25, 0.5}, {"rest", 0.0, 0.125}, {"set_flag", 0.0, 0.0}};
  EXPECT_EQ(largest_errors(c),
            "waiting for tp +500.0 ms (+25.0 % of the step), forward attention -250.0 ms (-12.5 % of the step), rest "
            "-125.0 ms (-6.2 % of the step)");
}

}  // namespace
}  // namespace molen::program
