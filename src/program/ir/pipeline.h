// The layers of each chunk of a pipeline stage, and whether it has the embedding or the head.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "arch/architecture.h"

namespace molen::program {

struct Setting;

// The order of a step's actions (program/schedule/schedule.h). kFile: a text file gives the order.
enum class ScheduleKind { kGpipe, k1f1b, kInterleaved, kZbH1, kZbV, kFile };
inline constexpr std::array kAllScheduleKinds{ScheduleKind::kGpipe, ScheduleKind::k1f1b, ScheduleKind::kInterleaved,
                                              ScheduleKind::kZbH1, ScheduleKind::kZbV};
// "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "file".
std::string_view name_of(ScheduleKind kind);

enum class Placement {
  kInterleaved,  // chunk c of stage s is global stage c*p + s
  kV,  // two chunks, at least two stages: chunk 0 is s, chunk 1 is 2p-1-s; the turn on the last stage needs no transfer
};
std::string_view name_of(Placement placement);  // "interleaved", "v"

// Returns the number of a chunk through the model. Global stages 0 .. stages*chunks-1 follow each other through the
// model.
int global_stage_of(Placement placement, int stages, int stage, int chunk);
int stage_of(Placement placement, int stages, int global_stage);

// The part of a Setting that describes the pipeline along its axis pp.
struct Pipeline {
  ScheduleKind schedule = ScheduleKind::k1f1b;
  Placement placement = Placement::kInterleaved;
  int chunks = 1;  // number of chunks on each stage
  // Whether backwards run in halves, one for the input and one for the weights (zb-h1, zb-v, files with I and W). The
  // inputs of the second half are kept until it runs. The residual gradient therefore has a buffer at each place and is
  // not added to in place.
  bool halves = false;
  std::vector<std::int64_t> layers;  // number for each global stage; empty: balanced_layers
  int stage = 0;                     // the stage whose program this is
  bool operator==(const Pipeline&) const = default;
};

// A run of layers, with the embedding or the head when the run is at an end of the model.
struct Chunk {
  int global_stage = 0;
  std::int64_t first = 0, end = 0;  // layers [first, end)
  bool embed = true, head = true;   // embedding before the layers; final norm and head after them
  bool operator==(const Chunk&) const = default;
};

// Chooses the number of layers of each global stage so that the largest number of FLOPs of a stage, embedding and head
// included, is as small as possible. Each stage has at least one layer.
std::vector<std::int64_t> balanced_layers(const arch::Architecture& arch, const Setting& setting, int global_stages);

// Returns the chunks of Setting::pipeline.stage, or the whole model when there is one stage. Throws UsageError when the
// given layer counts do not match the model.
std::vector<Chunk> chunks_of(const arch::Architecture& arch, const Setting& setting);

}  // namespace molen::program
