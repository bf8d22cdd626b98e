// Small programs of every kind, for tests that must hold for every program.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "program/test_edit.h"

namespace molen::program {

struct TestCase {
  std::string name;
  arch::Architecture arch;
  Setting setting;
};

inline Setting small_setting(int shards, int zero) {
  Setting s;
  s.mesh[mesh::Axis::kDpShard] = shards;
  s.zero = zero;
  s.global_batch = 24;
  s.micro_batch = 2;
  s.sequence = 144;  // more than one chunk of the head
  s.head_chunk = 128;
  return s;
}

// A GPT with every bias, learned positions and LayerNorm.
inline arch::Architecture tiny_gpt() {
  arch::Architecture a = arch::preset("gpt2");
  const arch::Architecture sizes = tiny();
  a.name = "custom", a.layers = 4, a.hidden = sizes.hidden, a.ffn = sizes.ffn, a.heads = a.kv_heads = 6, a.head_dim = 4;
  a.vocabulary = sizes.vocabulary, a.max_sequence = 256;
  return a;
}

inline std::vector<TestCase> test_cases() {
  std::vector<TestCase> all;
  const auto add = [&](std::string name, const Setting& s, const arch::Architecture& a = tiny()) {
    all.push_back({std::move(name), a, s});
  };
  for (int zero = 0; zero <= 3; ++zero) add(fmt::format("zero {} on 2", zero), small_setting(2, zero));
  add("tied, zero 2 on 3", small_setting(3, 2), tiny(true));
  add("gpt, zero 3 on 2", small_setting(2, 3), tiny_gpt());
  Setting s = small_setting(2, 3);
  s.mesh[mesh::Axis::kDpReplicate] = 2;
  add("hybrid", s);
  s.own_over_dp = true;
  s.zero = 2;
  add("hybrid, moments over all", s);
  s = small_setting(2, 2);
  s.reduce = DType::kBF16;
  add("gradients travel in bf16", s);
  s.kernels = arch::Kernels::kAten, s.compute = DType::kBF16;
  add("bf16", s);
  s = small_setting(1, 1), s.mesh[mesh::Axis::kTp] = 2;
  add("tp 2", s);
  s.sequence_parallel = true;
  add("tp 2, rows cut", s);
  s.mesh[mesh::Axis::kTp] = 3;
  arch::Architecture thirds = tiny(true);
  thirds.ffn = 42;
  add("tp 3, rows cut, tied: keys copied", s, thirds);
  s.mesh[mesh::Axis::kTp] = 2, s.tensor_chunks = 2;
  add("tp 2 in pieces", s);
  for (const ContextForm form : {ContextForm::kGather, ContextForm::kRing}) {
    s = small_setting(2, 1), s.mesh[mesh::Axis::kCp] = 2, s.context_form = form;
    add(form == ContextForm::kRing ? "cp 2 ring" : "cp 2 gather", s);
    s.recompute = Recompute::full();
    add(form == ContextForm::kRing ? "cp 2 ring, recompute" : "cp 2 gather, recompute", s);
  }
  for (int what = 1; what <= 4; ++what) {
    s = small_setting(what == 3 ? 1 : 2, what == 3 ? 0 : 3);
    s.offload = {what < 4, what >= 2 && what < 4, what == 3, what == 4};
    s.prefetch = what % 2;
    add(fmt::format("offload {}", what), s);
  }
  s = small_setting(1, 0);
  s.recompute = Recompute::full(), s.recompute.every = 2, s.unit_layers = 2;
  add("recompute of every second layer, units of 2", s);
  s = small_setting(2, 3), s.unit_layers = kHalfLayer, s.prefetch = 2;
  add("units of half a layer", s);
  for (const ScheduleKind kind : kAllScheduleKinds)
    for (int stage = 0; stage < 2; ++stage) {
      s = small_setting(2, 1), s.mesh[mesh::Axis::kPp] = 2;
      s.pipeline.schedule = kind, s.pipeline.stage = stage;
      const bool v = kind == ScheduleKind::kZbV;
      s.pipeline.chunks = v || kind == ScheduleKind::kInterleaved ? 2 : 1;
      s.pipeline.placement = v ? Placement::kV : Placement::kInterleaved;
      s.pipeline.halves = v || kind == ScheduleKind::kZbH1;
      add(fmt::format("{} stage {}", name_of(kind), stage), s, tiny_gpt());
      arch::Architecture tied = tiny_gpt();
      tied.tied = true;
      if (kind == ScheduleKind::k1f1b) add(fmt::format("{} stage {}, tied", name_of(kind), stage), s, tied);
    }
  s = small_setting(1, 0), s.purpose = Purpose::kEvaluate;
  add("evaluation", s);
  s.document_mask = true, s.purpose = Purpose::kTrain;
  add("document mask", s);
  return all;
}

// Returns test_cases() and further cases: experts, optimizers, types, evaluations, and a pipeline of three stages.
inline std::vector<TestCase> all_test_cases() {
  std::vector<TestCase> all = test_cases();
  const auto add = [&](std::string name, const Setting& s, const arch::Architecture& a = tiny()) {
    all.push_back({std::move(name), a, s});
  };
  arch::Architecture sparse = tiny_sparse();
  sparse.experts->count = 6;
  for (const int zero : {0, 1, 2, 3}) {
    Setting s = small_setting(2, zero);
    s.mesh[mesh::Axis::kEp] = 2;
    add(fmt::format("expert ranks, zero {}", zero), s, sparse);
    s.expert_tiles = 2;
    add(fmt::format("expert ranks, zero {}, in tiles", zero), s, sparse);
    s.expert_tiles = 1;
    if (zero < 2) continue;
    s.unit_layers = 2;
    add(fmt::format("expert ranks, zero {}, units of 2 layers", zero), s, sparse);
    s.unit_layers = 1;
    s.mesh[mesh::Axis::kDpReplicate] = 2, s.own_over_dp = zero == 3;
    add(fmt::format("expert ranks, zero {}, two copies", zero), s, sparse);
  }
  for (const ContextForm form : {ContextForm::kGather, ContextForm::kRing}) {
    Setting s = small_setting(1, 1);
    s.mesh[mesh::Axis::kCp] = s.mesh[mesh::Axis::kEp] = 2, s.context_form = form;
    arch::Architecture limited = sparse;
    limited.experts->capacity = 0.75;
    add(fmt::format("a capacity over context ranks, {}", name_of(form)), s, limited);
  }
  for (const char* kind : {"lion", "muon", "adafactor"})
    for (const int tensor : {1, 2}) {
      Setting s = small_setting(2, tensor);
      s.mesh[mesh::Axis::kTp] = tensor, s.optimizer = kind;
      add(fmt::format("{}, tp {}", kind, tensor), s);
    }
  for (const DType type : {DType::kF64, DType::kF16, DType::kBF16}) {
    Setting s = small_setting(2, 2);
    s.compute = type, s.kernels = type == DType::kF64 ? arch::Kernels::kReference : arch::Kernels::kAten;
    s.master = type == DType::kF64 ? type : DType::kF32;
    add(fmt::format("{}", name_of(type)), s);
    if (type != DType::kF64) s.reduce = type, add(fmt::format("{}, and in messages", name_of(type)), s);
    s.zero = 3, s.offload = {true, true, true, false};
    add(fmt::format("{}, on the host", name_of(type)), s);
    s.purpose = Purpose::kEvaluate;
    add(fmt::format("{}, an evaluation with parameters on the host", name_of(type)), s);
  }
  for (const ScheduleKind kind : kAllScheduleKinds)
    for (int stage = 0; stage < 3; ++stage) {
      const bool v = kind == ScheduleKind::kZbV, two = v || kind == ScheduleKind::kInterleaved;
      Setting s = small_setting(2, 1);
      s.mesh[mesh::Axis::kPp] = 3;
      s.pipeline = pipeline_of(kind, two ? 2 : 1);
      s.pipeline.stage = stage;
      arch::Architecture six = tiny(true);
      six.layers = 6;
      add(fmt::format("{}, stage {} of 3", name_of(kind), stage), s, six);
      s.purpose = Purpose::kEvaluate;
      add(fmt::format("{}, stage {} of 3, an evaluation", name_of(kind), stage), s, six);
    }
  Setting s = small_setting(2, 3);
  s.purpose = Purpose::kEvaluate;
  add("evaluation, zero 3", s);
  return all;
}

}  // namespace molen::program
