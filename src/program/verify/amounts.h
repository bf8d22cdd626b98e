// How much of its operands an op uses: rows, elements and bytes, on the rank whose coordinates are all 0. The
// verifier's rules of costs count with these amounts.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "program/ir/traits.h"
#include "program/verify/need.h"

namespace molen::program {

class Amounts {
 public:
  // `needs` are what the operands of the step hold.
  Amounts(const Program& program, const Traits& traits, const Step& step, const std::vector<Need>& needs);

  const Need* find(Arg arg) const;  // nullptr if the op has no such operand
  bool updates(Arg arg) const;      // whether the op has the operand and updates it
  // Return the elements and bytes of the operand that the op uses. An op on a piece of the rows, on a chunk of the head
  // or on a tile of the experts uses only the rows of that piece, chunk or tile.
  std::int64_t elements(const Need& need) const;
  std::int64_t bytes(const Need& need) const { return elements(need) * size_of(need.dtype); }
  std::int64_t bytes(Arg arg) const;  // 0 if the op has no such operand

  std::int64_t rows() const { return rows_; }  // that the op works on: tokens, or rows of experts
  // Returns those of the rows of tokens that the rank keeps of the residual stream, if tensor ranks share them.
  std::int64_t own_rows() const { return own_; }
  std::int64_t experts() const { return experts_; }  // that the op works on
  const std::vector<Need>& needs() const { return needs_; }

 private:
  void take_piece(std::int64_t piece);
  void take_experts(std::int64_t tile);

  const Program& p_;
  const Traits& t_;
  const std::vector<Use>& uses_;
  const std::vector<Need>& needs_;
  std::int64_t rows_ = 0, own_ = 0, experts_ = 0;
  bool by_experts_ = false, of_head_ = false;
};

}  // namespace molen::program
