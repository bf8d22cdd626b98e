// PyTorch's CSV of a schedule (torch.distributed.pipelining, format "compute_only"): one row for each stage, one cell
// for each action.
#include <algorithm>
#include <array>
#include <iterator>

#include "base/error.h"
#include "program/schedule/schedule.h"

namespace molen::program {
namespace {

constexpr std::size_t kMaxDigits = 9;  // so that every number fits an int
constexpr std::size_t kMaxRows = std::size_t{1} << 16;

char letter(Pass kind) {
  switch (kind) {
    case Pass::kForward:
      return 'F';
    case Pass::kBackward:
      return 'B';
    case Pass::kBackwardInput:
      return 'I';
    case Pass::kBackwardWeights:
      return 'W';
    case Pass::kRecompute:
      break;
  }
  throw Error("a recomputation is no action of a schedule");
}

struct Cell {
  Pass kind{};
  int global_stage = 0, micro_batch = 0;
};

std::string_view trim(std::string_view s) {
  constexpr std::string_view kBlank = " \t\r";
  const auto first = s.find_first_not_of(kBlank);
  return first == std::string_view::npos ? std::string_view{} : s.substr(first, s.find_last_not_of(kBlank) - first + 1);
}

// Returns a short and printable form of any text, for messages.
std::string shown(std::string_view s) {
  constexpr std::size_t kShown = 32;
  std::string out;
  for (const char c : s.substr(0, kShown)) out += c >= ' ' && c <= '~' ? c : '?';
  return s.size() > kShown ? out + "..." : out;
}

class ScheduleParser {
 public:
  ScheduleParser(std::string_view text, std::string_view origin) : origin_(origin) {
    while (!text.empty()) {
      const auto end = text.find('\n');
      row(text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    while (!rows_.empty() && rows_.back().empty()) rows_.pop_back();
  }

  Schedule run() {
    if (cells_ == 0) throw UsageError("{}: no actions; a schedule has a row per stage, as 0F0,0B0", origin_);
    Schedule s = sizes();
    for (std::size_t stage = 0; stage < rows_.size(); ++stage) {
      s.order.emplace_back();
      s.order.back().reserve(rows_[stage].size());
      for (const Cell& cell : rows_[stage])
        s.order.back().push_back({cell.kind, s.chunk_of(cell.global_stage), cell.micro_batch});
    }
    try {
      check(s);
    } catch (const UsageError& e) {
      throw UsageError("{}: {}", origin_, e.what());
    }
    return s;
  }

 private:
  [[noreturn]] void fail(std::size_t line, const std::string& what) const {
    throw UsageError("{}:{}: {}", origin_, line, what);
  }

  void row(std::string_view line) {
    if (rows_.size() == kMaxRows) fail(kMaxRows + 1, fmt::format("more than {} rows", kMaxRows));
    rows_.emplace_back();
    for (;;) {
      const auto comma = line.find(',');
      if (const auto cell = trim(line.substr(0, comma)); !cell.empty()) {
        rows_.back().push_back(parse(cell));
        if (++cells_ > kMaxScheduleActions)
          fail(rows_.size(), fmt::format("more than {} actions", kMaxScheduleActions));
      }
      if (comma == std::string_view::npos) return;
      line.remove_prefix(comma + 1);
    }
  }

  Cell parse(std::string_view cell) const {
    constexpr std::string_view kDigits = "0123456789";
    const auto kind_at = std::min(cell.find_first_not_of(kDigits), cell.size());
    const auto batch_at = std::min(cell.find_first_of(kDigits, kind_at), cell.size());
    const auto kind = cell.substr(kind_at, batch_at - kind_at);
    if (cell.front() == '(')
      fail(rows_.size(), fmt::format("'{}': overlapped pairs are not supported; write each as a cell", shown(cell)));
    for (const std::string_view other : {"SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"})
      if (kind == other)
        fail(rows_.size(),
             fmt::format("'{}': communication follows from the compute actions and is not read; write the "
                         "file with format=\"compute_only\"",
                         shown(cell)));
    const auto found = kind.size() == 1 ? std::string_view("FBIW").find(kind.front()) : std::string_view::npos;
    if (found == std::string_view::npos || kind_at == 0 || batch_at == cell.size())
      fail(rows_.size(),
           fmt::format("'{}' is no action: expected global stage, F, B, I or W, micro-batch, as 2F0", shown(cell)));
    constexpr std::array kKinds{Pass::kForward, Pass::kBackward, Pass::kBackwardInput, Pass::kBackwardWeights};
    return {kKinds[found], number(cell, cell.substr(0, kind_at)), number(cell, cell.substr(batch_at))};
  }

  int number(std::string_view cell, std::string_view digits) const {
    if (digits.size() > kMaxDigits) fail(rows_.size(), fmt::format("'{}': the number is too large", shown(cell)));
    int value = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9')
        fail(rows_.size(), fmt::format("'{}' is no action: '{}' follows the micro-batch", shown(cell), shown({&c, 1})));
      value = value * 10 + (c - '0');
    }
    return value;
  }

  // Derives the counts from the largest numbers in the cells. It allocates memory of the size of the counts only after
  // it has checked that there are enough cells.
  Schedule sizes() const {
    int last_stage = 0, last_batch = 0;
    for (const auto& row : rows_) {
      for (const Cell& cell : row) {
        last_stage = std::max(last_stage, cell.global_stage);
        last_batch = std::max(last_batch, cell.micro_batch);
      }
    }
    const auto global = std::int64_t{last_stage} + 1, stages = static_cast<std::int64_t>(rows_.size());
    if (global * (std::int64_t{last_batch} + 1) > cells_)
      throw UsageError("{}: {} actions are too few for {} global stages (the largest is {}) and {} micro-batches",
                       origin_, cells_, global, last_stage, std::int64_t{last_batch} + 1);
    if (global % stages != 0)
      throw UsageError("{}: {} global stages cannot be shared evenly by {} rows", origin_, global, stages);
    Schedule s{
        static_cast<int>(stages), static_cast<int>(global / stages), last_batch + 1, Placement::kInterleaved, {}};
    auto wrong = misplaced(s);
    if (wrong.count != 0 && s.chunks == 2 && s.stages > 1) {
      // Takes the placement that more actions agree with, so that the message names the cell that is wrong.
      s.placement = Placement::kV;
      const auto as_v = misplaced(s);
      if (as_v.count < wrong.count)
        wrong = as_v;
      else
        s.placement = Placement::kInterleaved;
    }
    if (wrong.count != 0)
      fail(wrong.row,
           fmt::format("an action of global stage {}: with {} rows, {} chunks each ({}), it belongs to row {}",
                       wrong.global_stage, s.stages, s.chunks, s.placement == Placement::kV ? "in a V" : "interleaved",
                       s.stage_of(wrong.global_stage) + 1));
    return s;
  }

  struct Misplaced {
    std::int64_t count = 0;
    std::size_t row = 0;  // row of the first misplaced action, from 1
    int global_stage = 0;
  };
  Misplaced misplaced(const Schedule& s) const {
    Misplaced found;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      for (const Cell& cell : rows_[row]) {
        if (s.stage_of(cell.global_stage) == static_cast<int>(row)) continue;
        if (found.count++ == 0) found = {1, row + 1, cell.global_stage};
      }
    }
    return found;
  }

  std::string_view origin_;
  std::vector<std::vector<Cell>> rows_;
  std::int64_t cells_ = 0;
};

}  // namespace

std::string to_string(const Schedule& schedule, int stage, const Action& action) {
  return fmt::format("{}{}{}", schedule.global_stage(stage, action.chunk), letter(action.kind), action.micro_batch);
}

std::string print_schedule(const Schedule& schedule) {
  std::string text;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const char* separator = "";
    for (const Action& a : schedule.order[static_cast<std::size_t>(stage)]) {
      fmt::format_to(std::back_inserter(text), "{}{}{}{}", separator, schedule.global_stage(stage, a.chunk),
                     letter(a.kind), a.micro_batch);
      separator = ",";
    }
    text += '\n';
  }
  return text;
}

Schedule parse_schedule(std::string_view text, std::string_view origin) {
  // A cell has at least three characters and a comma.
  constexpr auto kMaxText = static_cast<std::size_t>(kMaxScheduleActions) * 16;
  if (text.size() > kMaxText) throw UsageError("{}: {} bytes are more than a schedule can have", origin, text.size());
  return ScheduleParser(text, origin).run();
}

}  // namespace molen::program
