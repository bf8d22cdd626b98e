// Builds step programs: pure functions from (architecture, setting). `build` runs the passes below in order; each is
// small, pure and tested alone.
#pragma once

#include <optional>
#include <string>

#include "program/program.h"
#include "program/schedule.h"

namespace molen::program {

// Throws UsageError where the setting cannot be honoured exactly (nothing falls back), naming the configuration key.
// `file` is the schedule where Setting::pipeline.schedule is kFile.
Program build(const arch::Architecture& arch, const Setting& setting, const Schedule* file = nullptr);

// Why Setting::offload cannot be honoured with the rest of the setting; nothing where it can.
std::optional<std::string> offload_refused(const arch::Architecture& arch, const Setting& setting);

// The program of each stage of the pipeline; one where there is none.
std::vector<Program> build_stages(const arch::Architecture& arch, Setting setting, const Schedule* file = nullptr);

namespace pass {

// One micro-batch on one rank: a single body "micro" with forward, head and (when training) backward. Of a pipeline,
// the bodies "forward.G" (and "backward.G", which begins with the head; where Pipeline::halves, also as "input.G" and
// "weights.G") of each chunk, G being its global stage.
Program micro_batch(const arch::Architecture& arch, const Setting& setting);
// Drops what the parts of Setting::recompute made ("qkv.fwd", one slot for all layers) and makes it again ("qkv.re") as
// late as backward allows; what such a part reads is kept, or made again before it.
Program recompute(Program program);
// Tensor ranks exchange what parts leave as sums, and the rows they need of each other: between the parts, in both
// directions and in recomputation.
Program exchange_tensors(Program program);
// Context ranks gather the keys and values of a layer for each attention over them, and sum and share out their
// gradients; or pass them on in a ring, gradients behind them.
Program exchange_context(Program program);
// Repeats the micro-batch: the first overwrites gradients, later ones add.
Program micro_batch_loop(Program program);
// The actions of the stage in the order of the schedule, with the messages between: values that one body leaves for
// another get a buffer for each micro-batch, and the bodies of backward are told apart by whether they are the first or
// the last to run.
//
// Messages block, so all stages put them into one order: an action stands at its start in `simulate(schedule)`, a
// message at the end of the action that makes it, before actions that start then. No rank can then wait for one that
// waits for it: the first message of that order that has not been made has both its ranks before it.
Program pipeline(Program program, const Schedule& schedule);
// The same for an evaluation: each chunk forward once.
Program pipeline_forward(Program program);
// What layers keep for backward is copied to the host when it is made, and comes back for the backward of its layer,
// Setting::prefetch layers ahead; no more layers are on their way out.
Program offload_activations(Program program);
// ZeRO-3: before a unit is used, its parameters are gathered over dp_shard, Setting::prefetch units ahead; the copy is
// dead after its last reader.
Program shard_parameters(Program program);
// Gradients of a unit are reduced as soon as they are finished: in the last micro-batch, all-reduced (ZeRO-0) or
// reduce-scattered to their owners (ZeRO-1); in every micro-batch, reduce-scattered into the shards (ZeRO-2, ZeRO-3),
// which the last one sums over the replicas. Where Setting::reduce is narrower than gradients are kept, between two
// casts.
Program reduce_gradients(Program program);
// Clipping, AdamW, and the gathering of updated parameters where the owner of a part is not its only holder: a body
// "update" at the end.
Program update(Program program);
// FLOPs, bytes and scratch of every op.
Program costs(Program program);
// `after` edges: every hazard between streams that the edges which are there do not order yet, and no more than needed;
// and from `agree` to what its flag guards.
// Transient memory that a communication stream uses passes from one instance to the next as a whole.
Program order_streams(Program program);

}  // namespace pass
}  // namespace molen::program
