#include "program/ir/op.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/match.h"

namespace molen::program {

std::optional<Arg> arg_named(std::string_view name) {
  for (const ArgInfo& info : kArgs)
    if (info.name == name) return info.arg;
  return {};
}

const Use* Step::find(Arg arg) const {
  for (const Use& use : operands)
    if (use.arg == arg) return &use;
  return nullptr;
}
const Use& Step::operand(Arg arg) const {
  const Use* use = find(arg);
  MOLEN_CHECK(use != nullptr, "{} has no operand '{}'", kind_of(op), name_of(arg));
  return *use;
}
Use& Step::operand(Arg arg) {
  return const_cast<Use&>(std::as_const(*this).operand(arg));
}
bool Step::updates(Arg arg) const {
  const Use* use = find(arg);
  return use && use->access == Access::kUpdate;
}

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kData:
      return "data";
    case Phase::kForward:
      return "forward";
    case Phase::kHead:
      return "head";
    case Phase::kBackward:
      return "backward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kGradientReduce:
      return "gradient_reduce";
    case Phase::kClip:
      return "clip";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kParameterGather:
      return "parameter_gather";
  }
  throw Error("unknown phase {}", static_cast<int>(phase));
}

std::string_view name_of(Stream stream) {
  static constexpr std::array<std::string_view, kNumStreams> kNames{
      "compute", "dp_comm", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "copy.out", "copy.in", "host"};
  return kNames.at(static_cast<std::size_t>(stream));
}
std::string_view name_of(Axis axis) {
  switch (axis) {
    case Axis::kDp:
      return "dp";
    case Axis::kShard:
      return "dp_shard";
    case Axis::kReplicate:
      return "dp_replicate";
    case Axis::kTp:
      return "tp";
    case Axis::kWorld:
      return "world";
    case Axis::kPp:
      return "pp";
    case Axis::kEmbedding:
      return "embedding";
    case Axis::kCp:
      return "cp";
    case Axis::kEp:
      return "ep";
    case Axis::kExpertDp:
      return "expert_dp";
    case Axis::kExpertShard:
      return "expert_shard";
  }
  throw Error("unknown axis {}", static_cast<int>(axis));
}
std::string_view name_of(Access access) {
  static constexpr std::array<std::string_view, kAllAccesses.size()> kNames{"reads", "consumes", "updates", "writes"};
  return kNames.at(static_cast<std::size_t>(access));
}
std::string_view name_of(Range range) {
  static constexpr std::array<std::string_view, 4> kNames{"all", "shard", "own", "replicated"};
  return kNames.at(static_cast<std::size_t>(range));
}
std::string_view name_of(Payload payload) {
  static constexpr std::array<std::string_view, kAllPayloads.size()> kNames{
      "unit", "x",   "mid",  "d_x",    "d_mid",   "head",        "keys",       "d_keys",       "qkv",          "attn",
      "up",   "act", "load", "counts", "offsets", "expert_rows", "expert_out", "d_expert_out", "d_expert_rows"};
  return kNames.at(static_cast<std::size_t>(payload));
}
std::string_view name_of(UpdateStage stage) {
  switch (stage) {
    case UpdateStage::kWhole:
      return "whole";
    case UpdateStage::kDirection:
      return "direction";
    case UpdateStage::kApply:
      return "apply";
  }
  throw Error("unknown stage {} of an update", static_cast<int>(stage));
}

std::string_view name_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kAdd:
      return "add";
    case Epilogue::kCopy:
      return "copy";
    case Epilogue::kPack:
      return "pack";
    case Epilogue::kUnpack:
      return "unpack";
    case Epilogue::kAssemble:
      return "assemble";
  }
  throw Error("unknown epilogue {}", static_cast<int>(epilogue));
}

std::string_view name_of(Flag) {
  return "non_finite";
}

std::string_view name_of(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return "forward";
    case Pass::kBackward:
      return "backward";
    case Pass::kRecompute:
      return "recompute";
    case Pass::kBackwardInput:
      return "backward_input";
    case Pass::kBackwardWeights:
      return "backward_weights";
  }
  throw Error("unknown pass {}", static_cast<int>(pass));
}

std::string kind_of(Epilogue epilogue) {
  return fmt::format("epilogue {}", name_of(epilogue));
}

std::string text_of(const std::vector<EpilogueCost>& epilogues) {
  if (epilogues.empty()) return "none";
  std::string text;
  for (const EpilogueCost& e : epilogues)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", name_of(e.kind), e.moved.value);
  return text;
}

std::string kind_of(const Op& op) {
  return std::visit(Match{
                        [](const Compute& c) { return fmt::format("{} {}", name_of(c.pass), arch::name_of(c.part)); },
                        [](const LoadBatch&) { return std::string("load_batch"); },
                        [](const ZeroFill&) { return std::string("zero_fill"); },
                        [](const SumSquares&) { return std::string("sum_squares"); },
                        [](const ClipScale&) { return std::string("clip_scale"); },
                        [](const OptimizerStep&) { return std::string("optimizer_step"); },
                        [](const AllReduce&) { return std::string("all_reduce"); },
                        [](const ReduceScatter&) { return std::string("reduce_scatter"); },
                        [](const AllGather&) { return std::string("all_gather"); },
                        [](const AllToAll&) { return std::string("all_to_all"); },
                        [](const Send&) { return std::string("send"); },
                        [](const Receive&) { return std::string("receive"); },
                        [](const RingExchange&) { return std::string("ring_exchange"); },
                        [](const CopyToHost&) { return std::string("copy_to_host"); },
                        [](const CopyToDevice&) { return std::string("copy_to_device"); },
                        [](const Cast&) { return std::string("cast"); },
                        [](const ReduceScalars&) { return std::string("reduce_scalars"); },
                        [](const SetFlag&) { return std::string("set_flag"); },
                        [](const SetClock&) { return std::string("set_clock"); },
                    },
                    op);
}

bool is_communication(const Op& op) {
  return std::holds_alternative<AllReduce>(op) || std::holds_alternative<ReduceScatter>(op) ||
         std::holds_alternative<AllGather>(op) || std::holds_alternative<AllToAll>(op) ||
         std::holds_alternative<Send>(op) || std::holds_alternative<Receive>(op) ||
         std::holds_alternative<RingExchange>(op) || std::holds_alternative<ReduceScalars>(op);
}

bool is_copy(const Op& op) {
  return std::holds_alternative<CopyToHost>(op) || std::holds_alternative<CopyToDevice>(op);
}

std::optional<Axis> axis_of(const Op& op) {
  return std::visit(
      [](const auto& o) -> std::optional<Axis> {
        using O = std::decay_t<decltype(o)>;
        if constexpr (requires { o.axis; })
          return o.axis;
        else if constexpr (std::is_same_v<O, Send> || std::is_same_v<O, Receive>)
          return Axis::kPp;
        else
          return std::nullopt;
      },
      op);
}

}  // namespace molen::program
