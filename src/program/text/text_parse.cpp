#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_map>

#include "arch/json.h"
#include "base/error.h"
#include "base/json.h"
#include "base/suggest.h"
#include "program/parts/part.h"
#include "program/text/text.h"
#include "program/text/text_buffers.h"
#include "program/text/text_detail.h"
#include "program/values/attributes.h"
#include "program/values/costs.h"
#include "program/values/of_setting.h"
#include "program/values/optimizer.h"
#include "program/values/signature.h"

namespace molen::program {
namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 50;

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : text) {
    if (c == separator) {
      parts.push_back(part);
      part.clear();
    } else {
      part += c;
    }
  }
  parts.push_back(part);
  return parts;
}

// Limit on the words of a line. A schedule has the most words, one for each instance.
constexpr std::size_t kMaxWords = (std::size_t{1} << 20) + 1;

// Splits a line at white space. Returns kMaxWords + 1 words when there are more than kMaxWords.
std::vector<std::string> words(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r\v\f";
  std::vector<std::string> found;
  for (std::size_t at = line.find_first_not_of(kSpace); at < line.size() && found.size() <= kMaxWords;) {
    const std::size_t end = std::min(line.find_first_of(kSpace, at), line.size());
    found.emplace_back(line.substr(at, end - at));
    at = line.find_first_not_of(kSpace, end);
  }
  return found;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view origin) : origin_(origin), text_(text) {}

  Program run() {
    constexpr std::string_view kBuffer = "buffer ";
    std::size_t buffers = 0;
    for (std::size_t at = text_.find(kBuffer); at < text_.size(); at = text_.find(kBuffer, at + 1)) ++buffers;
    buffers_.reserve(buffers);
    bool versioned = false;
    for (std::size_t at = 0; at <= text_.size();) {
      const std::size_t end = std::min(text_.find('\n', at), text_.size());
      std::string_view line = text_.substr(at, end - at);
      at = end + 1;
      ++number_;
      // '#' starts a comment. No name contains it, but the JSON of the arch line may.
      if (!line.starts_with("arch ")) line = line.substr(0, line.find('#'));
      const auto w = words(line);
      if (w.empty()) continue;
      if (w.size() > kMaxWords) fail(fmt::format("more than {} words on a line", kMaxWords));
      if (!versioned) {
        if (w.size() != 2 || w[0] != "molen-program") fail("expected 'molen-program 16'");
        if (w[1] != "16")
          fail(fmt::format(
              "is of version {}, and this molen reads version 16: `molen program CONFIG` prints the program "
              "of a configuration anew",
              w[1]));
        versioned = true;
      } else {
        statement(line, w);
      }
    }
    finish();
    return std::move(program_);
  }

 private:
  // The line of a buffer, whose words from `first` on are fields. Split lines of all buffers at once would take several
  // times the memory of the text.
  struct Fields {
    std::string_view line;
    std::size_t first, number;
  };
  struct PendingRef {
    std::size_t body, step;
    std::string text;
    std::size_t line;
  };

  [[noreturn]] void fail(const std::string& what) const { throw UsageError("{}:{}: {}", origin_, number_, what); }
  std::string where() const { return fmt::format("{}:{}", origin_, number_); }

  void statement(std::string_view line, const std::vector<std::string>& w) {
    if ((w[0] == "arch" && have_arch_) || (w[0] == "setting" && have_setting_)) fail("a second '" + w[0] + "' line");
    if (w[0] == "arch") {
      program_.arch = arch::architecture_from_json(parse_json(line.substr(5), where()), where() + ": arch");
      have_arch_ = true;
    } else if (w[0] == "setting") {
      program_.setting = detail::setting_from_text(pairs(w, 1), where());
      have_setting_ = true;
      setting_line_ = number_;
    } else if (w[0] == "buffer") {
      buffer(line, w);
    } else if (w[0] == "body") {
      if (w.size() != 2) fail("expected 'body NAME'");
      if (body_index(w[1]) >= 0) fail("body '" + w[1] + "' appears twice");
      bodies_.emplace(w[1], static_cast<int>(program_.bodies.size()));
      program_.bodies.push_back({w[1], {}});
      labels_.emplace_back();
    } else if (w[0][0] == '%') {
      step(w);
    } else if (w[0] == "schedule") {
      schedule(w);
    } else {
      fail("unknown statement '" + w[0] + "'");
    }
  }

  std::map<std::string, std::string> pairs(const std::vector<std::string>& w, std::size_t first) const {
    std::map<std::string, std::string> result;
    for (std::size_t i = first; i < w.size(); ++i) {
      const auto equals = w[i].find('=');
      if (equals == std::string::npos) fail("expected key=value, got '" + w[i] + "'");
      if (!result.emplace(w[i].substr(0, equals), w[i].substr(equals + 1)).second)
        fail("'" + w[i].substr(0, equals) + "' appears twice");
    }
    return result;
  }

  template <class T>
  T number(const std::string& text, T low, T high) const {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value >= low) || !(value <= high))
      fail("'" + text + "' is not a number in the allowed range");
    return value;
  }

  void buffer(std::string_view line, const std::vector<std::string>& w) {
    const bool host = w.size() > 5 && w[5] == name_of(Place::kHost);
    const std::size_t fields = host ? 6 : 5;
    if (w.size() < fields)
      fail("expected 'buffer NAME DTYPE ELEMENTS persistent|transient|external|micro_batch [host] role=VALUE ...'");
    if (!buffers_.emplace(w[1], static_cast<int>(program_.buffers.size())).second)
      fail("buffer '" + w[1] + "' appears twice");
    Buffer& b = program_.buffers.emplace_back();
    b.name = w[1];
    b.dtype = dtype(w[2]);
    b.elements = number<std::int64_t>(w[3], 0, kMaxElements);
    b.lifetime = choice<Lifetime>(w[4], kAllLifetimes, "lifetime");
    b.place = host ? Place::kHost : Place::kDevice;
    fields_.push_back({line, fields, number_});
  }

  DType dtype(const std::string& name) const {
    try {
      return dtype_from_name(name);
    } catch (const UsageError& error) {
      fail(error.what());
    }
  }

  int body_index(const std::string& name) const {
    const auto found = bodies_.find(name);
    return found == bodies_.end() ? -1 : found->second;
  }

  Arg arg(const std::string& name) const {
    if (const auto known = arg_named(name)) return *known;
    std::vector<std::string> names;
    for (const ArgInfo& info : kArgs) names.emplace_back(info.name);
    fail("no op has an operand '" + name + "'" + did_you_mean(name, names));
  }

  void add_operands(const std::string& text, Access access, std::vector<Use>& operands) const {
    for (std::string name : split(text, ',')) {
      Use use;
      use.access = access;
      const auto colon = name.find(':');
      if (colon == std::string::npos) fail("expected OPERAND:BUFFER, got '" + name + "'");
      use.arg = arg(name.substr(0, colon));
      name.erase(0, colon + 1);
      use.type = type(name);
      if (const auto bracket = name.find('['); bracket != std::string::npos && name.back() == ']') {
        use.range = choice<Range>(name.substr(bracket + 1, name.size() - bracket - 2),
                                  std::array{Range::kShard, Range::kOwn, Range::kReplicated}, "range");
        name.resize(bracket);
      }
      const auto found = buffers_.find(name);
      if (found == buffers_.end()) {
        std::vector<std::string> names;
        for (const auto& b : program_.buffers) names.push_back(b.name);
        fail("no buffer '" + name + "'" + did_you_mean(name, names));
      }
      use.buffer = found->second;
      operands.push_back(use);
    }
  }

  // Removes "{AXIS=TYPE;...}" from the end of an operand and returns that type.
  MeshType type(std::string& name) const {
    const auto brace = name.find('{');
    if (brace == std::string::npos || name.back() != '}') return unstated_type(program_.setting.mesh);
    const std::string text = name.substr(brace + 1, name.size() - brace - 2);
    name.resize(brace);
    try {
      return mesh_type_from_text(text, program_.setting.mesh);
    } catch (const UsageError& error) {
      fail(error.what());
    }
  }

  template <class E, class Names>
  E choice(const std::string& text, Names values, const char* what) const {
    for (const E e : values)
      if (name_of(e) == text) return e;
    fail(fmt::format("unknown {} '{}'", what, text));
  }

  static std::string take(std::map<std::string, std::string>& values, const std::string& key,
                          const std::string& fallback) {
    const auto found = values.find(key);
    if (found == values.end()) return fallback;
    std::string value = found->second;
    values.erase(found);
    return value;
  }

  bool flag(std::map<std::string, std::string>& v, const char* key) const {
    return number<int>(take(v, key, "0"), 0, 1) == 1;
  }

  Axis axis(std::map<std::string, std::string>& v) const { return choice<Axis>(take(v, "axis", ""), kAllAxes, "axis"); }

  // Whether the value belongs to a layer alone, and is not what one layer hands to the next.
  static bool in_a_layer(Payload m) {
    return !one_of(m, {Payload::kUnit, Payload::kResidual, Payload::kDResidual, Payload::kHead});
  }

  template <class O>
  void moved(std::map<std::string, std::string>& v, O& o) const {
    o.payload = choice<Payload>(take(v, "payload", "unit"), kAllPayloads, "value to move");
    if (std::ranges::count(kPayloadsOfExperts, o.payload) > 0 && !program_.arch.sparse())
      fail(fmt::format("the model has no experts, and so no {}", name_of(o.payload)));
    if (o.payload != Payload::kUnit)
      o.layer = number<std::int64_t>(take(v, "layer", ""), 0,
                                     o.payload == Payload::kHead ? program_.setting.head_chunks() - 1
                                                                 : program_.arch.layers - in_a_layer(o.payload));
    if constexpr (std::is_same_v<O, AllToAll>) {
      if (v.count("expert_tile")) o.portion = tile(v);
    } else if constexpr (requires { o.portion; }) {
      if (v.count("piece")) o.portion = piece(v);
    }
  }

  std::int64_t piece(std::map<std::string, std::string>& v) const {
    return number<std::int64_t>(take(v, "piece", ""), 0, program_.setting.tensor_chunks - 1);
  }
  std::int64_t tile(std::map<std::string, std::string>& v) const {
    return number<std::int64_t>(take(v, "expert_tile", ""), 0, program_.setting.expert_tiles - 1);
  }

  static bool one_of(Payload payload, std::initializer_list<Payload> known) {
    return std::find(known.begin(), known.end(), payload) != known.end();
  }

  template <class O>
  Op copied(std::map<std::string, std::string>& v, O o) const {
    moved(v, o);
    const bool kept = std::find(kKeptForBackward.begin(), kKeptForBackward.end(), o.payload) != kKeptForBackward.end();
    if (o.payload != Payload::kUnit && !kept) fail(fmt::format("no layer keeps {} for backward", name_of(o.payload)));
    return o;
  }

  template <class M>
  Op message(std::map<std::string, std::string>& v) const {
    M m;
    moved(v, m);
    if (m.payload != Payload::kResidual && m.payload != Payload::kDResidual) fail("stages send each other x and d_x");
    m.peer = number<int>(take(v, "peer", ""), 0, program_.setting.stages() - 1);
    return m;
  }

  Op compute(Pass pass, std::map<std::string, std::string>& v) const {
    Compute c;
    c.pass = pass;
    const std::string part = take(v, "part", "");
    bool known = false;
    for (const arch::Part p : arch::kAllParts)
      if (arch::name_of(p) == part) {
        c.part = p;
        known = true;
      }
    if (!known) fail("unknown part '" + part + "'");
    if (!program_.arch.sparse() && std::ranges::count(arch::kSharingBlock, c.part) > 0)
      fail("the model has no experts, and so no part " + part);
    if (!program_.arch.drops_tokens() && c.part == arch::Part::kLimit)
      fail("the model's experts have no capacity, and so no part " + part);
    const PartDeclaration& d = declaration_of(c.part);
    if (d.in_layer()) c.layer = number<std::int64_t>(take(v, "layer", ""), 0, program_.arch.layers - 1);
    if ((pass == Pass::kBackward || pass == Pass::kBackwardInput) && !d.has_backward()) fail(part + " has no backward");
    if (pass == Pass::kBackwardInput && !d.in_layer()) fail(part + " has no half of its backward");
    if (pass == Pass::kBackwardWeights && !d.halves) fail(part + " has no half of its backward");
    if (d.standing == Standing::kHead)
      c.portion = number<std::int64_t>(take(v, "chunk", ""), 0, program_.setting.head_chunks() - 1);
    if (d.ring_step && v.count("step"))
      c.portion = number<std::int64_t>(take(v, "step", ""), 0, program_.setting.context_ranks() - 1);
    if (d.halves && v.count("piece")) c.portion = piece(v);
    if (d.computes_experts() && v.count("expert_tile")) c.portion = tile(v);
    return c;
  }

  Op optimizer_step(std::map<std::string, std::string>& v) const {
    OptimizerStep o;
    o.kind = take(v, "kind", o.kind);
    const std::string stage = take(v, "stage", std::string(name_of(o.stage)));
    const auto found = std::find_if(kAllUpdateStages.begin(), kAllUpdateStages.end(),
                                    [&](UpdateStage known) { return name_of(known) == stage; });
    if (found == kAllUpdateStages.end()) fail("unknown stage '" + stage + "' of an update");
    o.stage = *found;
    try {
      optimizer_named(o.kind);
    } catch (const UsageError& error) {
      fail(error.what());
    }
    return o;
  }

  Op all_to_all(std::map<std::string, std::string>& v) const {
    AllToAll o{axis(v)};
    moved(v, o);
    if (!one_of(o.payload, {Payload::kExpertRows, Payload::kExpertOut, Payload::kDExpertOut, Payload::kDExpertRows}))
      fail(fmt::format("expert ranks send each other no {}", name_of(o.payload)));
    return o;
  }

  Op op(const std::string& name, std::map<std::string, std::string>& v) const {
    for (const Pass pass : arch::kAllPasses)
      if (name_of(pass) == name) return compute(pass, v);
    if (name == "load_batch") return LoadBatch{number<int>(take(v, "counts_tokens", "1"), 0, 1) == 1};
    if (name == "zero_fill") return ZeroFill{flag(v, "padding")};
    if (name == "sum_squares") return SumSquares{};
    if (name == "clip_scale") return ClipScale{};
    if (name == "optimizer_step") return optimizer_step(v);
    if (name == "all_reduce") {
      AllReduce o{axis(v)};
      moved(v, o);
      if (!one_of(o.payload, {Payload::kUnit, Payload::kResidual, Payload::kMid, Payload::kDResidual, Payload::kDMid,
                              Payload::kLoad}))
        fail(fmt::format("{} are not summed so", name_of(o.payload)));
      return o;
    }
    if (name == "reduce_scatter") {
      ReduceScatter o{axis(v)};
      moved(v, o);
      if (!one_of(o.payload, {Payload::kUnit, Payload::kResidual, Payload::kMid, Payload::kDResidual, Payload::kDMid,
                              Payload::kDKeys}))
        fail(fmt::format("{} are not summed so", name_of(o.payload)));
      return o;
    }
    if (name == "all_gather") {
      AllGather o{axis(v)};
      moved(v, o);
      if (!one_of(o.payload, {Payload::kUnit, Payload::kResidual, Payload::kMid, Payload::kDResidual, Payload::kDMid,
                              Payload::kHead, Payload::kKeys, Payload::kCounts, Payload::kOffsets}))
        fail(fmt::format("{} are not gathered", name_of(o.payload)));
      return o;
    }
    if (name == "all_to_all") return all_to_all(v);
    if (name == "send") return message<Send>(v);
    if (name == "receive") return message<Receive>(v);
    if (name == "ring_exchange") {
      RingExchange o{axis(v)};
      moved(v, o);
      if (o.payload != Payload::kKeys && o.payload != Payload::kDKeys) fail("a ring passes keys and d_keys on");
      const int last = program_.setting.context_ranks() - (o.payload == Payload::kKeys ? 1 : 0);
      o.step = number<std::int64_t>(take(v, "step", ""), 1, last);
      return o;
    }
    if (name == "copy_to_host") return copied(v, CopyToHost{});
    if (name == "copy_to_device") return copied(v, CopyToDevice{});
    if (name == "cast") {
      constexpr std::array kOver{Axis::kDp, Axis::kShard, Axis::kReplicate, Axis::kExpertDp, Axis::kExpertShard};
      const auto over = choice<Axis>(take(v, "over", ""), kOver, "axis that gradients travel over");
      return Cast{over, flag(v, "back")};
    }
    if (name == "reduce_scalars") {
      const Axis a = axis(v);
      const auto first = number<std::int64_t>(take(v, "first", ""), 0, kNumScalars - 1);
      return ReduceScalars{a, first, number<std::int64_t>(take(v, "count", ""), 1, kNumScalars - first)};
    }
    if (name == "set_flag") return SetFlag{choice<Flag>(take(v, "flag", ""), std::array{Flag::kNonFinite}, "flag")};
    if (name == "set_clock") return SetClock{number<std::int64_t>(take(v, "khz", ""), 1, kMostKhz)};
    fail("unknown op '" + name + "'");
  }

  void step(const std::vector<std::string>& w) {
    if (!have_arch_ || !have_setting_) fail("an op before the arch and setting lines");
    if (program_.bodies.empty()) fail("an op outside of a body");
    if (w.size() < 2) fail("expected '%N OP key=value ...'");
    auto values = pairs(w, 2);
    Body& body = program_.bodies.back();
    if (!labels_.back().emplace(w[0], static_cast<int>(body.steps.size())).second)
      fail("label " + w[0] + " appears twice in this body");
    Step s;
    s.op = op(w[1], values);
    for (const Access access : kAllAccesses)
      if (const std::string t = take(values, std::string(name_of(access)), ""); !t.empty())
        add_operands(t, access, s.operands);
    if (const std::string t = take(values, "after", ""); !t.empty())
      for (const std::string& ref : split(t, ','))
        pending_.push_back({program_.bodies.size() - 1, body.steps.size(), ref, number_});
    s.stream = choice<Stream>(take(values, "stream", ""), kAllStreams, "stream");
    std::vector<Phase> phases;
    for (int i = 0; i < kNumPhases; ++i) phases.push_back(static_cast<Phase>(i));
    s.phase = choice<Phase>(take(values, "phase", ""), phases, "phase");
    if (const std::string t = take(values, "unless", ""); !t.empty())
      s.unless = choice<Flag>(t, std::array{Flag::kNonFinite}, "flag");
    attributes(values, s.op, s.attributes);
    constexpr std::array kCosts{"scratch", "model_flops", "hardware_flops", "moved", "epilogues"};
    if (std::none_of(kCosts.begin(), kCosts.end(), [&](const char* key) { return values.count(key) > 0; }))
      uncosted_.emplace_back(program_.bodies.size() - 1, body.steps.size());
    s.scratch = Bytes(number<std::int64_t>(take(values, "scratch", "0"), 0, kMaxElements));
    s.model_flops = Flops(number<double>(take(values, "model_flops", "0"), 0.0, 1e40));
    s.hardware_flops = Flops(number<double>(take(values, "hardware_flops", "0"), 0.0, 1e40));
    s.moved = Bytes(number<std::int64_t>(take(values, "moved", "0"), 0, std::int64_t{1} << 60));
    s.epilogues = epilogues(take(values, "epilogues", ""));
    if (!values.empty()) fail("unknown key '" + values.begin()->first + "' for " + w[1]);
    s.line.number = number_;
    body.steps.push_back(std::move(s));
  }

  // Parses "KIND:BYTES,KIND:BYTES".
  std::vector<EpilogueCost> epilogues(const std::string& text) const {
    std::vector<EpilogueCost> all;
    if (text.empty()) return all;
    for (const std::string& one : split(text, ',')) {
      const auto colon = one.find(':');
      if (colon == std::string::npos) fail("epilogues=" + text + " must be KIND:BYTES, such as add:4096");
      all.push_back({choice<Epilogue>(one.substr(0, colon), kAllEpilogues, "epilogue"),
                     Bytes(number<std::int64_t>(one.substr(colon + 1), 0, std::int64_t{1} << 60))});
    }
    return all;
  }

  // Attributes that a line leaves out keep the values that mean "none". The verifier says which attributes an op must
  // have.
  void attributes(std::map<std::string, std::string>& v, const Op& op, Attributes& a) const {
    if (const std::string t = take(v, "rows", ""); !t.empty()) {
      const auto cross = t.find('x');
      if (cross == std::string::npos) fail("rows=" + t + " must be SEQUENCES x LENGTH, such as 4x512");
      a.rows.sequences = number<std::int64_t>(t.substr(0, cross), 1, std::int64_t{1} << 30);
      a.rows.length = number<std::int64_t>(t.substr(cross + 1), 1, std::int64_t{1} << 30);
    }
    a.rows.pieces = number<std::int64_t>(take(v, "pieces", "1"), 1, kMaxTensorChunks);
    a.rows.expert_tiles = number<std::int64_t>(take(v, "expert_tiles", "1"), 1, kMaxExpertTiles);
    a.rows.sharded = flag(v, "sharded");
    a.tile = number<std::int64_t>(take(v, "tile", "0"), 0, std::int64_t{1} << 30);
    a.positions = number<std::int64_t>(take(v, "positions", "0"), 0, std::int64_t{1} << 60);
    a.scaled = flag(v, "scaled");
    if (const std::string t = take(v, "compute", ""); !t.empty()) a.compute = dtype(t);
    if (const std::string t = take(v, "kernel", ""); !t.empty()) {
      a.kernel = choice<arch::Kernels>(t, all_kernels(), "kernel");
      const auto* compute = std::get_if<Compute>(&op);
      if (compute && !declaration_of(compute->part).find_kernels(*a.kernel))
        fail(*kernels_refused(*a.kernel, compute->part, {}));
    }
    a.threads = number<int>(take(v, "threads", "0"), 0, 1 << 16);
  }

  void schedule(const std::vector<std::string>& w) {
    if (!program_.schedule.empty()) fail("a second schedule");
    if (!have_setting_) fail("a schedule before the setting line");
    // Bounds the numbers of micro-batches, because each micro-batch has an instance.
    const auto last = std::min<std::int64_t>(program_.setting.micro_batches() - 1, static_cast<std::int64_t>(w.size()));
    for (std::size_t i = 1; i < w.size(); ++i) {
      const auto colon = w[i].find(':');
      Instance instance{body_index(w[i].substr(0, colon)), -1};
      if (instance.body < 0) fail("the schedule names an unknown body '" + w[i] + "'");
      if (colon != std::string::npos) instance.micro_batch = number<std::int64_t>(w[i].substr(colon + 1), 0, last);
      program_.schedule.push_back(instance);
    }
  }

  void finish() {
    if (!have_arch_ || !have_setting_) fail("no arch or no setting line");
    if (program_.schedule.empty()) fail("no schedule");
    number_ = setting_line_;
    Program described = [&] {
      try {
        return describe(program_.arch, program_.setting);
      } catch (const UsageError& error) {
        fail(error.what());
      }
    }();
    program_.local = std::move(described.local);
    program_.parameters = std::move(described.parameters);
    program_.chunks = std::move(described.chunks);
    program_.units = std::move(described.units);
    program_.grid = described.grid;
    program_.optimizer = described.optimizer;
    for (std::size_t b = 0; b < program_.buffers.size(); ++b) set_fields(b);
    for (std::size_t b = 0; b < program_.bodies.size(); ++b)
      for (std::size_t k = 0; k < program_.bodies[b].steps.size(); ++k) {
        number_ = program_.bodies[b].steps[k].line.number;
        set_arguments(program_.bodies[b].steps[k]);
      }
    for (const auto& [b, k] : uncosted_)
      if (Step& step = program_.bodies[b].steps[k]; !attributes_not_asked_for(program_, step))
        set_costs(program_, step);
    for (const PendingRef& ref : pending_) {
      number_ = ref.line;
      const auto dot = ref.text.find(".%");
      const int body = dot == std::string::npos ? -1 : body_index(ref.text.substr(0, dot));
      if (dot != std::string::npos && body < 0) fail("'after' names an unknown body in '" + ref.text + "'");
      const std::string label = dot == std::string::npos ? ref.text : ref.text.substr(dot + 1);
      const auto& labels = labels_[body < 0 ? ref.body : static_cast<std::size_t>(body)];
      const auto found = labels.find(label);
      if (found == labels.end()) fail("'after' names an op that is not there: " + ref.text);
      program_.bodies[ref.body].steps[ref.step].after.push_back({body, found->second});
    }
    if (expanded_size(program_) > kMaxExpanded)
      fail(fmt::format("the schedule expands to more than {} ops and edges", kMaxExpanded));
  }

  // Puts operands into the order of the op's signature, because a text may have them in any order. The verifier checks
  // their accesses.
  void set_arguments(Step& step) const {
    std::vector<Operand> want;
    try {
      want = signature(program_, step.op, unit_of_step(program_, step)).operands;
    } catch (const Error&) {
      return;  // this program cannot have such an op, and the verifier says why
    }
    const auto refuse = [&](const std::string& reason) {
      fail(fmt::format("{}: {}; it {}", kind_of(step.op), reason, text_of(want)));
    };
    std::vector<Use> arranged;
    for (const Operand& o : want) {
      const Use* use = step.find(o.arg);
      if (!use) refuse(fmt::format("no operand '{}'", name_of(o.arg)));
      arranged.push_back(*use);
    }
    for (const Use& use : step.operands) {
      const auto same = [&](const auto& o) { return o.arg == use.arg; };
      if (std::none_of(want.begin(), want.end(), same)) refuse(fmt::format("'{}' is no operand", name_of(use.arg)));
      if (std::count_if(step.operands.begin(), step.operands.end(), same) > 1)
        refuse(fmt::format("operand '{}' appears twice", name_of(use.arg)));
    }
    step.operands = std::move(arranged);
  }

  // Sets the fields of a buffer. Call it when the units that the fields name are known.
  void set_fields(std::size_t buffer) {
    number_ = fields_[buffer].number;
    auto values = pairs(words(fields_[buffer].line), fields_[buffer].first);
    try {
      detail::set_fields(program_, std::move(values), program_.buffers[buffer]);
    } catch (const UsageError& error) {
      fail(error.what());
    }
  }

  std::string origin_;
  std::string_view text_;
  std::size_t number_ = 0, setting_line_ = 0;
  Program program_;
  std::unordered_map<std::string, int> buffers_, bodies_;  // by name
  bool have_arch_ = false, have_setting_ = false;
  std::vector<Fields> fields_;  // by buffer
  std::vector<std::map<std::string, int>> labels_;
  std::vector<PendingRef> pending_;
  std::vector<std::pair<std::size_t, std::size_t>> uncosted_;  // bodies and steps whose lines have no costs
};

}  // namespace

Program parse(std::string_view text, std::string_view origin) {
  if (static_cast<std::int64_t>(text.size()) > kMaxTextBytes)
    throw UsageError("{}: {} bytes, more than the {} of a program", origin, text.size(), kMaxTextBytes);
  return Parser(text, origin).run();
}

}  // namespace molen::program
