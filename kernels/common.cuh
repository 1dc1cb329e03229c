// What the kernels share: loads, launches, tensor-core tiles, and the decoding of weights into their operands.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "e2m1.h"
#include "ptx.cuh"

#define SB_API extern "C" __attribute__((visibility("default")))

// The FP4 conversions exist on the family and architecture targets (sm_120f, sm_121f, sm_121a, ...), not on plain sm_121, which has the
// same __CUDA_ARCH__. So the guard asks for the family.
#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1000
#define SB_NATIVE_FP4 1
#else
#define SB_NATIVE_FP4 0
#endif

namespace sb {

enum Kind : int { kF32 = 0, kBf16 = 1, kF16 = 2 };  // element types in the C interface

// ---- launches

template <class... P, class... A>
int launch_clusters(void (*kernel)(P...), dim3 grid, int threads, int shared_bytes, void* stream, int pdl, int cluster, A... args) {
  if (shared_bytes > 0)
    if (const int code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes)) return code;
  cudaLaunchAttribute attributes[2]{};
  int count = 0;
  if (pdl) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = cluster;
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, P(args)...);
}

template <class... P, class... A>
int launch_shared(void (*kernel)(P...), dim3 grid, int threads, int shared_bytes, void* stream, int pdl, A... args) {
  return launch_clusters(kernel, grid, threads, shared_bytes, stream, pdl, 1, args...);
}

template <class... P, class... A>
int launch(void (*kernel)(P...), dim3 grid, int threads, void* stream, int pdl, A... args) {
  return launch_shared(kernel, grid, threads, 0, stream, pdl, args...);
}

inline int attribute(cudaDeviceAttr which) {  // of the current GPU
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, which, device);
  return value;
}

// ---- memory

__device__ __forceinline__ void store(void* y, int kind, size_t i, float v) {
  if (kind == kF32) static_cast<float*>(y)[i] = v;
  else if (kind == kBf16) static_cast<__nv_bfloat16*>(y)[i] = __float2bfloat16(v);
  else static_cast<__half*>(y)[i] = __float2half(v);
}

// ---- activations: bf16 or f16, two in a register, and what weights of 4 and 8 bits become beside them

template <class T>
struct Act;

// The exponent and mantissa of an E2M1 code lie three bits, unmoved, at the low end of the exponent field: the value is 2^-126 (bf16) or
// 2^-14 (f16) of the code's, exactly, zero and subnormal included. The block scale brings most of that back; kUndo is what is left.
// A code (2 significant bits) times an E4M3 scale (4 bits) fits both types exactly, so no precision is lost before the tensor core.
template <>
struct Act<__nv_bfloat16> {
  static constexpr int kind = kBf16;
  static constexpr int fp8_shift = 4;
  static constexpr uint32_t fp8_mask = 0x07f007f0u, fp8_undo = 0x7b807b80u;  // 2^120
  static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) { return mul_bf16x2(a, b); }
  // Two E4M3 scales to (s0, s0) and (s1, s1), times 2^119.
  static __device__ __forceinline__ void scales(uint32_t two, uint32_t& s0, uint32_t& s1) {
    const uint32_t h = e4m3x2_to_half2(two);
    const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&h));
    const float a = f.x * 6.646139978924579e35f, b = f.y * 6.646139978924579e35f;  // 2^119
    s0 = bf16_twice(a);
    s1 = bf16_twice(b);
  }
};

template <>
struct Act<__half> {
  static constexpr int kind = kF16;
  static constexpr int fp8_shift = 1;
  static constexpr uint32_t fp8_mask = 0x3f803f80u, fp8_undo = 0x5c005c00u;  // 2^8
  static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) { return mul_f16x2(a, b); }
  static __device__ __forceinline__ void scales(uint32_t two, uint32_t& s0, uint32_t& s1) {
    const uint32_t h = mul2(e4m3x2_to_half2(two), 0x58005800u);  // 2^7
    s0 = __byte_perm(h, h, 0x1010);
    s1 = __byte_perm(h, h, 0x3232);
  }
};

constexpr float kUndo = 128.0f;  // 2^126 / 2^119 and 2^14 / 2^7

// Eight codes (code i at bits 4i) to four pairs (codes j and j + 4), not scaled yet. One multiplication shifts a code's bits to both places,
// sign and magnitude, on the multiplier's pipe: what counts is the logic pipe, which runs at half its rate.
template <class T>
__device__ __forceinline__ void fp4_pairs(uint32_t w, uint32_t (&p)[4]);
template <>
__device__ __forceinline__ void fp4_pairs<__nv_bfloat16>(uint32_t w, uint32_t (&p)[4]) {
  const uint32_t upper = w >> 8;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t from = j < 2 ? w : upper;
    const uint32_t both = j & 1 ? (from & 0x00f000f0u) * 0x104u : (from & 0x000f000fu) * 0x1040u;  // to bits 12 and 6
    p[j] = both & 0x81c081c0u;
  }
}
// f16's places lie three bits apart from each other, where both copies would meet: the sign goes by itself.
template <>
__device__ __forceinline__ void fp4_pairs<__half>(uint32_t w, uint32_t (&p)[4]) {
  const uint32_t upper = w >> 8;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t from = j < 2 ? w : upper;
    if (j & 1) p[j] = (from & 0x00700070u) * 0x20u + (from & 0x00800080u) * 0x100u;
    else p[j] = (from & 0x00070007u) * 0x200u + (from & 0x00080008u) * 0x1000u;
  }
}

// The same, times a scale.
template <class T>
__device__ __forceinline__ void decode_fp4(uint32_t w, uint32_t scale, uint32_t (&p)[4]) {
  fp4_pairs<T>(w, p);
#pragma unroll
  for (int j = 0; j < 4; ++j) p[j] = Act<T>::mul2(p[j], scale);
}

// Four E4M3 bytes to two pairs (byte 0, byte 2), (byte 1, byte 3). NaN (0x7f) is not looked for: it decodes to 480.
template <class T>
__device__ __forceinline__ void decode_fp8(uint32_t w, uint32_t (&p)[2]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t sign = j ? w : w << 8;
    constexpr int s = Act<T>::fp8_shift;
    const uint32_t mag = j ? w >> s : w << (8 - s);
    p[j] = Act<T>::mul2((sign & 0x80008000u) | (mag & Act<T>::fp8_mask), Act<T>::fp8_undo);
  }
}

// ---- one step of a warp: 16 R rows, 16 bytes of each row a lane, four lanes a row (64 bytes: 128 weights of 4 bits, 64 of 8)
//
// The order of k inside a step is free as long as weights and activations agree on it. So each lane keeps the run of k that its own
// 16 bytes hold, in the checkpoint's order, and no weight ever crosses lanes. Row of a lane: lane / 4, and that + 8.
// Two accumulators a tile, in turn: a tensor-core instruction does not have to wait for the one before it.

template <int R>
using Acc = float[R][2][4];

template <int R>
__device__ __forceinline__ void fold(const Acc<R>& acc, float (&sum)[R][4]) {
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) sum[r][c] = acc[r][0][c] + acc[r][1][c];
}

// One word (8 codes) of rows g and g + 8 times the 8 activations in x.
template <class T>
__device__ __forceinline__ void multiply_fp4(uint32_t upper, uint32_t lower, uint32_t scale_upper, uint32_t scale_lower, const uint32_t (&b)[4],
                                             float (&acc)[2][4]) {
  uint32_t p[4], q[4];
  decode_fp4<T>(upper, scale_upper, p);
  decode_fp4<T>(lower, scale_lower, q);
  mma<T>(acc[0], p[0], q[0], p[1], q[1], b[0], b[1]);
  mma<T>(acc[1], p[2], q[2], p[3], q[3], b[2], b[3]);
}

struct Fp8Stage {
  uint4 w[2];
};

// The activations of one lane: 16 values of token lane / 4.
struct Acts {
  uint4 v[2];
  // x: this token's row, at this lane's k; zeros where the token or the k does not exist.
  template <class T>
  __device__ __forceinline__ void load(const T* x, bool valid) {
#pragma unroll
    for (int i = 0; i < 2; ++i) v[i] = valid ? load_after_wait(x + 8 * i) : make_uint4(0, 0, 0, 0);
  }
};

template <class T>
__device__ __forceinline__ void multiply(const Fp8Stage& st, const Acts& x, Acc<1>& acc) {
  const uint32_t xs[8] = {x.v[0].x, x.v[0].y, x.v[0].z, x.v[0].w, x.v[1].x, x.v[1].y, x.v[1].z, x.v[1].w};
  const uint32_t upper[4] = {st.w[0].x, st.w[0].y, st.w[0].z, st.w[0].w};
  const uint32_t lower[4] = {st.w[1].x, st.w[1].y, st.w[1].z, st.w[1].w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t p[2], q[2];
    decode_fp8<T>(upper[j], p);
    decode_fp8<T>(lower[j], q);
    mma<T>(acc[0][j & 1], p[0], q[0], p[1], q[1], __byte_perm(xs[2 * j], xs[2 * j + 1], 0x5410),
           __byte_perm(xs[2 * j], xs[2 * j + 1], 0x7632));
  }
}

// ---- activations in shared memory, once a block, in the order in which the decoded weights meet them
//
// [token][step of 128 k][256 bytes]; each piece of 16 bytes holds eight activations as pairs (k, k + 4). The pieces of a step are turned
// about so that the four lanes of a row meet no bank twice. Behind them 64 bytes of zeros, which the lanes of absent tokens read.

// Where in its step piece c (0..15) of a token lies.
__device__ __forceinline__ int acts_at(int token, int c) { return 16 * (c ^ ((c >> 3) << 1) ^ (token & 1)); }

__device__ __forceinline__ void zeros_behind(uint8_t* room) {
  if (threadIdx.x < 4) *reinterpret_cast<uint4*>(room + 16 * threadIdx.x) = make_uint4(0, 0, 0, 0);
}

// By `threads` threads (all of the block's, or 32: a warp), each with B loads in flight: x's rows [tokens] of length k, from k0 on, `span` of
// them (a multiple of 128, zeros beyond k). A load and a store by turns would wait for memory each time.
template <int B, class T>
__device__ __forceinline__ void stage_acts(uint8_t* room, const T* x, int tokens, int k0, int span, int k, int threads) {
  const int pieces = span >> 3, total = tokens * pieces;
  for (int first = threadIdx.x & threads - 1; first < total; first += B * threads) {
    uint4 v[B];
    int at[B];
#pragma unroll
    for (int b = 0; b < B; ++b) {
      const int i = first + b * threads, token = tokens == 1 ? 0 : i / pieces, piece = i - token * pieces;
      at[b] = token * span * 2 + (piece >> 4) * 256 + acts_at(token, piece & 15);
      v[b] = make_uint4(0, 0, 0, 0);
      if (i < total && k0 + 8 * piece < k) v[b] = load_after_wait(x + static_cast<size_t>(token) * k + k0 + 8 * piece);
    }
#pragma unroll
    for (int b = 0; b < B; ++b)
      if (first + b * threads < total)
        *reinterpret_cast<uint4*>(room + at[b]) = make_uint4(__byte_perm(v[b].x, v[b].z, 0x5410), __byte_perm(v[b].x, v[b].z, 0x7632),
                                                             __byte_perm(v[b].y, v[b].w, 0x5410), __byte_perm(v[b].y, v[b].w, 0x7632));
  }
}

// A lane's place in them: two pieces each from `first` and `second` on; `stride` bytes to the next step, none for an absent token.
struct ActsView {
  uint32_t first, second, stride;
  __device__ __forceinline__ ActsView(const uint8_t* room, int tokens, int span) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(room));
    const bool there = g < tokens;
    first = at + (there ? g * span * 2 + acts_at(g, 4 * t) : tokens * span * 2);
    second = at + (there ? g * span * 2 + acts_at(g, 4 * t + 2) : tokens * span * 2 + 32);
    stride = there ? 256 : 0;
  }
};

// ---- one step's weights in registers

template <int R>
struct Step {
  uint4 w[R][2] = {};
  uint32_t s[R][2] = {};  // two E4M3 scales each

  // wp, sp: this lane's rows g and g + 8 of each tile; offsets in bytes.
  __device__ __forceinline__ void load(const uint8_t* const (&wp)[R][2], const uint8_t* const (&sp)[R][2], int w_offset, int s_offset) {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        w[r][h] = load_stream(wp[r][h] + w_offset);
        s[r][h] = __ldg(reinterpret_cast<const uint16_t*>(sp[r][h] + s_offset));
      }
  }
};

template <class T, int R>
__device__ __forceinline__ void multiply(const Step<R>& st, uint32_t first, uint32_t second, Acc<R>& acc) {
  uint32_t scale[R][2][2];
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) Act<T>::scales(st.s[r][h], scale[r][h][0], scale[r][h][1]);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 x = shared16((j < 2 ? first : second) ^ 16 * (j & 1));
    const uint32_t b[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const uint4 &u = st.w[r][0], &l = st.w[r][1];
      const uint32_t upper = j == 0 ? u.x : j == 1 ? u.y : j == 2 ? u.z : u.w, lower = j == 0 ? l.x : j == 1 ? l.y : j == 2 ? l.z : l.w;
      multiply_fp4<T>(upper, lower, scale[r][0][j >> 1], scale[r][1][j >> 1], b, acc[r]);
    }
  }
}

// ---- a warp's ring of steps in shared memory, filled ahead by asynchronous copies
//
// A stage: weights [2 R][32 lanes][16 B], scales [16 R rows][8 B]. A lane reads back the weights that it copied itself; scales cross lanes.
// The copies in flight need no registers, and each stage is waited for by itself.

template <int R>
constexpr int kStageBytes = R * (1024 + 128);

// Where a lane's rows begin, in bytes from the matrix's first: its weights' (rows g, g + 8) and the scales' that it copies (row lane / 2).
template <int R>
struct Rows {
  uint32_t w[R][2], s[R];
  __device__ __forceinline__ void set(int r, int row0, int n, int k) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int h = 0; h < 2; ++h) w[r][h] = static_cast<uint32_t>(min(row0 + 8 * h + (lane >> 2), n - 1)) * (k >> 1) + 16 * (lane & 3);
    s[r] = static_cast<uint32_t>(min(row0 + (lane >> 1), n - 1)) * (k >> 4) + 4 * (lane & 1);
  }
};

// Copies one step of rows of length k: k0 is the step's first.
template <int R>
__device__ __forceinline__ void copy_rows(uint32_t stage, const uint8_t* w, const uint8_t* s, const Rows<R>& rows, int k0, int k, bool valid) {
  const int lane = threadIdx.x & 31;
  const bool inside = valid && k0 + 32 * (lane & 3) < k;
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) copy_async<16>(stage + (2 * r + h) * 512 + 16 * lane, w + rows.w[r][h] + (inside ? k0 >> 1 : 0), inside);
  const bool scales = valid && k0 + 64 * (lane & 1) < k;  // four of them
#pragma unroll
  for (int r = 0; r < R; ++r) copy_async<4>(stage + R * 1024 + r * 128 + 4 * lane, s + rows.s[r] + (scales ? k0 >> 4 : 0), scales);
}

// One stage times the activations of its step.
template <class T, int R>
__device__ __forceinline__ void multiply(uint32_t stage, uint32_t first, uint32_t second, Acc<R>& acc) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  uint4 w[R][2];
  uint32_t scale[R][2][2];
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      w[r][h] = shared16(stage + (2 * r + h) * 512 + 16 * lane);
      Act<T>::scales(shared2(stage + R * 1024 + r * 128 + 8 * (g + 8 * h) + 2 * t), scale[r][h][0], scale[r][h][1]);
    }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 x = shared16((j < 2 ? first : second) ^ 16 * (j & 1));
    const uint32_t b[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const uint4 &u = w[r][0], &l = w[r][1];
      const uint32_t upper = j == 0 ? u.x : j == 1 ? u.y : j == 2 ? u.z : u.w, lower = j == 0 ? l.x : j == 1 ? l.y : j == 2 ? l.z : l.w;
      multiply_fp4<T>(upper, lower, scale[r][0][j >> 1], scale[r][1][j >> 1], b, acc[r]);
    }
  }
}

// ---- the sum over a block's warps, in their order: the same bits in every run

template <int ROWS, int WARPS = 8>
struct Partial {
  float v[WARPS][ROWS][9];  // warp, row, token; 9: no two rows of a warp on one bank
};

template <int R, int ROWS, int WARPS>
__device__ __forceinline__ void put(Partial<ROWS, WARPS>& p, const float (&acc)[R][4]) {
  const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    p.v[warp][16 * r + g][2 * t] = acc[r][0];
    p.v[warp][16 * r + g][2 * t + 1] = acc[r][1];
    p.v[warp][16 * r + g + 8][2 * t] = acc[r][2];
    p.v[warp][16 * r + g + 8][2 * t + 1] = acc[r][3];
  }
}

template <int ROWS, int WARPS>
__device__ __forceinline__ float take(const Partial<ROWS, WARPS>& p, int row, int token) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) sum += p.v[w][row][token];
  return sum;
}

}  // namespace sb
