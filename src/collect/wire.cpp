#include "collect/wire.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/json_fields.h"

namespace molen::collect {
namespace {

constexpr int kDepthOfLines = 5;  // a question, its settings, a list, an element, and one to spare for the message

const std::vector<std::string> kHelloKeys{"molen_energy", "node", "proof"};
const std::vector<std::string> kBatchKeys{"session", "seq", "periods", "events"};
const std::vector<std::string> kPeriodKeys{"scope",  "start",   "end", "joules", "reason", "meter",
                                           "source", "counted", "job", "step",   "user"};
const std::vector<std::string> kEventKeys{"time", "kind", "text", "count"};
const std::vector<std::string> kAnswerKeys{"welcome", "session", "ack", "refused", "limits", "seconds", "proof"};

std::string with_newline(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

energy::Source source_named(const std::string& name, const std::string& origin) {
  for (const auto source :
       {energy::Source::kCounter, energy::Source::kPower, energy::Source::kModel, energy::Source::kNone})
    if (name == energy::name_of(source)) return source;
  throw UsageError("{}: 'source' must be counter, power, model or none", origin);
}

Json to_json(const Period& p) {
  Json json{{"scope", p.scope}, {"start", p.start_s}, {"end", p.end_s}};
  json["joules"] = p.joules ? Json(*p.joules) : Json();
  if (!p.joules) json["reason"] = p.reason;
  json["meter"] = p.meter;
  json["source"] = energy::name_of(p.source);
  json["counted"] = p.counted;
  for (const auto& [key, name] : {std::pair("job", &p.job), std::pair("step", &p.step), std::pair("user", &p.user)})
    if (!name->empty()) json[key] = *name;
  return json;
}

Json to_json(const Event& e) {
  return {{"time", e.time_s}, {"kind", e.kind}, {"text", e.text}, {"count", e.count}};
}

Period period_of(const Json& json, const std::string& origin) {
  const JsonFields fields(json, origin);
  fields.require_known(kPeriodKeys);
  // Null is a statement here; a key that was forgotten is not.
  const Json& joules = json_member(json, "joules", origin);
  Period p;
  p.scope = fields.text("scope");
  p.start_s = fields.number("start");
  p.end_s = fields.number("end");
  if (!joules.is_null()) p.joules = fields.number("joules");
  p.reason = fields.text("reason", "");
  p.meter = fields.text("meter");
  p.source = source_named(fields.text("source"), origin);
  p.counted = fields.boolean("counted");
  p.job = fields.text("job", "");
  p.step = fields.text("step", "");
  p.user = fields.text("user", "");
  return p;
}

Event event_of(const Json& json, const std::string& origin) {
  const JsonFields fields(json, origin);
  fields.require_known(kEventKeys);
  Event e;
  e.time_s = fields.number("time");
  e.kind = fields.text("kind");
  e.text = fields.text("text", "");
  e.count = fields.integer("count", 0);
  return e;
}

// Calls f(element, origin) for each element of the list `key`, which may be absent.
template <class F>
void each_record(const Json& json, const char* key, const std::string& origin, F f) {
  const auto found = json.find(key);
  if (found == json.end()) return;
  if (!found->is_array()) throw UsageError("{}: '{}' must be a list", origin, key);
  if (found->size() > kMostRecords)
    throw UsageError("{}: '{}' has {} records; {} are the most", origin, key, found->size(), kMostRecords);
  for (std::size_t i = 0; i < found->size(); ++i) f((*found)[i], fmt::format("{}: {}[{}]", origin, key, i));
}

std::string proof_of(const JsonFields& fields) {
  std::string proof = fields.text("proof", "");
  if (!proof.empty() && proof.size() != kProofBytes)
    throw UsageError("{}: 'proof' must have {} bytes, has {}", fields.origin(), kProofBytes, proof.size());
  return proof;
}

}  // namespace

std::string hello_line(const Hello& hello) {
  Json json{{"molen_energy", hello.protocol}, {"node", hello.node}};
  if (!hello.proof.empty()) json["proof"] = hello.proof;
  return with_newline(json);
}

std::string batch_line(const Batch& batch) {
  if (const std::string wrong = wrong_with(batch); !wrong.empty()) throw Error("a batch to send: {}", wrong);
  Json json{{"session", batch.session}, {"seq", batch.seq}};
  Json periods = Json::array(), events = Json::array();
  for (const Period& p : batch.periods) periods.push_back(to_json(p));
  for (const Event& e : batch.events) events.push_back(to_json(e));
  if (!periods.empty()) json["periods"] = std::move(periods);
  if (!events.empty()) json["events"] = std::move(events);
  std::string line = with_newline(json);
  if (line.size() > kMostLineBytes)
    throw Error("a batch to send has {} bytes; {} are the most: send fewer records together", line.size(),
                kMostLineBytes);
  return line;
}

std::string welcome_line(int protocol) {
  return with_newline({{"welcome", protocol}});
}

std::string ask_line(const Limitable& limits, const std::string& nonce) {
  return with_newline({{"limitable", to_json(limits)}, {"nonce", nonce}});
}

std::string limits_line(const LimitOrder& order, const std::string& proof) {
  Json json{{"limits", to_json(order.limits)}};
  json["seconds"] = order.seconds;
  if (!proof.empty()) json["proof"] = proof;
  return with_newline(json);
}

std::string stored_line(const std::string& session, std::int64_t seq) {
  return with_newline({{"session", session}, {"ack", seq}});
}

std::string refused_line(std::string_view reason) {
  return with_newline({{"refused", as_text(reason)}});
}

Hello parse_hello(std::string_view line, const std::string& origin) {
  const Json json = parse_json(line, origin, kDepthOfLines);
  const JsonFields fields(json, origin);
  // The protocol comes first: another one may have other keys.
  const std::int64_t protocol = fields.integer("molen_energy");
  if (protocol != kProtocol && protocol != kLimitProtocol)
    throw UsageError("{}: the node speaks protocol {} and this collector {} and {}: use molen of one version", origin,
                     protocol, kProtocol, kLimitProtocol);
  fields.require_known(kHelloKeys);
  Hello hello{fields.text("node"), proof_of(fields), static_cast<int>(protocol)};
  if (!is_name(hello.node))
    throw UsageError("{}: 'node' must be 1 to {} printable ASCII characters without spaces", origin, kMostNameBytes);
  if (hello.node.starts_with(kCapPrefix))
    throw UsageError("{}: 'node' begins with {}, which is for the events of a manager", origin, kCapPrefix);
  return hello;
}

namespace {

Batch batch_of(const Json& json, const std::string& node, const std::string& origin) {
  const JsonFields fields(json, origin);
  fields.require_known(kBatchKeys);
  Batch batch;
  batch.node = node;
  batch.session = fields.text("session");
  batch.seq = fields.integer("seq");
  each_record(json, "periods", origin,
              [&](const Json& j, const std::string& at) { batch.periods.push_back(period_of(j, at)); });
  each_record(json, "events", origin,
              [&](const Json& j, const std::string& at) { batch.events.push_back(event_of(j, at)); });
  if (const std::string wrong = wrong_with(batch); !wrong.empty()) throw UsageError("{}: {}", origin, wrong);
  return batch;
}

}  // namespace

Batch parse_batch(std::string_view line, const std::string& node, const std::string& origin) {
  return batch_of(parse_json(line, origin, kDepthOfLines), node, origin);
}

NodeLine parse_node_line(std::string_view line, const std::string& node, int protocol, const std::string& origin) {
  const Json json = parse_json(line, origin, kDepthOfLines);
  if (protocol != kLimitProtocol || !json.is_object() || !json.contains("limitable"))
    return batch_of(json, node, origin);
  const JsonFields fields(json, origin);
  fields.require_known(std::vector<std::string>{"limitable", "nonce"});
  Ask ask{limitable_of(json["limitable"], origin + ": limitable"), fields.text("nonce")};
  if (!is_name(ask.nonce))
    throw UsageError("{}: 'nonce' must be 1 to {} printable ASCII characters without spaces", origin, kMostNameBytes);
  return ask;
}

Answer parse_answer(std::string_view line, const std::string& origin) {
  const Json json = parse_json(line, origin, kDepthOfLines);
  const JsonFields fields(json, origin);
  fields.require_known(kAnswerKeys);
  Answer answer;
  if (fields.find("refused") != nullptr) {
    answer.kind = Answer::Kind::kRefused;
    answer.reason = as_text(fields.text("refused"));
  } else if (fields.find("ack") != nullptr) {
    answer.kind = Answer::Kind::kStored;
    answer.session = fields.text("session");
    answer.ack = fields.integer("ack");
    if (!is_name(answer.session) || answer.ack < 1) throw UsageError("{}: the answer names no batch", origin);
  } else if (fields.find("limits") != nullptr) {
    answer.kind = Answer::Kind::kLimits;
    answer.order = {limits_of(json["limits"], origin + ": limits"), fields.number("seconds")};
    answer.proof = proof_of(fields);
    if (!(answer.order.seconds >= 0 && answer.order.seconds <= kLongestLimitS))
      throw UsageError("{}: 'seconds' must be 0 to {:g}, is {:g}", origin, kLongestLimitS, answer.order.seconds);
  } else {
    const std::int64_t protocol = fields.integer("welcome");
    if (protocol != kProtocol && protocol != kLimitProtocol)
      throw UsageError("{}: the collector speaks protocol {} and this node {} and {}: use molen of one version", origin,
                       protocol, kProtocol, kLimitProtocol);
    answer.protocol = static_cast<int>(protocol);
  }
  return answer;
}

void LineBuffer::append(std::string_view bytes) {
  MOLEN_CHECK(bytes.size() <= room(), "{} bytes for a buffer with room for {}", bytes.size(), room());
  bytes_.erase(0, std::exchange(begin_, 0));
  bytes_.append(bytes);
}

std::optional<std::string_view> LineBuffer::next() {
  const std::size_t end = bytes_.find('\n', begin_);
  if (end == std::string::npos) return std::nullopt;
  const std::string_view line = std::string_view(bytes_).substr(begin_, end - begin_);
  begin_ = end + 1;
  return line;
}

}  // namespace molen::collect
