#include "optim/update.h"

#include <utility>

#include "base/error.h"

namespace molen::optim {

// Each of these is defined in the file of its name.
void adafactor(const Update& update, const Piece& piece);
void adamw(const Update& update, const Piece& piece);
void lion(const Update& update, const Piece& piece);
void muon(const Update& update, const Piece& piece);

Rule rule_named(std::string_view kind) {
  constexpr std::pair<std::string_view, Rule> kRules[]{
      {"adafactor", adafactor},
      {"adamw", adamw},
      {"lion", lion},
      {"muon", muon},
  };
  for (const auto& [name, rule] : kRules)
    if (name == kind) return rule;
  throw Error("the optimizer '{}' has no kernel", kind);
}

}  // namespace molen::optim
