// Product for prefill: many tokens, activations quantized too (W4A4), on the tensor core's own FP4 instruction. Off by default: no layer and
// no plug-in calls it, and it has run on no GPU yet (README, "FP4 for prefill").
//
// y [M, N] = x [M, K] W [N, K]^T, both NVFP4 in the checkpoint's layout: codes [rows, K / 2], E4M3 scales [rows, K / 16], and one float32
// each. A block makes 128 tokens x 128 rows of W; its eight warps 64 x 32 each. K comes in steps of 64 through a ring in shared memory.
// Blocks that follow each other take other tokens and the same weights: weights are read once, and activations come from the L2 cache.
#include "fp4_mma.cuh"

namespace sb {

constexpr int kSide = 128, kStages = 3;  // two blocks then fit a multiprocessor of GB10
constexpr int kRow = 48;  // bytes between rows of 32 bytes in shared memory: a warp's reads of eight rows then meet no bank twice
constexpr int kCodes = kSide * kRow, kStage = 2 * (kCodes + 4 * kSide);

// One step of 64 k into a stage: codes of x, codes of w, scales of x, scales of w. Rows that do not exist are the last again: their products
// are not stored. A thread copies 16 bytes of a row of each side, and the scales of a row of one.
__device__ __forceinline__ void fetch_step(uint8_t* stage, const uint8_t* x, const uint8_t* xs, const uint8_t* w, const uint8_t* ws, int m0,
                                           int n0, int m, int n, int k, int step) {
  const int row = threadIdx.x >> 1, half = threadIdx.x & 1;
  const size_t xr = min(m0 + row, m - 1), wr = min(n0 + row, n - 1);
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(stage)), codes = at + row * kRow + 16 * half;
  copy_async<16>(codes, x + xr * (k >> 1) + 32 * step + 16 * half, true);
  copy_async<16>(codes + kCodes, w + wr * (k >> 1) + 32 * step + 16 * half, true);
  copy_async<4>(at + 2 * kCodes + 4 * (half * kSide + row), (half ? ws + wr * (k >> 4) : xs + xr * (k >> 4)) + 4 * step, true);
}

__device__ __forceinline__ uint32_t word(const uint8_t* p) { return *reinterpret_cast<const uint32_t*>(p); }

// A warp's 64 x 32 of one step.
__device__ __forceinline__ void multiply_step(const uint8_t* stage, float (&acc)[4][4][4]) {
  const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  const int row0 = 64 * (warp & 1), column0 = 32 * (warp >> 1);
  const uint8_t *w = stage + kCodes, *scales = stage + 2 * kCodes;
  uint32_t b[4][2], scale_b[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int column = column0 + 8 * j + g;
#pragma unroll
    for (int i = 0; i < 2; ++i) b[j][i] = word(w + column * kRow + 4 * t + 16 * i);
    scale_b[j] = word(scales + 4 * kSide + 4 * column);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + 16 * i + g;
    uint32_t a[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = word(stage + (row + 8 * (r & 1)) * kRow + 4 * t + 16 * (r >> 1));
    const uint32_t scale_a = word(scales + 4 * (row + 8 * (t & 1)));
#pragma unroll
    for (int j = 0; j < 4; ++j) mma_fp4(acc[i][j], a, b[j], scale_a, scale_b[j]);
  }
}

__global__ void __launch_bounds__(256)
    fp4_prefill(const uint8_t* __restrict__ x, const uint8_t* __restrict__ xs, const float* __restrict__ x_alpha, const uint8_t* __restrict__ w,
                const uint8_t* __restrict__ ws, const float* __restrict__ w_alpha, void* __restrict__ y, int y_kind, int m, int n, int k) {
  extern __shared__ __align__(16) uint8_t room[];
  const int m0 = blockIdx.x * kSide, n0 = blockIdx.y * kSide, steps = k / 64;
  wait_for_previous();
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) fetch_step(room + s * kStage, x, xs, w, ws, m0, n0, m, n, k, s);
    copy_commit();
  }
  float acc[4][4][4] = {};
  for (int s = 0; s < steps; ++s) {
    copy_wait<kStages - 2>();
    __syncthreads();  // this step is there for all, and the stage of the step before is free
    const int next = s + kStages - 1;
    if (next < steps) fetch_step(room + next % kStages * kStage, x, xs, w, ws, m0, n0, m, n, k, next);
    copy_commit();
    multiply_step(room + s % kStages * kStage, acc);
  }
  const float alpha = *x_alpha * *w_alpha;
  const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int row = m0 + 64 * (warp & 1) + 16 * i + g + 8 * (c >> 1), column = n0 + 32 * (warp >> 1) + 8 * j + 2 * t + (c & 1);
        if (row < m && column < n) store(y, y_kind, static_cast<size_t>(row) * n + column, acc[i][j][c] * alpha);
      }
}

}  // namespace sb

// x [m, k / 2] codes, xs [m, k / 16] E4M3, x_alpha one float32; w [n, k / 2], ws [n, k / 16], w_alpha; y [m, n]. k is a multiple of 64.
// Needs a GPU of generation 12: on others the error is "operation not supported".
SB_API int sb_fp4_prefill(const void* x, const void* xs, const void* x_alpha, const void* w, const void* ws, const void* w_alpha, void* y,
                          int y_kind, int m, int n, int k, int pdl, void* stream) {
  if (m < 1 || n < 1 || k < 64 || k % 64) return cudaErrorInvalidValue;
  if (sb::attribute(cudaDevAttrComputeCapabilityMajor) != 12) return cudaErrorNotSupported;
  return sb::launch_shared(sb::fp4_prefill, dim3((m + sb::kSide - 1) / sb::kSide, (n + sb::kSide - 1) / sb::kSide), 256,
                           sb::kStages * sb::kStage, stream, pdl, static_cast<const uint8_t*>(x), static_cast<const uint8_t*>(xs),
                           static_cast<const float*>(x_alpha), static_cast<const uint8_t*>(w), static_cast<const uint8_t*>(ws),
                           static_cast<const float*>(w_alpha), y, y_kind, m, n, k);
}
