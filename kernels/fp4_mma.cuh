// The tensor core's own FP4 product, and where each lane keeps its part of the operands.
//
// D (16 x 8, float32) += A (16 x 64) B (64 x 8): E2M1 codes with an E4M3 scale for each 16 of k, on both sides. It exists on the family
// targets of generation 12 (sm_120f, sm_121f); elsewhere SB_FP4_MMA is 0. Of a lane, with g = lane / 4 and t = lane % 4:
//   A: four words of eight codes, row g + 8 (word & 1), k from 8 t + 32 (word / 2) on.  B: two words, column g, k from 8 t + 32 word on.
//   D: four values, row g + 8 (value / 2), column 2 t + (value & 1).
//   Scales: a word of four, for k / 16 = 0 to 3: of A's row g + 8 (t & 1), read from lanes with t < 2; of B's column g, from t = 0.
// PTX ISA 9.0, https://docs.nvidia.com/cuda/parallel-thread-execution/, "Matrix fragments for mma.m16n8k64" and "Block scaling for
// mma.sync", both selectors 0; CUTLASS's mma_traits_sm120.hpp has the same. A word's first code is in its lowest bits.
#pragma once
#include "common.cuh"

#define SB_FP4_MMA (SB_NATIVE_FP4 && __CUDA_ARCH__ >= 1200)

namespace sb {

__device__ __forceinline__ void mma_fp4(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t scale_a, uint32_t scale_b) {
#if SB_FP4_MMA
  asm volatile(
      "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, %10, {0,0}, %11, {0,0};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a), "r"(scale_b));
#endif
}

}  // namespace sb
