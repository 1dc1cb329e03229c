// Numbers of NVFP4: E2M1 (the 4-bit element) and E4M3 (the 8-bit block scale), encoded and decoded without a branch.
//
// E2M1: sign, 2 exponent bits (bias 1), 1 mantissa bit: 0 0.5 1 1.5 2 3 4 6. No infinity, no NaN: what is too large, and NaN, become 6.
// E4M3: sign, 4 exponent bits (bias 7), 3 mantissa bits, largest 448, NaN is 0x7f.
// Rounding is to nearest, ties to even, as the instructions cvt.rn.satfinite.e2m1x2.f32 and cvt.rn.satfinite.e4m3x2.f32 do.
//
// Plain C, so that a host test can go through all 2^32 inputs; device code adds the native path in common.cuh.
#pragma once
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SB_FN __host__ __device__ __forceinline__
#else
#define SB_FN static inline
#endif

SB_FN uint32_t sb_bits(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  uint32_t b;
  memcpy(&b, &x, 4);
  return b;
#endif
}

SB_FN float sb_float(uint32_t b) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(b);
#else
  float x;
  memcpy(&x, &b, 4);
  return x;
#endif
}

// Bits of a float32 to an E2M1 code (0..15). -0 and what rounds to it give 8; NaN of either sign gives 7 (+6), as the instruction does.
SB_FN uint32_t sb_e2m1_encode_bits(uint32_t bits) {
  uint32_t a = bits & 0x7fffffffu;
  const uint32_t sign = a > 0x7f800000u ? 0u : (bits >> 28) & 8u;
  a = a < 0x40c00000u ? a : 0x40c00000u;                                  // 6.0
  const uint32_t below_one = sb_bits(sb_float(a) + 4194304.0f) & 3u;      // one step of 2^22 is 0.5: the addition rounds
  const uint32_t from_one = (a + 0x1fffffu + ((a >> 22) & 1u) - 0x3f000000u) >> 22;
  return sign | (a < 0x3f800000u ? below_one : from_one);
}

SB_FN uint32_t sb_e2m1_encode(float x) { return sb_e2m1_encode_bits(sb_bits(x)); }

// An E2M1 code to its value: exponent and mantissa go to the top of a float32's and 2^126 corrects the bias, exactly.
SB_FN float sb_e2m1_decode(uint32_t code) {
  return sb_float(((code & 8u) << 28) | ((code & 7u) << 22)) * 8.507059173023462e37f;  // 2^126
}

// A float32 to E4M3: saturates at 448; NaN gives 0x7f.
SB_FN uint32_t sb_e4m3_encode(float x) {
  const uint32_t bits = sb_bits(x);
  uint32_t a = bits & 0x7fffffffu;
  const int nan = a > 0x7f800000u;
  a = a < 0x43e00000u ? a : 0x43e00000u;                                  // 448.0
  const uint32_t subnormal = sb_bits(sb_float(a) + 16384.0f) & 0xfu;      // one step of 2^14 is 2^-9
  const uint32_t normal = (a + 0x7ffffu + ((a >> 20) & 1u) - 0x3c000000u) >> 20;
  return nan ? 0x7fu : ((bits >> 24) & 0x80u) | (a < 0x3c800000u ? subnormal : normal);  // 2^-6
}

SB_FN float sb_e4m3_decode(uint32_t code) {
  const float x = sb_float(((code & 0x80u) << 24) | ((code & 0x7fu) << 20)) * 1.3292279957849159e36f;  // 2^120
  return (code & 0x7fu) == 0x7fu ? sb_float(0x7fc00000u) : x;
}
