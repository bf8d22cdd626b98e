// The walk of the type checker through a program. check.cpp has the walk, check_parts.cpp has the rules of compute ops
// and of the update, and check_moves.cpp has the rules of communication and copies.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "program/ir/program.h"
#include "program/types/part_rules.h"
#include "program/types/type_state.h"

namespace molen::program {

class TypeChecker {
 public:
  explicit TypeChecker(const Program& program);
  void run();
  const std::vector<std::string>& errors() const { return errors_; }
  // Compares the stated types with the inferred ones. Call it after `run`, for a program without errors.
  void compare_stated();
  // Returns the inferred type of an operand, or nothing when no instance runs its body.
  const std::optional<MeshType>& inferred(std::size_t body, std::size_t op, std::size_t operand) const {
    return inferred_[body][op][operand];
  }

 private:
  using Segments = std::vector<std::size_t>;
  // A state that a body touches and that outlives its instances: a buffer and a segment of it.
  using Touched = std::pair<int, std::size_t>;
  // The types of the touched states before and after an instance.
  struct Summary {
    std::vector<TypeState> before, after;
  };

  void run_instance(const Instance& instance);
  void run_step();
  std::vector<Touched> touched_by(const Body& body) const;
  std::vector<TypeState> states_of(const std::vector<Touched>& touched);
  void note_types(bool written);
  void forget_consumed();
  void end_of_step();

  // The segments and states of an operand of the present op.
  Segments segments_of(const Step& step, const Use& use) const;
  Segments segments_of(const Use& use) const { return segments_of(*step_, use); }
  // Returns the first segment, for use when all segments have one type; 0 when the operand has none.
  std::size_t first_of(const Use& use) const;
  const arch::Parameter& parameter_of(int buffer, std::size_t segment) const;
  const Unit& unit_of(const Use& use) const { return p_.units[static_cast<std::size_t>(buffer_of(use).unit)]; }
  const Buffer& buffer_of(const Use& use) const { return p_.buffers[static_cast<std::size_t>(use.buffer)]; }
  TypeState& state(const Use& use, std::size_t segment) { return states_.at(use.buffer, micro_batch_, segment); }

  // Reports an error of the present op. Returns false, for `return error(...)`.
  bool error(const Use& use, std::size_t segment, const std::string& what);
  // Returns the type of a segment that the op reads. For a segment without a type, reports an error and returns the
  // unstated type.
  MeshType found(const Use& use, std::size_t segment);
  // Returns the type of all segments that the op reads, and requires that they have the same type.
  MeshType found(const Use& use);
  // Requires a type along one axis, unless the axis has only one rank.
  bool expect(const Use& use, std::size_t segment, const MeshType& found, mesh::Axis axis,
              const std::vector<AxisType>& admitted);
  void leave(const Use& use, std::size_t segment, MeshType type);
  void leave(const Use& use, const MeshType& type);
  // Adds a term to the contents of the operand, which must have the term's type.
  void add(const Use& use, std::size_t segment, const MeshType& term);
  // Adds the term when the op updates the operand; otherwise writes it.
  void put(const Use& use, std::size_t segment, const MeshType& type);
  // Returns the operand, or null. The verifier reports an op that lacks an operand.
  const Use* find(Arg arg) const { return step_->find(arg); }
  const Use* sums();  // the step's sums
  // Returns the axes of the group that have several ranks.
  std::vector<mesh::Axis> axes(Axis group) const;

  // Types that rules share.
  MeshType own_rows(AxisType tensor, AxisType context = sharded(Dimension::kTokens),
                    AxisType experts = sharded(Dimension::kBatch)) const;
  // Returns the type of a sum with a term for each of the rank's own rows. Tensor ranks have the same terms.
  MeshType sum_over_rows() const;
  MeshType on_single_axes(MeshType type) const;

  // Rules (check_parts.cpp).
  void rule(const Compute& o);
  void rule(const LoadBatch& o);
  void rule(const ZeroFill& o);
  void rule(const SumSquares& o);
  void rule(const ClipScale& o);
  void rule(const OptimizerStep& o);
  void rule(const SetFlag& o);
  void rule(const SetClock&) {}  // it has no operand
  void check_parameters(const Compute& c, const Use& use);
  void check_constant(const Use& use);
  void add_gradients(const std::vector<OperandRule>& rules, const Use& use);
  AxisType square_of(const Use& use, std::size_t segment, const MeshType& type, mesh::Axis axis);
  MeshType expect_summed(const Use& grad, std::size_t segment);
  void make_direction(const Use& grad, const Use& direction);
  void expect_directions(const Use& grad, const Use& direction);
  void update_parameter(const Use& grad, const Use& param, std::size_t segment);
  // Rules (check_moves.cpp).
  void rule(const AllReduce& o);
  void rule(const ReduceScatter& o);
  void rule(const AllGather& o);
  void rule(const AllToAll& o);
  void rule(const Send& o);
  void rule(const Receive& o);
  void rule(const RingExchange& o);
  void rule(const CopyToHost& o);
  void rule(const CopyToDevice& o);
  void rule(const Cast& o);
  void rule(const ReduceScalars& o);
  void scatter_rows(const ReduceScatter& o, const Use& from, const Use& to);
  void gather_directions(const AllGather& o, const Use& from, const Use& to);
  void scatter_keys(const ReduceScatter& o, const Use& from, const Use& to);
  void pass_gradients_on(const RingExchange& o, const Use& from, const Use& to);
  MeshType message_type(Payload payload) const;
  void copy();
  // Returns whether both operands hold the same parameters of a unit. Reports an error when only one does.
  bool both_of_parameters(const Use& from, const Use& to);
  // Changes the type of a value that moves between operands, along the axes of a group, from one type to another.
  void move(const Use& from, const Use& to, Axis group, AxisType before, AxisType after);

  const Program& p_;
  const mesh::PerAxis mesh_;
  TypeStates states_;
  std::size_t body_ = 0, op_ = 0;  // the present op
  std::int64_t micro_batch_ = -1;
  const Step* step_ = nullptr;
  std::vector<std::vector<std::vector<std::optional<MeshType>>>> inferred_;  // by body, op and operand
  std::map<std::size_t, std::vector<Touched>> touched_;                      // by body
  std::map<std::size_t, std::vector<Summary>> summaries_;                    // by body
  std::map<std::pair<int, std::size_t>, std::pair<std::size_t, std::size_t>>
      writers_;                                             // body and op, by state of a parameter
  std::set<std::pair<std::size_t, std::size_t>> reported_;  // ops with errors in earlier instances, by body and op
  std::set<std::pair<Arg, int>> reported_here_;             // operands of the present op, and axes, with errors
  std::vector<std::string> errors_;
};

}  // namespace molen::program
