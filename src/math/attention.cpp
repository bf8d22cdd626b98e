// Checks shapes, picks the instruction set, and splits the work over threads.
#include "math/attention.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/error.h"
#include "math/attention_kernels.h"
#include "math/attention_split.h"

namespace molen::math {
namespace {

using namespace attention_detail;

AttentionIsa resolve(AttentionIsa isa) {
  if (isa != AttentionIsa::kBest) return isa;
  if (attention_isa_available(AttentionIsa::kAvx512)) return AttentionIsa::kAvx512;
  if (attention_isa_available(AttentionIsa::kAvx2)) return AttentionIsa::kAvx2;
  return AttentionIsa::kGeneric;
}

const Kernels& kernels(AttentionIsa isa) {
#if defined(__x86_64__)
  switch (resolve(isa)) {
    case AttentionIsa::kAvx512:
    case AttentionIsa::kAvx512Bf16:
    case AttentionIsa::kAmx:
      return kAvx512Kernels;
    case AttentionIsa::kAvx2:
      return kAvx2Kernels;
    default:
      break;
  }
#endif
  return kGenericKernels;
}

#if defined(__x86_64__)
// Returns whether the processor has AMX with bf16 (CPUID leaf 7, EDX bits 22 and 24), and the system lets this process
// use it. Linux grants the state of tiles (component 18) on request, to all threads of a process.
bool may_use_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

i64 forward_floats(i64 D) {
  return kForwardRows * (2 * padded_width(D) + 162) + 2 * kTileColumns * padded_width(D);
}
i64 backward_floats(i64 D) {
  return kBackwardRows * (2 * padded_width(D) + 290) + (5 * kTileColumns + 6) * padded_width(D);
}

}  // namespace

void attention_detail::check(const AttentionShape& s) {
  MOLEN_CHECK(s.B >= 0 && s.S >= 0 && s.h > 0 && s.k > 0 && s.h % s.k == 0,
              "attention of B={} S={} with {} query heads on {} key heads", s.B, s.S, s.h, s.k);
  MOLEN_CHECK(s.D > 0 && s.D <= kMaxD, "attention with a head of {} elements; 1 to {} are possible", s.D,
              static_cast<i64>(kMaxD));
  MOLEN_CHECK(s.threads > 0, "attention on {} threads", s.threads);
  MOLEN_CHECK(attention_isa_available(s.isa), "this processor lacks {}", name_of(s.isa));
}

bool attention_isa_available(AttentionIsa isa) {
#if defined(__x86_64__)
  if (isa == AttentionIsa::kAvx512) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  if (isa == AttentionIsa::kAvx512Bf16)
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && attention_isa_available(AttentionIsa::kAvx512);
  if (isa == AttentionIsa::kAmx) {
    static const bool tiles = may_use_tiles();
    return tiles && attention_isa_available(AttentionIsa::kAvx512Bf16);
  }
  if (isa == AttentionIsa::kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return isa == AttentionIsa::kBest || isa == AttentionIsa::kGeneric;
}

const char* name_of(AttentionIsa isa) {
  switch (resolve(isa)) {
    case AttentionIsa::kAvx512:
      return "avx512";
    case AttentionIsa::kAvx512Bf16:
      return "avx512bf16";
    case AttentionIsa::kAmx:
      return "amx";
    case AttentionIsa::kAvx2:
      return "avx2";
    default:
      return "generic";
  }
}

i64 attention_forward_scratch(const AttentionShape& s) {
  return s.threads * 4 * forward_floats(s.D);
}
i64 attention_backward_scratch(const AttentionShape& s) {
  return s.threads * 4 * backward_floats(s.D);
}

void attention_forward(const AttentionShape& s, const float* qkv, float* o, float* lse, void* scratch) {
  check(s);
  const Kernels& f = kernels(s.isa);
  const Forward args{s.B, s.S, s.h, s.k, s.D, s.alibi, qkv, o, lse};
  for_each_forward(s, scratch, forward_floats(s.D), [&](i64 b, i64 head, i64 heads, i64 i0, i64 n, float* mine) {
    f.forward_rows(args, b, head, heads, i0, n, mine);
  });
}

void attention_backward(const AttentionShape& s, const float* d_o, const float* qkv, const float* o, const float* lse,
                        float* d_qkv, void* scratch) {
  check(s);
  const Kernels& f = kernels(s.isa);
  const Backward args{s.B, s.S, s.h, s.k, s.D, s.alibi, d_o, qkv, o, lse, d_qkv};
  const i64 floats = backward_floats(s.D);
  if (!split_finely(s)) {
    for_each_piece(s, s.B * s.k, scratch, floats, [&](i64 index, float* mine) {
      for (i64 j0 = 0; j0 < s.S; j0 += kTileColumns) f.backward_columns(args, index / s.k, index % s.k, j0, true, mine);
    });
    return;
  }
  for_each_fine_backward(
      s, scratch, floats, [&](i64 b, i64 kv, i64 j0, float* mine) { f.backward_columns(args, b, kv, j0, false, mine); },
      [&](i64 b, i64 head, i64 i0, i64 n, float* mine) { f.backward_rows(args, b, head, i0, n, mine); });
}

}  // namespace molen::math
