// Where the stages of a pipeline lie in the model: which layers, and which of its two ends, each chunk of a stage has.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "arch/architecture.h"

namespace molen::program {

struct Setting;

// How the actions of a step are ordered (program/schedule.h); kFile: as a text file says.
enum class ScheduleKind { kGpipe, k1f1b, kInterleaved, kZbH1, kZbV, kFile };
inline constexpr std::array kAllScheduleKinds{ScheduleKind::kGpipe, ScheduleKind::k1f1b, ScheduleKind::kInterleaved,
                                              ScheduleKind::kZbH1, ScheduleKind::kZbV};
// "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "file".
std::string_view name_of(ScheduleKind kind);

enum class Placement {
  kInterleaved,  // chunk c of stage s is global stage c*p + s
  kV,  // two chunks, at least two stages: chunk 0 is s, chunk 1 is 2p-1-s; the last stage needs no transfer to turn
};
std::string_view name_of(Placement placement);  // "interleaved", "v"

// Global stages 0 .. stages*chunks-1 follow each other through the model.
int global_stage_of(Placement placement, int stages, int stage, int chunk);
int stage_of(Placement placement, int stages, int global_stage);

// What a Setting says of the pipeline along its axis pp.
struct Pipeline {
  ScheduleKind schedule = ScheduleKind::k1f1b;
  Placement placement = Placement::kInterleaved;
  int chunks = 1;  // on each stage
  // Backwards run in halves, of the input and of the weights (zb-h1, zb-v, files with I and W): what the second half
  // reads is kept until then, so the residual gradient has a buffer in each place and is not added to in place.
  bool halves = false;
  std::vector<std::int64_t> layers;  // of each global stage; empty: balanced_layers
  int stage = 0;                     // whose program it is
  bool operator==(const Pipeline&) const = default;
};

// A run of layers with what stands at the model's ends.
struct Chunk {
  int global_stage = 0;
  std::int64_t first = 0, end = 0;  // layers [first, end)
  bool embed = true, head = true;   // embedding before them; final norm and head behind them
  bool operator==(const Chunk&) const = default;
};

// Layers of each global stage such that the one with the most FLOPs, embedding and head counted, has as few as
// possible; each has at least one.
std::vector<std::int64_t> balanced_layers(const arch::Architecture& arch, const Setting& setting, int global_stages);

// The chunks of Setting::pipeline.stage; the whole model where there is one stage. Throws UsageError where the layers
// said are not the model's.
std::vector<Chunk> chunks_of(const arch::Architecture& arch, const Setting& setting);

}  // namespace molen::program
