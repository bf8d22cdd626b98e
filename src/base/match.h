// std::visit with one lambda per alternative and no catch-all: `std::visit(Match{[](const A&) {...}, ...}, variant)`.
#pragma once

namespace molen {

template <class... F>
struct Match : F... {
  using F::operator()...;
};
template <class... F>
Match(F...) -> Match<F...>;

}  // namespace molen
