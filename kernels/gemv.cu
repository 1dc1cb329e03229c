// Products of a weight matrix with 1 to 8 tokens: NVFP4 (K3, K4) and FP8 E4M3 (K7) weights, in the checkpoint's own layout.
//
// y [M, N] = x [M, K] W [N, K]^T. One kernel does M = 1 to 8: the tensor core's tile has eight columns whether or not they are used, and
// at these sizes only the bytes of the weights cost time. A block owns 16 R rows; its warps split K, step by step in turn, so that
// together they read runs of 512 bytes of each row; their sums are added in a fixed order.
#include "common.cuh"

namespace sb {

// W warps, D steps of each ahead in registers.
template <class T, int R, int D, int W>
__global__ void __launch_bounds__(32 * W, SB_NATIVE_FP4 ? 1 : 16 / W)
    fp4_gemv(const uint8_t* __restrict__ w, const uint8_t* __restrict__ scale, const float* __restrict__ alpha, const T* __restrict__ x,
             void* __restrict__ y, int y_kind, int m, int n, int k, int round) {
  extern __shared__ __align__(16) uint8_t room[];
  __shared__ Partial<16 * R, W> partial;
  const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  const int row0 = blockIdx.x * 16 * R;
  const uint8_t* wp[R][2];
  const uint8_t* sp[R][2];
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const size_t row = min(row0 + 16 * r + 8 * h + g, n - 1);
      wp[r][h] = w + row * (k >> 1) + warp * 64 + 16 * t;
      sp[r][h] = scale + row * (k >> 4) + warp * 8 + 2 * t;
    }
  // Steps of this warp, and of this lane: where K ends inside a step, the lanes beyond it keep old weights and meet zeros.
  auto steps_before = [&](int end) { return max(0, (end - warp * 128 + W * 128 - 1) / (W * 128)); };
  const int mine = steps_before(k), lane_steps = steps_before(k - 32 * t);
  Step<R> st[D];
#pragma unroll
  for (int d = 0; d < D; ++d)
    if (d < lane_steps) st[d].load(wp, sp, d * W * 64, d * W * 8);  // weights do not depend on the kernel before
  let_next_start();
  wait_for_previous();
  const float a = __ldg(alpha) * kUndo;
  Acc<R> acc = {};
  int i = 0;
  for (int k0 = 0; k0 < k; k0 += round) {
    const int span = min(round, k - k0 + 127 & ~127);
    if (k0) __syncthreads();
    stage_acts<4>(room, x, m, k0, span, k, 32 * W);
    zeros_behind(room + m * span * 2);
    __syncthreads();
    const ActsView at(room, m, span);
    const int end = steps_before(min(k0 + round, k));
    uint32_t step = at.stride * warp;
    for (; i < end; i += D) {
#pragma unroll
      for (int d = 0; d < D; ++d) {
        if (i + d < end) {
          multiply<T, R>(st[d], at.first + step, at.second + step, acc);
          if (i + d + D < lane_steps) st[d].load(wp, sp, (d + D) * W * 64, (d + D) * W * 8);
          step += at.stride * W;
        }
      }
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) wp[r][h] += D * W * 64, sp[r][h] += D * W * 8;
    }
  }
  float sum[R][4];
  fold<R>(acc, sum);
  put<R>(partial, sum);
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * R * m; i += 32 * W) {
    const int row = i % (16 * R), token = i / (16 * R);
    if (row0 + row < n) store(y, y_kind, static_cast<size_t>(token) * n + row0 + row, take(partial, row, token) * a);
  }
}

// BLOCKED: scales are [ceil(N / 128), ceil(K / 128)]; otherwise one a row.
template <class T, int D, bool BLOCKED>
__global__ void __launch_bounds__(256, 2)
    fp8_gemv(const uint8_t* __restrict__ w, const float* __restrict__ scale, const T* __restrict__ x, void* __restrict__ y, int y_kind,
             int m, int n, int k) {
  __shared__ Partial<16> partial;
  const int warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  const int row0 = blockIdx.x * 16;
  const uint8_t* wp[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) wp[h] = w + static_cast<size_t>(min(row0 + 8 * h + g, n - 1)) * k + 16 * t;
  const int steps = (k + 63) >> 6;
  const int mine = steps > warp ? (steps - warp + warps - 1) / warps : 0;
  const T* xp = x + static_cast<size_t>(g < m ? g : 0) * k + 16 * t;
  const float* sp = scale + static_cast<size_t>(row0 >> 7) * ((k + 127) >> 7);

  auto fetch = [&](Fp8Stage& st, int i) {
    const int step = warp + i * warps;
    const bool valid = i < mine && step * 64 + 16 * t < k;
#pragma unroll
    for (int h = 0; h < 2; ++h) st.w[h] = valid ? load_stream(wp[h] + step * 64) : make_uint4(0, 0, 0, 0);
  };
  auto fetch_x = [&](Acts& a, int i) {
    const int step = warp + i * warps;
    a.load(xp + step * 64, i < mine && g < m && step * 64 + 16 * t < k);
  };

  Fp8Stage st[D];
#pragma unroll
  for (int d = 0; d < D; ++d) fetch(st[d], d);
  let_next_start();
  wait_for_previous();
  Acts cur, next;
  fetch_x(cur, 0);
  Acc<1> acc = {};
  for (int i = 0; i < mine; i += D) {
#pragma unroll
    for (int d = 0; d < D; ++d) {
      if (i + d < mine) {
        fetch_x(next, i + d + 1);
        if constexpr (BLOCKED) {
          const float s = __ldg(sp + ((warp + (i + d) * warps) >> 1));
          Acc<1> part = {};
          multiply<T>(st[d], cur, part);
#pragma unroll
          for (int c = 0; c < 4; ++c) acc[0][0][c] = fmaf(s, part[0][0][c] + part[0][1][c], acc[0][0][c]);
        } else {
          multiply<T>(st[d], cur, acc);
        }
        fetch(st[d], i + d + D);
        cur = next;
      }
    }
  }
  float sum[1][4];
  fold<1>(acc, sum);
  put<1>(partial, sum);
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * m; i += blockDim.x) {
    const int row = i % 16, token = i / 16;
    if (row0 + row < n) {
      const float s = BLOCKED ? 1.0f : scale[row0 + row];
      store(y, y_kind, static_cast<size_t>(token) * n + row0 + row, take(partial, row, token) * s);
    }
  }
}

// The index of the largest of n float32 logits, the lowest where several are; NaN never wins. One block a token.
__global__ void __launch_bounds__(1024) argmax(const float* __restrict__ y, int n, int64_t* __restrict__ index) {
  __shared__ float values[32];
  __shared__ int indices[32];
  wait_for_previous();
  const float* row = y + static_cast<size_t>(blockIdx.x) * n;
  float best = -INFINITY;
  int at = n;
  auto better = [&](float v, int i) {
    if (v > best || (v == best && i < at)) best = v, at = i;
  };
#pragma unroll 8
  for (int i = threadIdx.x; i < n; i += 1024) better(row[i], i);
  for (int d = 16; d; d >>= 1) {
    const float v = __shfl_xor_sync(~0u, best, d);
    const int i = __shfl_xor_sync(~0u, at, d);
    better(v, i);
  }
  if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = best, indices[threadIdx.x / 32] = at;
  __syncthreads();
  if (threadIdx.x < 32) {
    best = values[threadIdx.x], at = indices[threadIdx.x];
    for (int d = 16; d; d >>= 1) {
      const float v = __shfl_xor_sync(~0u, best, d);
      const int i = __shfl_xor_sync(~0u, at, d);
      better(v, i);
    }
    if (threadIdx.x == 0) index[blockIdx.x] = at < n ? at : 0;
  }
}

constexpr int kActsBytes = 64 * 1024;  // of activations at a time; more tokens or a longer K take several rounds

template <class T, int R, int D, int W>
int run_fp4(const void* w, const void* s, const void* alpha, const void* x, void* y, int y_kind, int m, int n, int k, int pdl, void* stream) {
  // Rounds are a whole number of turns of every warp's loop.
  const int round = k <= kActsBytes / (2 * m) ? (k + 127) & ~127 : kActsBytes / (2 * m) / 4096 * 4096;
  return launch_shared(fp4_gemv<T, R, D, W>, dim3((n + 16 * R - 1) / (16 * R)), 32 * W, 2 * m * round + 64, stream, pdl,
                       static_cast<const uint8_t*>(w), static_cast<const uint8_t*>(s), static_cast<const float*>(alpha),
                       static_cast<const T*>(x), y, y_kind, m, n, k, round);
}

// The variant measured best on an H100: with few rows many small tiles, with many rows larger ones, and small blocks where K is short.
inline void choose(int n, int k, int& tiles, int& warps) {
  const int blocks = (n + 31) / 32, processors = attribute(cudaDevAttrMultiProcessorCount);
  if (!tiles) tiles = blocks <= processors ? 1 : 2;
  if (!warps) warps = blocks > 2 * processors && k <= 8192 ? 4 : 8;
}

template <class T>
int run_fp4(const void* w, const void* s, const void* alpha, const void* x, void* y, int y_kind, int m, int n, int k, int tiles, int warps,
            int pdl, void* stream) {
  choose(n, k, tiles, warps);
  if (tiles == 2)
    return warps == 4 ? run_fp4<T, 2, 2, 4>(w, s, alpha, x, y, y_kind, m, n, k, pdl, stream)
                      : run_fp4<T, 2, 2, 8>(w, s, alpha, x, y, y_kind, m, n, k, pdl, stream);
  return warps == 4 ? run_fp4<T, 1, 4, 4>(w, s, alpha, x, y, y_kind, m, n, k, pdl, stream)
                    : run_fp4<T, 1, 4, 8>(w, s, alpha, x, y, y_kind, m, n, k, pdl, stream);
}

template <class T>
int run_fp8(const void* w, const void* s, int blocked, const void* x, void* y, int y_kind, int m, int n, int k, int pdl, void* stream) {
  const auto kernel = blocked ? fp8_gemv<T, 4, true> : fp8_gemv<T, 4, false>;
  return launch(kernel, dim3((n + 15) / 16), 256, stream, pdl, static_cast<const uint8_t*>(w), static_cast<const float*>(s),
                static_cast<const T*>(x), y, y_kind, m, n, k);
}

}  // namespace sb

// w [n, k / 2] codes, the even k in the low nibble; scale [n, k / 16] E4M3; alpha: one float32 that multiplies; x [m, k], y [m, n].
// k is a multiple of 64, m is 1 to 8. tiles (1, 2) and warps (4, 8) choose the variant; 0: the one measured best.
SB_API int sb_fp4_gemv(const void* w, const void* scale, const void* alpha, const void* x, int x_kind, void* y, int y_kind, int m, int n,
                       int k, int tiles, int warps, int pdl, void* stream) {
  if (m < 1 || m > 8 || n < 1 || k < 64 || k % 64 || static_cast<int64_t>(n) * (k / 2) > UINT32_MAX) return cudaErrorInvalidValue;
  return x_kind == sb::kBf16 ? sb::run_fp4<__nv_bfloat16>(w, scale, alpha, x, y, y_kind, m, n, k, tiles, warps, pdl, stream)
                             : sb::run_fp4<__half>(w, scale, alpha, x, y, y_kind, m, n, k, tiles, warps, pdl, stream);
}

// w [n, k] E4M3; scale float32: [n], or [ceil(n / 128), ceil(k / 128)] if blocked. k is a multiple of 16.
SB_API int sb_fp8_gemv(const void* w, const void* scale, int blocked, const void* x, int x_kind, void* y, int y_kind, int m, int n, int k,
                       int pdl, void* stream) {
  if (m < 1 || m > 8 || n < 1 || k < 16 || k % 16) return cudaErrorInvalidValue;
  return x_kind == sb::kBf16 ? sb::run_fp8<__nv_bfloat16>(w, scale, blocked, x, y, y_kind, m, n, k, pdl, stream)
                             : sb::run_fp8<__half>(w, scale, blocked, x, y, y_kind, m, n, k, pdl, stream);
}

// y [m, n] float32 to index [m] int64.
SB_API int sb_argmax(const void* y, int m, int n, void* index, int pdl, void* stream) {
  if (m < 1 || n < 1) return cudaErrorInvalidValue;
  return sb::launch(sb::argmax, dim3(m), 1024, stream, pdl, static_cast<const float*>(y), n, static_cast<int64_t*>(index));
}

SB_API const char* sb_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
