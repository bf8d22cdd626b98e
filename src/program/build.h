// Builds step programs: pure functions from (architecture, setting). `build` runs the passes below in order; each is
// small, pure and tested alone.
#pragma once

#include "program/program.h"

namespace molen::program {

// Throws UsageError where the setting cannot be honoured exactly (nothing falls back), naming the configuration key.
Program build(const arch::Architecture& arch, const Setting& setting);

namespace pass {

// One micro-batch on one rank: a single body "micro" with forward, head and (when training) backward.
Program micro_batch(const arch::Architecture& arch, const Setting& setting);
// Keeps only each layer's input; recomputes the rest of the layer right before its backward.
Program recompute(Program program);
// Repeats the micro-batch: the first overwrites gradients, later ones add.
Program micro_batch_loop(Program program);
// Gradients of a unit are reduced over dp as soon as the last micro-batch has finished them: all-reduced (ZeRO-0), or
// reduce-scattered to their owners (ZeRO-1).
Program reduce_gradients(Program program);
// Clipping, AdamW, and for ZeRO-1 the gathering of updated parameters: a body "update" at the end.
Program update(Program program);
// FLOPs, bytes and scratch of every op.
Program costs(Program program);
// `after` edges: every hazard between streams, and no more than needed.
Program order_streams(Program program);

}  // namespace pass
}  // namespace molen::program
