#include "program/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/match.h"
#include "program/ir/slots.h"
#include "program/parts/part.h"
#include "program/types/check.h"
#include "program/values/attributes.h"
#include "program/values/of_op.h"
#include "program/values/tiles.h"
#include "program/values/value_memory.h"
#include "program/verify/inferred.h"
#include "program/verify/needs.h"
#include "program/verify/races.h"
#include "program/verify/verify_detail.h"
#include "program/verify/verify_units.h"

namespace molen::program {
namespace {

constexpr std::size_t kMaxFindings = 20;

// The contents of a buffer: a value of a layer and micro-batch, or nothing.
struct Held {
  bool defined = false;
  Value value{};
  std::int64_t layer = -1;
  std::int64_t micro_batch = -1;
  std::int64_t step = 0;      // step of a ring
  std::int64_t portion = -1;  // piece of rows, when each piece has a buffer of its own; tiles share one
  std::string text() const {
    if (!defined) return "nothing";
    std::string t(name_of(value));
    if (layer >= 0) t += fmt::format(" of {} {}", of_unit(value) ? "unit" : "layer", layer);
    if (step > 0) t += fmt::format(", step {}", step);
    if (portion >= 0) t += fmt::format(", piece {}", portion);
    return t + fmt::format(", micro-batch {}", micro_batch);
  }
  bool operator==(const Held&) const = default;
};

class Verifier {
 public:
  explicit Verifier(const Program& p)
      : p_(p),
        t_(inferred_traits(p)),
        ops_(expand(p)),
        slots_(p),
        pieces_(std::max(pieces_of_rows(t_.rows).size(), static_cast<std::size_t>(t_.rows.expert_tiles))),
        held_(slots_.places() * pieces_),
        needs_(p, t_),
        units_(p, t_, [this](const Expanded* e, const std::string& what) {
          e ? report(*e, "{}", what) : report_all("{}", what);
        }) {}

  std::vector<Finding> run() {
    structure();
    if (!findings_.empty()) return findings_;
    int instance = -1;
    for (const Expanded& e : ops_) {
      if (e.instance != instance) {
        instance = e.instance;
        begin_instance();
      }
      if (operands(e)) semantics(e);
      if (findings_.size() >= kMaxFindings) return findings_;
    }
    totals();
    races();
    return findings_;
  }

 private:
  template <class... Args>
  void report(const Expanded& e, fmt::format_string<Args...> format, Args&&... args) {
    findings_.push_back({text_of(p_, e) + ": " + fmt::format(format, std::forward<Args>(args)...)});
  }
  template <class... Args>
  void report_all(fmt::format_string<Args...> format, Args&&... args) {
    findings_.push_back({fmt::format(format, std::forward<Args>(args)...)});
  }

  // Forgets transient values, which do not outlive an instance.
  void begin_instance() {
    report_unread();
    for (std::size_t b = 0; b < p_.buffers.size(); ++b)
      if (p_.buffers[b].lifetime == Lifetime::kTransient) forget(static_cast<int>(b), -1);
    chunks_.clear();
    chunks_in_.clear();
    units_.begin_instance();
  }

  // Checks that no two buffers of state have the same role and unit, since state is found by role and unit.
  void one_buffer_a_state() {
    std::map<std::pair<Value, int>, const Buffer*> seen;
    for (const Buffer& b : p_.buffers) {
      if (b.unit < 0 || b.lifetime == Lifetime::kTransient) continue;
      if (b.copy > 0) report_all("buffer {}: copies are transient", b.name);
      if (const auto [first, fresh] = seen.emplace(std::pair{b.role, b.unit}, &b); !fresh && b.copy == 0)
        report_all("buffers {} and {} both keep {} of unit {}", first->second->name, b.name, name_of(b.role),
                   p_.units[static_cast<std::size_t>(b.unit)].name);
    }
  }

  void structure() {
    one_buffer_a_state();
    if (t_.trains() && t_.replica_group_size() < 1) report_all("no ranks");
    batch();
    for (std::size_t b = 0; b < p_.bodies.size(); ++b)
      for (std::size_t k = 0; k < p_.bodies[b].steps.size(); ++k)
        for (const OpRef& ref : p_.bodies[b].steps[k].after) {
          const bool same = ref.body < 0;
          const auto& steps = p_.bodies[same ? b : static_cast<std::size_t>(ref.body)].steps;
          if (ref.op < 0 || ref.op >= static_cast<int>(steps.size()) || (same && ref.op >= static_cast<int>(k)))
            report_all("body {}, op %{}: waits for %{}, which does not run before it", p_.bodies[b].name, k, ref.op);
        }
    attributes();
    if (findings_.empty()) streams();
  }

  void streams() {
    for (const Expanded& e : ops_) {
      if (const auto why = detail::stream_refused(t_, *e.step)) report(e, "{}", *why);
      if (findings_.size() >= kMaxFindings) return;
    }
  }

  // Checks that ops give the sizes of micro-batches and of the batch.
  void batch() {
    if (t_.rows.count() < 1)
      report_all(
          "no op says how many rows a micro-batch has; give the ops of parts the attribute rows=SEQUENCESxLENGTH");
    constexpr std::int64_t kMostRows = std::int64_t{1} << 40;
    if (t_.rows.count() > kMostRows)
      report_all("a micro-batch has {}x{} rows, which are more than {}", t_.rows.sequences, t_.rows.length, kMostRows);
    if (!t_.trains() || t_.rows.count() < 1) return;
    if (t_.positions < 1)
      report_all("no op says how many positions the batch has; give clip_scale the attribute positions=NUMBER");
    else if (t_.positions % (t_.rows.length * t_.context_ranks()) != 0)
      report_all("the batch has {} positions, which are no whole number of sequences of {}", t_.positions,
                 t_.rows.length * t_.context_ranks());
    if (t_.micro_batches > kMaxExpanded)
      report_all("the batch has {} positions, which are more micro-batches of {}x{} than a program can have",
                 t_.positions, t_.rows.sequences, t_.rows.length);
  }

  void attributes() {
    const KernelChoice usual = usual_choice(p_);
    for (std::size_t b = 0; b < p_.bodies.size(); ++b)
      for (std::size_t k = 0; k < p_.bodies[b].steps.size(); ++k) {
        if (const auto why = attributes_refused(p_, t_, usual, p_.bodies[b].steps[k]))
          report_all("{}: {}", place_of(p_, b, k), *why);
      }
  }

  // Returns what a buffer holds, by piece or tile of its rows: all of them, or only that of the operand `of`.
  std::span<Held> held(int buffer, std::int64_t micro_batch, const Operand& of = {}) {
    const std::span<Held> all(held_.data() + slots_.place(buffer, micro_batch) * pieces_, pieces_);
    const bool part = of.portion >= 0 && !piece_apart(p_, of);
    return part ? all.subspan(static_cast<std::size_t>(of.portion), 1) : all;
  }
  void forget(int buffer, std::int64_t micro_batch) {
    for (Held& piece : held(buffer, micro_batch)) piece = {};
  }
  Held holding(const Operand& o, std::int64_t micro_batch) const {
    return {true, o.value, o.layer, micro_batch, o.step, piece_apart(p_, o) ? o.portion : -1};
  }

  // Checks that the piece of the rows, or the tile of the experts, that an op works on fits the other ops.
  bool piece_fits(const Expanded& e) {
    const auto one_of = [&](std::string_view piece, bool cut, std::int64_t pieces, std::int64_t portion) {
      const bool right = cut ? portion >= 0 && portion < pieces : portion < 0;
      if (!right && cut)
        report(e, "works on {} of the rows, but must work on one of their {} {}s",
               portion < 0 ? "all" : fmt::format("{} {}", piece, portion), pieces, piece);
      else if (!right)
        report(e, "works on {} {} of the rows, but the rows are not in {}s", piece, portion, piece);
      return right;
    };
    const auto fits = [&](bool cut, std::int64_t portion) { return one_of("piece", cut, t_.rows.pieces, portion); };
    const std::int64_t tiles = t_.rows.expert_tiles;
    if (const auto* c = std::get_if<Compute>(&e.step->op)) {
      if (declaration_of(c->part).computes_experts()) return one_of("tile", tiles > 1, tiles, c->portion);
      return has_halves(c->part) ? fits(by_pieces(t_.rows, c->part), c->portion) : true;
    }
    if (const auto* o = std::get_if<AllToAll>(&e.step->op)) return one_of("tile", tiles > 1, tiles, o->portion);
    if (const auto* o = std::get_if<ReduceScatter>(&e.step->op)) return fits(in_pieces(o->payload), o->portion);
    if (const auto* o = std::get_if<AllGather>(&e.step->op)) return fits(in_pieces(o->payload), o->portion);
    return true;
  }
  bool in_pieces(Payload payload) const {
    const bool rows = payload == Payload::kResidual || payload == Payload::kMid || payload == Payload::kDResidual ||
                      payload == Payload::kDMid;
    return rows && t_.rows.in_pieces();
  }

  // Checks types, sizes and values of an op's operands. Returns false when the op has other operands, which cannot be
  // checked further.
  bool operands(const Expanded& e) {
    if (!detail::of_this_stage(p_, t_, e.step->op)) {
      report(e, "belongs to no model chunk of this pipeline stage");
      return false;
    }
    if (!piece_fits(e)) return false;
    const NeedsOfStep& want = needs_.of(e);
    if (!want.refused.empty()) {
      report(e, "{}", want.refused);
      return false;
    }
    const std::vector<Use>& has = e.step->operands;
    aliases(e, want.operands);
    sound_.clear();
    for (std::size_t i = 0; i < has.size(); ++i)
      if (fits(e, has[i], want.operands[i])) sound_.push_back(i);
    if (!want.wrong_costs.empty()) report(e, "{}", want.wrong_costs);
    for (const std::size_t i : sound_)
      if (has[i].reads()) read(e, has[i], want.operands[i]);
    for (const std::size_t i : sound_)
      if (has[i].access == Access::kConsume)
        for (Held& piece : held(has[i].buffer, e.micro_batch, want.operands[i].operand)) piece = {};
    for (const std::size_t i : sound_)
      if (has[i].writes()) write(e, has[i], want.operands[i]);
    return true;
  }

  // Checks that operands that an op changes have buffers of their own, unless the rule of the op puts them into the
  // buffer of another operand.
  void aliases(const Expanded& e, const std::vector<Need>& want) {
    const std::vector<Use>& has = e.step->operands;
    const auto name = [&](const Use& use) { return p_.buffers[static_cast<std::size_t>(use.buffer)].name; };
    for (std::size_t i = 0; i < has.size(); ++i)
      for (std::size_t k = 0; k < i; ++k) {
        const bool shared = has[i].buffer == has[k].buffer;
        const bool lies_within = want[i].operand.within == has[k].arg || want[k].operand.within == has[i].arg;
        if (lies_within && !shared) report(e, "must write {} in place", name(has[k]));
        if (lies_within || !shared || (!has[i].changes() && !has[k].changes())) continue;
        if (has[i].writes() && has[k].writes())
          report(e, "writes {} twice", name(has[i]));
        else
          report(e, "changes {} while it reads it", name(has[i]));
      }
  }

  // Returns whether a lifetime is long enough. Values of a micro-batch may outlive an instance in a pipeline.
  bool lives(Lifetime has, Lifetime wanted) const {
    return has == wanted || (t_.pipelined() && has == Lifetime::kMicroBatch && wanted == Lifetime::kTransient);
  }

  bool fits(const Expanded& e, const Use& use, const Need& need) {
    const Buffer& b = p_.buffers[static_cast<std::size_t>(use.buffer)];
    const Operand& want = need.operand;
    if (b.place != need.place) {
      report(e, "operand {} is in the memory of the {}, but this op needs it in that of the {}", b.name,
             name_of(b.place), name_of(need.place));
      return false;
    }
    if (b.dtype != need.dtype || b.elements != need.elements || !lives(b.lifetime, need.lifetime)) {
      report(e, "operand {} ({} x {}) cannot hold {} ({} x {})", b.name, b.elements, name_of(b.dtype),
             name_of(want.value), need.elements, name_of(need.dtype));
      return false;
    }
    // The executor finds an op's piece by this field.
    if (const std::int64_t piece = piece_apart(p_, want) ? want.portion : -1; b.portion != piece) {
      const auto rows = [](std::int64_t n) { return n < 0 ? "all rows" : fmt::format("piece {} of the rows", n); };
      report(e, "operand {} is for {} where it must be for {}", b.name, rows(b.portion), rows(piece));
      return false;
    }
    if (of_unit(want.value) && b.extent != need.extent) {
      report(e, "operand {} holds {} of its unit where it needs {}", b.name, name_of(b.extent), name_of(need.extent));
      return false;
    }
    if (use.range != want.range) {
      report(e, "operand {} must be {}", b.name,
             want.range == Range::kAll ? "the whole buffer" : fmt::format("{}[{}]", b.name, name_of(want.range)));
      return false;
    }
    if (b.lifetime == Lifetime::kMicroBatch && (e.micro_batch < 0 || of_unit(want.value))) {
      report(e, "operand {} lives for a micro-batch, but {}", b.name,
             e.micro_batch < 0 ? "this op belongs to no micro-batch" : "the value of a unit must live longer");
      return false;
    }
    if (of_unit(want.value)) {
      // Gathered parameters may have several copies. one_buffer_a_state refuses copies of anything that stays.
      if (b.role != want.value || b.unit != want.layer) {
        report(e, "names {} where it needs {} of {}", b.name, name_of(want.value),
               want.layer >= 0 ? "unit " + p_.units[static_cast<std::size_t>(want.layer)].name : "a unit");
        return false;
      }
    } else if ((want.value == Value::kScalars || class_of(want.value) == ValueClass::kConstant) &&
               b.role != want.value) {
      report(e, "names {} where it needs {}", b.name, name_of(want.value));
      return false;
    }
    return true;
  }

  void read(const Expanded& e, const Use& use, const Need& need) {
    const Operand want = need.operand.as_found();
    if (lifetime_of(t_, want.value) != Lifetime::kTransient) return;
    erase_read(use.buffer, want.portion);
    const Held needed = holding(want, e.micro_batch);
    const std::span<Held> now = held(use.buffer, e.micro_batch, want);
    const auto wrong = std::find_if(now.begin(), now.end(), [&](const Held& piece) { return !(piece == needed); });
    if (wrong != now.end()) {
      report(e, "reads {}, which holds {}, where it needs {}", p_.buffers[static_cast<std::size_t>(use.buffer)].name,
             wrong->text(), needed.text());
    } else if (want.value == Value::kDNormed && chunks_in_[use.buffer] != t_.head_chunks()) {
      report(e, "reads the head's gradient with {} of {} chunks written", chunks_in_[use.buffer], t_.head_chunks());
    }
  }

  void write(const Expanded& e, const Use& use, const Need& need) {
    const Operand& want = need.operand;
    if (need.lifetime != Lifetime::kTransient) return;
    const std::span<Held> now = held(use.buffer, e.micro_batch, want);
    // Each chunk of the head writes its part of one buffer. If another value is written in between, the count starts
    // again.
    if (want.value == Value::kDNormed)
      chunks_in_[use.buffer] =
          now.front().defined && now.front().value == Value::kDNormed ? chunks_in_[use.buffer] + 1 : 1;
    const Held holds = holding(want, e.micro_batch);
    // Tiles of another value, layer or micro-batch may lie where this tile is written (values/tiles.h).
    if (t_.rows.expert_tiles > 1 && tile_of(p_, *e.step, use).number >= 0)
      for (Held& tile : held(use.buffer, e.micro_batch))
        if (!(tile == holds)) tile = {};
    std::fill(now.begin(), now.end(), holds);
    const bool copied =
        is_copy(e.step->op) && p_.buffers[static_cast<std::size_t>(use.buffer)].lifetime == Lifetime::kTransient;
    if ((brought(want) || copied) && !unread_.try_emplace({use.buffer, want.portion}, &e).second)
      report(e, "writes {} again, but no op has read the value that was put there last",
             p_.buffers[static_cast<std::size_t>(use.buffer)].name);
  }

  // Returns whether an operand is a value from other ranks, which an op must read at least once. Two values of a ring
  // need no reader: the rank's own keys, which are also in q|k|v, and the gradients that have returned.
  bool brought(const Operand& o) const {
    return o.value == Value::kParam || o.value == Value::kParamShard || o.value == Value::kKeysAll ||
           o.value == Value::kCountsAll || (o.value == Value::kKeys && o.step > 0) || o.value == Value::kRankRows ||
           o.value == Value::kDRankOut ||
           (t_.shares_experts() && (o.value == Value::kExpertOut || o.value == Value::kDExpertRows)) ||
           (o.value == Value::kDKeysIn && o.step < t_.context_ranks());
  }

  void report_unread() {
    for (const auto& [place, op] : unread_)
      report_all("{}: writes {}, which no op reads", text_of(p_, *op),
                 p_.buffers[static_cast<std::size_t>(place.first)].name);
    unread_.clear();
  }
  // Notes that an op has read a piece or tile of a buffer, or all of them when `portion` is -1.
  void erase_read(int buffer, std::int64_t portion) {
    for (auto unread = unread_.lower_bound({buffer, -1}); unread != unread_.end() && unread->first.first == buffer;) {
      const std::int64_t written = unread->first.second;
      unread = portion < 0 || written < 0 || written == portion ? unread_.erase(unread) : std::next(unread);
    }
  }

  void semantics(const Expanded& e) {
    std::visit(
        Match{
            [&](const Compute& c) { contribution(e, c); },
            [&](const LoadBatch& o) {
              if (o.counts_tokens != p_.has_head())
                report(e,
                       "tokens must be counted on the stage with the head and nowhere else (other stages load with "
                       "counts_tokens=0)");
              if (!scalars_zeroed_) report(e, "the step's sums were not zeroed before");
              // The loader delivers micro-batches in order.
              if (e.micro_batch != static_cast<std::int64_t>(loaded_.size()))
                report(e, "loads micro-batch {}, but the next one to load is {}", e.micro_batch, loaded_.size());
              loaded_.insert(e.micro_batch);
            },
            [&](const ZeroFill&) { zero_fill(e); },
            [&](const SumSquares&) { count(e); },
            [&](const ClipScale&) { clip(e); },
            [&](const OptimizerStep&) { update(e); },
            [&](const AllReduce& o) {
              if (o.payload == Payload::kLoad)
                join_routers(e, o.axis);
              else if (o.payload != Payload::kUnit)
                exchange(e, o.axis, !t_.sharded_rows());
              else
                units_.reduce(e, o.axis, false, false);
            },
            [&](const ReduceScatter& o) {
              if (o.payload == Payload::kDKeys)
                exchange_keys(e, o.axis, false);
              else if (o.payload != Payload::kUnit)
                exchange(e, o.axis, t_.sharded_rows());
              else
                units_.reduce(e, o.axis, true, e.step->updates(Arg::kTo));
            },
            [&](const AllGather& o) {
              if (o.payload == Payload::kKeys)
                exchange_keys(e, o.axis, false);
              else if (o.payload == Payload::kCounts)
                join_routers(e, o.axis);
              else if (o.payload == Payload::kOffsets)
                exchange_experts(e, o.axis);
              else if (o.payload != Payload::kUnit)
                exchange(e, o.axis, o.payload == Payload::kHead || t_.sharded_rows());
              else
                units_.gather(e, o.axis);
            },
            [&](const AllToAll& o) { exchange_experts(e, o.axis); },
            [&](const Send& o) { message(e, 0, o.payload, o.layer); },
            [&](const Receive& o) { message(e, 1, o.payload, o.layer); },
            [&](const RingExchange& o) { exchange_keys(e, o.axis, true); },
            [&](const CopyToHost& o) {
              if (o.payload == Payload::kUnit) return units_.copy_gradient(e, e.step->updates(Arg::kTo));
              copy_activations(e);
            },
            [&](const CopyToDevice& o) {
              o.payload == Payload::kUnit ? units_.copy_parameters(e) : copy_activations(e);
            },
            [&](const Cast& o) { units_.cast(e, o); },
            [&](const ReduceScalars& o) { reduce_scalars(e, o); },
            [&](const SetFlag&) {
              if (!clipped_) report(e, "runs before clip_scale");
              agreed_ = true;
            },
            [&](const SetClock& o) {
              if (o.khz < 1 || o.khz > kMostKhz)
                report(e, "sets a clock of {} kHz, which is not between 1 kHz and {} GHz", o.khz, kMostKhz / 1'000'000);
              if (e.step->unless) report(e, "sets the clock unless a flag is set; a clock must be set in every step");
            },
        },
        e.step->op);
  }

  void contribution(const Expanded& e, const Compute& c) {
    const PartDeclaration& part = declaration_of(c.part);
    const arch::Parts head = arch::parts_of_head(p_.arch, t_.tensor());
    if (part.standing == Standing::kHead && std::find(head.begin(), head.end(), c.part) == head.end())
      report(e, "does not fit this program, in which the vocabulary is {}",
             t_.tensor() ? "cut over tensor ranks" : "whole on this rank");
    if (part.makes_losses() && !chunks_.insert(c.portion).second)
      report(e, "chunk {} of the head runs twice", c.portion);
    if (part.ring_step && (c.portion >= 0) != t_.ring())
      report(e, "computes attention {}, but in this program it is computed {}",
             c.portion >= 0 ? "step by step" : "at once", t_.ring() ? "step by step in a ring" : "at once");
    if (detail::adds_losses(c) && !losses_.add(c, e.micro_batch))
      report(e, "runs a second time, and adds its losses again");
    if (!is_backward(c.pass)) return;
    if ((c.pass != Pass::kBackward) && !t_.halves)
      report(e,
             "is half of a backward, but here backwards must run whole, because layers share the gradient of the "
             "residual stream");
    const std::tuple half{static_cast<int>(c.part), c.layer, c.portion, e.micro_batch};
    if (c.pass == Pass::kBackwardInput && !inputs_.insert(half).second) report(e, "runs a second time");
    if (c.pass == Pass::kBackwardWeights && !inputs_.count(half)) report(e, "runs before the input's half");
    units_.add(e, c);
  }

  // Checks a message; operands() has checked before that it crosses a boundary of this stage.
  void message(const Expanded& e, int receives, Payload payload, std::int64_t layer) {
    if (!messages_.emplace(receives, static_cast<int>(payload), layer, e.micro_batch).second)
      report(e, "sends or receives the same value a second time");
  }

  std::size_t micro_batches() const { return t_.trains() ? static_cast<std::size_t>(t_.micro_batches) : 1; }

  void zero_fill(const Expanded& e) {
    const int u = unit_of_step(p_, *e.step);
    const bool padding = std::get<ZeroFill>(e.step->op).padding;
    if (u >= 0) {
      units_.clear(e, u, padding);
    } else {
      if (padding) report(e, "clears the padding of the step's sums, which have none");
      if (scalars_zeroed_) report(e, "clears the step's sums a second time");
      scalars_zeroed_ = true;
    }
  }

  // Checks the exchange of a value between tensor ranks; the operands say which value it is.
  void exchange(const Expanded& e, Axis axis, bool fits_layout) {
    if (!t_.tensor()) report(e, "there are no tensor ranks to exchange with");
    if (axis != Axis::kTp) report(e, "activations must be exchanged over the axis tp");
    if (!fits_layout)
      report(e, "does not fit this program, in which the residual stream is {}",
             t_.sharded_rows() ? "cut by rows" : "whole on every tensor rank");
  }
  // Checks the sum of loads and the exchange of counts, from which routers learn of whole sequences.
  void join_routers(const Expanded& e, Axis axis) {
    if (!t_.context()) report(e, "there are no context ranks that share a sequence");
    if (axis != Axis::kCp) report(e, "what routers find in parts of a sequence must be joined over the axis cp");
  }
  void exchange_experts(const Expanded& e, Axis axis) {
    if (!t_.shares_experts()) report(e, "there are no expert ranks to exchange with");
    if (axis != Axis::kEp) report(e, "rows of experts must be exchanged over the axis ep");
  }
  void exchange_keys(const Expanded& e, Axis axis, bool ring) {
    if (!t_.context()) report(e, "there are no context ranks to exchange with");
    if (ring != t_.ring())
      report(e, "does not fit this program, in which context ranks {}",
             ring ? "gather keys and values" : "pass keys and values on in a ring");
    if (axis != Axis::kCp) report(e, "keys and values must be exchanged over the axis cp");
  }

  // Checks copies of activations; operands() has followed the value to the host and back.
  void copy_activations(const Expanded& e) {
    if (!t_.offload.activations) report(e, "copies activations, but here activations stay on the device");
  }

  void count(const Expanded& e) {
    if (!scalars_zeroed_) report(e, "the step's sums were not zeroed before");
    if (clipped_ || !summed_over_[kSumSquares].empty()) report(e, "comes too late for the gradient norm");
    units_.count(e);
  }

  void update(const Expanded& e) {
    if (!clipped_) report(e, "runs before the clipping scale is known");
    if (!agreed_) report(e, "runs before the ranks have agreed that the gradient is finite");
    units_.update(e);
  }

  void reduce_scalars(const Expanded& e, const ReduceScalars& o) {
    if (clipped_) report(e, "comes after the sums were used");
    for (std::int64_t i = o.first; i < o.first + o.count; ++i) {
      const auto sums = sums_of(p_.arch);
      if (std::find(sums.begin(), sums.end(), i) == sums.end()) {
        report(e, "scalar {} is no sum", i);
        continue;
      }
      auto& axes = summed_over_[static_cast<std::size_t>(i)];
      const std::vector<Axis> wanted = detail::axes_of_sum(t_, i);
      if (std::find(axes.begin(), axes.end(), o.axis) != axes.end()) report(e, "reduces the sum {} a second time", i);
      if (wanted.empty())
        report(e, "reduces the sum {} over {}, but every rank has the whole sum", i, name_of(o.axis));
      else if (std::find(wanted.begin(), wanted.end(), o.axis) == wanted.end())
        report(e, "the sum {} must be reduced over {}", i, name_of(wanted.front()));
      axes.push_back(o.axis);
    }
  }

  void clip(const Expanded& e) {
    if (clipped_) report(e, "runs a second time");
    for (const Scalar i : sums_of(p_.arch))
      if (summed_over_[static_cast<std::size_t>(i)].size() < detail::axes_of_sum(t_, i).size())
        report(e, "uses the sum {}, which is not reduced over the ranks", static_cast<int>(i));
    units_.clip(e);
    clipped_ = true;
  }

  void totals() {
    report_unread();
    const bool reads = p_.embeds() || p_.has_head() || t_.documents || p_.arch.sparse();
    const std::size_t loads = reads ? micro_batches() : 0;
    if (loaded_.size() != loads)
      report_all("the program loads {} micro-batches where the batch needs {}", loaded_.size(), loads);
    if (const std::size_t needed = detail::messages_needed(p_, t_); messages_.size() != needed)
      report_all("{} messages between stages where {} are needed", messages_.size(), needed);
    if (!t_.trains()) {
      if (p_.has_head() && static_cast<std::int64_t>(chunks_.size()) != t_.head_chunks())
        report_all("the head leaves out chunks");
      return;
    }
    for (const std::string& what : losses_.missing(p_, t_.micro_batches, kMaxFindings)) report_all("{}", what);
    units_.totals();
  }

  void races() {
    for (const auto& [op, other] : unordered(p_, ops_)) {
      if (findings_.size() >= kMaxFindings) return;
      const Expanded &e = ops_[static_cast<std::size_t>(op)], &before = ops_[static_cast<std::size_t>(other)];
      const auto axis = axis_of(e.step->op);
      if (axis && axis == axis_of(before.step->op))
        report(e, "does not wait for {}, which communicates over the same axis, {}, on another stream",
               text_of(p_, before), name_of(*axis));
      else
        report(e, "does not wait for {}, which uses the same buffer on another stream", text_of(p_, before));
    }
  }

  const Program& p_;
  const Traits t_;
  std::vector<Expanded> ops_;
  Slots slots_;
  std::size_t pieces_;      // pieces of rows, or tiles of experts; 1 when rows are whole
  std::vector<Held> held_;  // by place, and piece or tile
  Needs needs_;
  GradientTracker units_;
  std::set<std::tuple<int, int, std::int64_t, std::int64_t>> messages_;
  std::set<std::tuple<int, std::int64_t, std::int64_t, std::int64_t>>
      inputs_;  // first halves of backwards that have run: part, layer, chunk, micro-batch
  std::set<std::int64_t> chunks_, loaded_;
  detail::LossesOfLayers losses_;
  // The buffers from other ranks that no op has read, with their pieces or tiles (-1: all), and the ops that wrote
  // them.
  std::map<std::pair<int, std::int64_t>, const Expanded*> unread_;
  std::vector<std::size_t> sound_;         // operands of the present op that hold what they must
  std::map<int, std::int64_t> chunks_in_;  // how many chunks of the head's gradient a buffer holds
  std::array<std::vector<Axis>, kNumScalars> summed_over_;
  bool scalars_zeroed_ = false, clipped_ = false, agreed_ = false;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> verify(const Program& program, std::optional<Bytes> device_memory) {
  std::vector<Finding> findings = Verifier(program).run();
  for (std::string& error : type_errors(program)) findings.push_back({std::move(error)});
  if (findings.empty() && device_memory) {
    const MemoryPlan plan = plan_memory(program);
    if (plan.peak > *device_memory)
      findings.push_back(
          {fmt::format("needs {} of memory where the device has {}", human(plan.peak), human(*device_memory))});
  }
  return findings;
}

}  // namespace molen::program
