#include "program/build/recompute.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"
#include "program/parts/part.h"
#include "program/values/of_setting.h"

namespace molen::program {
namespace {

// The bound on a layer number. arch::validate bounds sizes in the same way.
constexpr std::int64_t kMostLayers = std::int64_t{1} << 31;

std::int64_t every_from_text(std::string_view digits, std::string_view whole) {
  std::int64_t every = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), every);
  if (error != std::errc() || end != digits.data() + digits.size() || every < 1 || every > kMostLayers)
    throw UsageError("'{}': what follows the '/' says every how many layers: a positive integer", whole);
  return every;
}

}  // namespace

Recompute Recompute::full(std::int64_t every) {
  Recompute r;
  for (const arch::Part part : arch::kAllParts)
    if (declaration_of(part).computed_again()) r.add(part);
  r.every = every;
  return r;
}

Makers::Makers(const Program& p, std::int64_t layer) {
  const auto slot = [&](Value v) -> std::optional<Maker>& { return of_.at(static_cast<std::size_t>(v)); };
  for (const arch::Part part : arch::parts_of_layer(p.arch, layer)) {
    const PartDeclaration& d = declaration_of(part);
    for (const PartOperand& o : d.forward) {
      if (!writes(o.access) || !holds(p, o.when)) continue;
      if (o.turned) {
        if (const auto before = slot(*o.turned)) slot(o.value) = Maker{part, before->chosen};
      } else if (d.computed_again()) {
        slot(o.value) = Maker{part, part};
        if (o.exchange != Exchange::kSums) continue;
        slot(exchanged(o.value).sum) = slot(exchanged(o.value).rows) = slot(o.value);
      }
    }
  }
}

std::string text_of(const Recompute& recompute) {
  if (!recompute.any()) return "none";
  std::string text;
  if (recompute.parts == Recompute::full().parts) {
    text = "full";
  } else {
    for (const arch::Part part : arch::kAllParts)
      if (recompute.has(part)) text += fmt::format("{}{}", text.empty() ? "" : ",", arch::name_of(part));
  }
  return recompute.every == 1 ? text : fmt::format("{}/{}", text, recompute.every);
}

void add_part(Recompute& recompute, std::string_view name) {
  std::vector<std::string> known;
  for (const arch::Part part : arch::kAllParts) {
    const PartDeclaration& d = declaration_of(part);
    if (!d.in_layer()) continue;
    if (name == arch::name_of(part)) {
      if (!d.computed_again())
        throw UsageError("'{}' is not chosen for recomputation: {}", name,
                         !d.again           ? "what it makes is always kept"
                         : d.makes_values() ? "what it makes is the next layer's input, which is kept"
                                            : "it runs again with the part whose result it turns");
      recompute.add(part);
      return;
    }
    if (d.computed_again()) known.emplace_back(arch::name_of(part));
  }
  std::string list;
  for (const std::string& part : known) list += (list.empty() ? "" : ", ") + part;
  throw UsageError("'{}' is no part that can be computed again ({}){}", name, list, did_you_mean(name, known));
}

Recompute recompute_from_text(std::string_view text) {
  if (text == "none") return {};
  const std::size_t slash = text.find('/');
  const std::int64_t every = slash == std::string_view::npos ? 1 : every_from_text(text.substr(slash + 1), text);
  std::string_view names = text.substr(0, slash);
  if (names == "full") return Recompute::full(every);
  Recompute r;
  r.every = every;
  while (true) {
    const std::size_t comma = names.find(',');
    add_part(r, names.substr(0, comma));
    if (comma == std::string_view::npos) return r;
    names.remove_prefix(comma + 1);
  }
}

}  // namespace molen::program
