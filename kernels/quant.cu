// K1, K2: to NVFP4 and back, with the work that comes just before fused in: RMSNorm, SiLU times up.
//
// The recipe (NVIDIA Model Optimizer's): per block of 16 values, scale = E4M3(amax / (6 g)) with one float32 g for the tensor; codes =
// E2M1(x / (scale g)). Divisions are IEEE's, so that the CPU reference gets the same bits. A block whose scale comes out as zero has
// codes of zero. NaN becomes +6 and does not count in amax; infinities saturate.
#include "common.cuh"

namespace sb {

__device__ __forceinline__ float value(float x) { return x; }
__device__ __forceinline__ float value(__half x) { return __half2float(x); }
__device__ __forceinline__ float value(__nv_bfloat16 x) { return __bfloat162float(x); }

// Eight values to eight codes.
__device__ __forceinline__ uint32_t encode_e2m1(const float (&v)[8]) {
#if SB_NATIVE_FP4
  uint32_t r;
  asm("{\n"
      ".reg .b8 b0, b1, b2, b3;\n"
      "cvt.rn.satfinite.e2m1x2.f32 b0, %2, %1;\n"
      "cvt.rn.satfinite.e2m1x2.f32 b1, %4, %3;\n"
      "cvt.rn.satfinite.e2m1x2.f32 b2, %6, %5;\n"
      "cvt.rn.satfinite.e2m1x2.f32 b3, %8, %7;\n"
      "mov.b32 %0, {b0, b1, b2, b3};\n"
      "}"
      : "=r"(r)
      : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]));
  return r;
#else
  uint32_t r = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) r |= sb_e2m1_encode(v[i]) << (4 * i);
  return r;
#endif
}

// Two codes (a byte) to two values.
__device__ __forceinline__ float2 decode_e2m1(uint32_t byte) {
#if SB_NATIVE_FP4
  uint32_t h;
  asm("{\n.reg .b8 b;\nmov.b32 {b, _, _, _}, %1;\ncvt.rn.f16x2.e2m1x2 %0, b;\n}" : "=r"(h) : "r"(byte));
  return __half22float2(*reinterpret_cast<const __half2*>(&h));
#else
  return make_float2(sb_e2m1_decode(byte & 15u), sb_e2m1_decode(byte >> 4));
#endif
}

__device__ __forceinline__ uint32_t encode_e4m3(float x) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(x));
  return r & 0xffu;
}

__device__ __forceinline__ float decode_e4m3(uint32_t code) {
  const uint32_t h = e4m3x2_to_half2(code);
  return __low2float(*reinterpret_cast<const __half2*>(&h));
}

// One block of 16 values to 8 bytes of codes and one of scale.
__device__ __forceinline__ void quantize_block(const float (&v)[16], float g, uint8_t* codes, uint8_t* scale) {
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < 16; ++i) amax = fmaxf(amax, fabsf(v[i]));
  const uint32_t s = amax > 0.0f ? encode_e4m3(__fdiv_rn(amax, __fmul_rn(6.0f, g))) : 0u;
  const float d = __fmul_rn(decode_e4m3(s), g);
  float low[8], high[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    low[i] = d > 0.0f ? __fdiv_rn(v[i], d) : copysignf(0.0f, v[i]);
    high[i] = d > 0.0f ? __fdiv_rn(v[8 + i], d) : copysignf(0.0f, v[8 + i]);
  }
  *reinterpret_cast<uint2*>(codes) = make_uint2(encode_e2m1(low), encode_e2m1(high));
  *scale = static_cast<uint8_t>(s);
}

template <class T>
__device__ __forceinline__ void read_block(const T* x, int count, bool aligned, float (&v)[16]) {
  if (aligned && count == 16) {
    constexpr int V = sizeof(T);  // 16 values are V vectors of 16 bytes
    union {
      uint4 raw[V];
      T at[16];
    } u;
#pragma unroll
    for (int i = 0; i < V; ++i) u.raw[i] = __ldg(reinterpret_cast<const uint4*>(x) + i);
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = value(u.at[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = i < count ? value(x[i]) : 0.0f;
  }
}

// A thread a block. A last, short block is filled up with zeros.
template <class T>
__global__ void __launch_bounds__(128) quantize(const T* __restrict__ x, const float* __restrict__ g, uint8_t* __restrict__ codes,
                                                uint8_t* __restrict__ scale, int m, int k) {
  const int blocks = (k + 15) / 16;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x;
  let_next_start();
  wait_for_previous();
  if (i >= static_cast<int64_t>(m) * blocks) return;
  const int64_t row = i / blocks;
  const int b = static_cast<int>(i - row * blocks);
  float v[16];
  read_block(x + row * k + 16 * b, min(16, k - 16 * b), k % 16 == 0, v);
  quantize_block(v, *g, codes + 8 * i, scale + i);
}

// x [m, 2 k]: gate, then up. Quantizes silu(gate) * up.
template <class T>
__global__ void __launch_bounds__(128) silu_mul_quantize(const T* __restrict__ x, const float* __restrict__ g, uint8_t* __restrict__ codes,
                                                         uint8_t* __restrict__ scale, int m, int k) {
  const int blocks = k / 16;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x;
  let_next_start();
  wait_for_previous();
  if (i >= static_cast<int64_t>(m) * blocks) return;
  const int64_t row = i / blocks;
  const int b = static_cast<int>(i - row * blocks);
  float gate[16], up[16];
  read_block(x + row * 2 * k + 16 * b, 16, true, gate);
  read_block(x + row * 2 * k + k + 16 * b, 16, true, up);
#pragma unroll
  for (int j = 0; j < 16; ++j) up[j] *= gate[j] / (1.0f + expf(-gate[j]));
  quantize_block(up, *g, codes + 8 * i, scale + i);
}

// A block of threads a row. Quantizes x / sqrt(mean(x^2) + eps) * weight, kept in float32 in between.
template <class T>
__global__ void __launch_bounds__(256) rmsnorm_quantize(const T* __restrict__ x, const T* __restrict__ weight, float eps,
                                                        const float* __restrict__ g, uint8_t* __restrict__ codes,
                                                        uint8_t* __restrict__ scale, int k) {
  __shared__ float sums[8];
  const int64_t row = blockIdx.x;
  const int blocks = k / 16;
  let_next_start();
  wait_for_previous();
  float sum = 0.0f;
  for (int b = threadIdx.x; b < blocks; b += 256) {
    float v[16];
    read_block(x + row * k + 16 * b, 16, true, v);
#pragma unroll
    for (int j = 0; j < 16; ++j) sum = fmaf(v[j], v[j], sum);
  }
  for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += sums[i];
  const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(k)) + eps));
  for (int b = threadIdx.x; b < blocks; b += 256) {
    float v[16], w[16];
    read_block(x + row * k + 16 * b, 16, true, v);
    read_block(weight + 16 * b, 16, true, w);
#pragma unroll
    for (int j = 0; j < 16; ++j) v[j] = v[j] * r * w[j];
    quantize_block(v, *g, codes + 8 * (row * blocks + b), scale + row * blocks + b);
  }
}

// A thread a block of 16: (code * scale) * g, in float32, then rounded to the type wanted. k is a multiple of 16.
__global__ void __launch_bounds__(128) dequantize(const uint8_t* __restrict__ codes, const uint8_t* __restrict__ scale,
                                                  const float* __restrict__ g, void* __restrict__ y, int y_kind, int64_t blocks) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x;
  let_next_start();
  wait_for_previous();
  if (i >= blocks) return;
  const uint2 raw = *reinterpret_cast<const uint2*>(codes + 8 * i);
  const float s = decode_e4m3(scale[i]), a = *g;
  uint32_t words[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 v = decode_e2m1(((j < 4 ? raw.x : raw.y) >> (8 * (j & 3))) & 0xffu);
    const float low = __fmul_rn(v.x * s, a), high = __fmul_rn(v.y * s, a);
    if (y_kind == kF32) {
      reinterpret_cast<float2*>(y)[8 * i + j] = make_float2(low, high);
    } else if (y_kind == kBf16) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
      words[j] = *reinterpret_cast<const uint32_t*>(&pair);
    } else {
      const __half2 pair = __floats2half2_rn(low, high);
      words[j] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
  if (y_kind == kF32) return;
  reinterpret_cast<uint4*>(y)[2 * i] = make_uint4(words[0], words[1], words[2], words[3]);
  reinterpret_cast<uint4*>(y)[2 * i + 1] = make_uint4(words[4], words[5], words[6], words[7]);
}

// For the tests: the codes of the float32s with bits first, first + 1, ...: 8 a thread.
__global__ void __launch_bounds__(256) e2m1_sweep(uint32_t first, uint8_t* __restrict__ codes) {
  const uint32_t i = 8u * (blockIdx.x * 256u + threadIdx.x);
  float v[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = sb_float(first + i + j);
  *reinterpret_cast<uint32_t*>(codes + i / 2) = encode_e2m1(v);
}

template <class F>
int by_kind(int kind, F f) {
  if (kind == kF32) return f(static_cast<const float*>(nullptr));
  if (kind == kBf16) return f(static_cast<const __nv_bfloat16*>(nullptr));
  if (kind == kF16) return f(static_cast<const __half*>(nullptr));
  return cudaErrorInvalidValue;
}

inline dim3 blocks_of(int64_t items, int threads) { return dim3(static_cast<unsigned>((items + threads - 1) / threads)); }

}  // namespace sb

// x [m, k] to codes [m, 8 ceil(k / 16)] and scale [m, ceil(k / 16)]; g: one float32 on the device, greater than 0.
SB_API int sb_quantize(const void* x, int x_kind, const void* g, void* codes, void* scale, int m, int k, int pdl, void* stream) {
  if (m < 1 || k < 1) return cudaErrorInvalidValue;
  return sb::by_kind(x_kind, [&](auto* type) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    return sb::launch(sb::quantize<T>, sb::blocks_of(static_cast<int64_t>(m) * ((k + 15) / 16), 128), 128, stream, pdl,
                      static_cast<const T*>(x), static_cast<const float*>(g), static_cast<uint8_t*>(codes), static_cast<uint8_t*>(scale), m,
                      k);
  });
}

// x [m, 2 k], k a multiple of 16.
SB_API int sb_silu_mul_quantize(const void* x, int x_kind, const void* g, void* codes, void* scale, int m, int k, int pdl, void* stream) {
  if (m < 1 || k < 16 || k % 16) return cudaErrorInvalidValue;
  return sb::by_kind(x_kind, [&](auto* type) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    return sb::launch(sb::silu_mul_quantize<T>, sb::blocks_of(static_cast<int64_t>(m) * (k / 16), 128), 128, stream, pdl,
                      static_cast<const T*>(x), static_cast<const float*>(g), static_cast<uint8_t*>(codes), static_cast<uint8_t*>(scale), m,
                      k);
  });
}

// x [m, k] and weight [k] of one type, k a multiple of 16.
SB_API int sb_rmsnorm_quantize(const void* x, int x_kind, const void* weight, float eps, const void* g, void* codes, void* scale, int m,
                               int k, int pdl, void* stream) {
  if (m < 1 || k < 16 || k % 16) return cudaErrorInvalidValue;
  return sb::by_kind(x_kind, [&](auto* type) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    return sb::launch(sb::rmsnorm_quantize<T>, dim3(m), 256, stream, pdl, static_cast<const T*>(x), static_cast<const T*>(weight), eps,
                      static_cast<const float*>(g), static_cast<uint8_t*>(codes), static_cast<uint8_t*>(scale), k);
  });
}

// codes [m, k / 2] and scale [m, k / 16] to y [m, k]; k a multiple of 16.
SB_API int sb_dequantize(const void* codes, const void* scale, const void* g, void* y, int y_kind, int m, int k, int pdl, void* stream) {
  if (m < 1 || k < 16 || k % 16) return cudaErrorInvalidValue;
  const int64_t blocks = static_cast<int64_t>(m) * (k / 16);
  return sb::launch(sb::dequantize, sb::blocks_of(blocks, 128), 128, stream, pdl, static_cast<const uint8_t*>(codes),
                    static_cast<const uint8_t*>(scale), static_cast<const float*>(g), y, y_kind, blocks);
}

// Codes of `count` (a multiple of 2048) float32 bit patterns from `first` on, two a byte.
SB_API int sb_e2m1_sweep(uint32_t first, int64_t count, void* codes, void* stream) {
  if (count < 2048 || count % 2048) return cudaErrorInvalidValue;
  return sb::launch(sb::e2m1_sweep, dim3(static_cast<unsigned>(count / 2048)), 256, stream, 0, first, static_cast<uint8_t*>(codes));
}

// The same on the CPU, by the branch-free function.
SB_API void sb_e2m1_sweep_host(uint32_t first, int64_t count, uint8_t* codes) {
  for (int64_t i = 0; i < count / 2; ++i) {
    const uint32_t bits = first + 2 * static_cast<uint32_t>(i);
    codes[i] = static_cast<uint8_t>(sb_e2m1_encode_bits(bits) | sb_e2m1_encode_bits(bits + 1) << 4);
  }
}
