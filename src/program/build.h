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
// Drops what the parts of Setting::recompute made ("qkv.fwd", one slot for all layers) and makes it again ("qkv.re") as
// late as backward allows; what such a part reads is kept, or made again before it.
Program recompute(Program program);
// Tensor ranks exchange what parts leave as sums, and the rows they need of each other: between the parts, in both
// directions and in recomputation.
Program exchange_tensors(Program program);
// Repeats the micro-batch: the first overwrites gradients, later ones add.
Program micro_batch_loop(Program program);
// ZeRO-3: before a unit is used, its parameters are gathered over dp_shard, Setting::prefetch units ahead; the copy is
// dead after its last reader.
Program shard_parameters(Program program);
// Gradients of a unit are reduced as soon as they are finished: in the last micro-batch, all-reduced (ZeRO-0) or
// reduce-scattered to their owners (ZeRO-1); in every micro-batch, reduce-scattered into the shards (ZeRO-2, ZeRO-3),
// which the last one sums over the replicas.
Program reduce_gradients(Program program);
// Clipping, AdamW, and the gathering of updated parameters where the owner of a part is not its only holder: a body
// "update" at the end.
Program update(Program program);
// FLOPs, bytes and scratch of every op.
Program costs(Program program);
// `after` edges: every hazard between streams that the edges which are there do not order yet, and no more than needed.
// Transient memory that a communication stream uses passes from one instance to the next as a whole.
Program order_streams(Program program);

}  // namespace pass
}  // namespace molen::program
