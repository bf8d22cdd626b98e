// Builds step programs: pure functions from an architecture and a setting. `build` runs the passes below in order. Each
// pass is small, pure and tested alone.
#pragma once

#include <optional>
#include <string>

#include "program/ir/program.h"
#include "program/schedule/schedule.h"

namespace molen::program {

// Builds the program of Setting::pipeline.stage. Throws UsageError, which names the configuration key, when the setting
// cannot be met exactly: no part of it is replaced by another choice. `file` is the schedule when
// Setting::pipeline.schedule is kFile.
Program build(const arch::Architecture& arch, const Setting& setting, const Schedule* file = nullptr);

// Returns why Setting::tensor_chunks cannot be combined with the model, or nothing when it can.
std::optional<std::string> chunks_refused(const arch::Architecture& arch, const Setting& setting);

// Returns why Setting::offload cannot be combined with the rest of the setting, or nothing when it can.
std::optional<std::string> offload_refused(const arch::Architecture& arch, const Setting& setting);

// Returns why messages of gradients cannot have the type Setting::reduce, or nothing when they can.
std::optional<std::string> reduce_refused(const arch::Architecture& arch, const Setting& setting);

// Returns why Setting::optimizer cannot be combined with the rest of the setting, or nothing when it can.
std::optional<std::string> optimizer_refused(const Setting& setting);

// Returns the program of each stage of the pipeline. Without a pipeline this is a single program. With `types` false,
// the programs do not state the types of operands (Program::states_types), which takes a seventh less time. `threads`
// build that many stages at a time.
std::vector<Program> build_stages(const arch::Architecture& arch, Setting setting, const Schedule* file = nullptr,
                                  bool types = true, int threads = 1);

namespace pass {

// Builds one micro-batch on one rank: a single body "micro" with forward, head and (when training) backward. With a
// pipeline, each chunk has the bodies "forward.G" and "backward.G", where G is its global stage. The backward of the
// last chunk begins with the head. When Pipeline::halves is set, the backward also exists as "input.G" and "weights.G".
Program micro_batch(const arch::Architecture& arch, const Setting& setting);
// Drops the results of the parts that Setting::recompute names ("qkv.fwd", one slot for all layers) and computes them
// again ("qkv.re") as late as backward allows. The inputs of such a part are kept, or computed again before it.
Program recompute(Program program);
// Adds the communication of tensor ranks between the parts, in forward, backward and recomputation: sums of partial
// results, and gathers of rows.
Program exchange_tensors(Program program);
// Adds the communication of expert ranks. Each rank gets the offsets of all of them, rows go to the ranks of their
// experts, and the outputs of the experts return. The gradients of these rows travel the same ways.
Program exchange_experts(Program program);
// Adds the communication of context ranks. Either they all-gather the keys and values of a layer before each attention
// and reduce-scatter the gradients, or they pass keys and values around a ring, followed by the gradients.
Program exchange_context(Program program);
// Repeats the micro-batch: the first one overwrites gradients, later ones add.
Program micro_batch_loop(Program program);
// Puts the actions of the stage into the order of the schedule, with the messages between them. A value that one body
// leaves for another gets a buffer for each micro-batch. A backward has separate bodies for its first, its last and its
// other runs.
//
// Messages block, so all stages put them into one common order. An action is placed at its start time in
// `simulate(schedule)`. A message is placed at the end of the action that makes it, before the actions that start at
// that time. Therefore no two ranks wait for each other: when a message is the next one in this order, both of its
// ranks are free to take part in it.
Program pipeline(Program program, const Schedule& schedule);
// Builds the pipeline of an evaluation: each chunk runs forward once.
Program pipeline_forward(Program program);
// Copies the values that layers keep for backward to the host as soon as they are made, and copies them back
// Setting::prefetch layers before their layer's backward. At any time, the values of at most that many layers are being
// copied to the host.
Program offload_activations(Program program);
// ZeRO-3: gathers the parameters of a unit over dp_shard before ops use the unit, Setting::prefetch units ahead. The
// gathered copy is dead after its last reader.
Program shard_parameters(Program program);
// Reduces the gradient of each unit as soon as it is finished. ZeRO-0 all-reduces it in the last micro-batch; ZeRO-1
// reduce-scatters it to its owners, also in the last. ZeRO-2 and ZeRO-3 reduce-scatter it into the shards in every
// micro-batch, and sum the shards over the replicas in the last. When Setting::reduce is narrower than the kept
// gradients, each reduction runs between two casts.
//
// In a pipeline, reductions over data-parallel ranks come behind all messages of their stage where gradients are
// reduced once: those of gradients that are finished before the last message get a body "reduce" behind it. Gradients
// that are reduced in every micro-batch are an exception, because they would need memory until then. So are the sums
// over tensor ranks, which are of few elements.
Program reduce_gradients(Program program);
// Appends a body "update": clipping, the optimizer, and an all-gather of updated parameters when other ranks than their
// owner also hold them.
Program update(Program program);
// Sets FLOPs, bytes and scratch of every op.
Program costs(Program program);
// Sets the `after` edges. There is an edge for each hazard between streams that existing edges do not order, and no
// superfluous edge. There are also edges from `set_flag` to the ops that its flag guards, and edges between ops over
// one axis that a program text puts on different streams. When a stream other than compute uses transient memory, an
// instance uses that memory only after the previous instance has finished with all of it. Communication streams that
// run freely may keep more memory in use than a single stream would. In that case they wait for each other as far as
// the planned peak requires.
Program order_streams(Program program);

}  // namespace pass
}  // namespace molen::program
