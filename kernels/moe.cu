// K5: the experts of a mixture-of-experts layer for a few tokens, in two launches.
//
//   h [m, topk, i]  = silu(gate) * up, with gate and up the rows of W13 [E, 2 i, hidden] of the expert that `ids` names
//   y [m, hidden]   = sum over a token's experts of weight * W2 [E, hidden, i] h
//
// The ids stay on the device and nothing is sorted, padded or added atomically: a block reads its expert's id and goes there. An id out of
// range (-1, as expert parallelism writes for experts that live elsewhere) adds nothing. The order of every sum is fixed.
#include "common.cuh"

namespace sb {

__device__ __forceinline__ float silu(float g) { return g / (1.0f + expf(-g)); }

constexpr int kWarps = 16;      // of a block, in both launches
// Steps of a warp in flight: on an H100 all that it has to do in the usual models' layers. GB10 has 99 kB of shared memory and a slower memory.
constexpr int kUpStages = 6, kUpStagesSmall = 3, kDownStages = 3;
constexpr int kTiles = 8;       // of the first launch that a block adds up together

// A tile is one tensor-core tile: 8 rows of gate above the 8 rows of up that go with them. Tiles are numbered by token, expert and rows;
// each block, one a multiprocessor, takes an even share of them, and its warps split K. Both launches fit a multiprocessor side by side,
// so that the second's weights are on their way while the first still works.
template <class T, int S>
__global__ void __launch_bounds__(32 * kWarps, SB_NATIVE_FP4 ? 1 : 2)
    moe_gate_up(const uint8_t* __restrict__ w13, const uint8_t* __restrict__ s13, const float* __restrict__ alpha13, int experts,
                const int* __restrict__ ids, const T* __restrict__ x, T* __restrict__ h, int tokens, int topk, int inter, int hidden) {
  constexpr int W = kWarps, bytes = kStageBytes<1>;
  extern __shared__ __align__(16) uint8_t room[];  // activations of two tokens, zeros, rings
  __shared__ float partial[kTiles][W][17];
  __shared__ float2 alpha[kTiles];  // of gate and up; zero where there is no expert
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int steps = (hidden + 127) >> 7, span = steps * 128, turns = (steps + W - 1) / W, groups = inter >> 3;
  const int64_t tiles = static_cast<int64_t>(tokens) * topk * groups;
  const int first = static_cast<int>(tiles * blockIdx.x / gridDim.x), last = static_cast<int>(tiles * (blockIdx.x + 1) / gridDim.x);
  const uint32_t acts = static_cast<uint32_t>(__cvta_generic_to_shared(room)), ring = acts + 4 * span + 64 + warp * S * bytes;
  Rows<1> rows;  // from the tile's first row of gate
  rows.w[0][0] = g * (hidden >> 1) + 16 * t;
  rows.w[0][1] = (inter + g) * (hidden >> 1) + 16 * t;
  rows.s[0] = ((lane >> 4) * inter + (lane >> 1 & 7)) * (hidden >> 4) + 4 * (lane & 1);
  let_next_start();
  wait_for_previous();  // the router's ids
  for (int begin = first; begin < last; begin += kTiles) {
    const int count = min(kTiles, last - begin);
    // Lane i knows tile i: its expert and the matrix row at which it begins, or -1.
    int mine = -1, row = -1;
    if (lane < count) {
      const int pair = (begin + lane) / groups, e = load_after_wait32(ids + pair);
      if (e >= 0 && e < experts) mine = e, row = e * 2 * inter + (begin + lane - pair * groups) * 8;
    }
    int next_tile = 0, next_step = warp;  // what is fetched next
    auto fetch = [&](uint32_t stage) {
      if (next_tile < count) {
        const int from = __shfl_sync(~0u, row, next_tile), k0 = next_step * 128;
        const size_t at = max(from, 0);
        copy_rows<1>(stage, w13 + at * (hidden >> 1), s13 + at * (hidden >> 4), rows, k0, hidden, from >= 0 && k0 < hidden);
        next_step += W;
        if (next_step >= turns * W) next_step = warp, ++next_tile;
      }
      copy_commit();
    };
#pragma unroll
    for (int s = 0; s < S; ++s) fetch(ring + s * bytes);
    if (warp == 0 && lane < count)
      alpha[lane] = mine >= 0 ? make_float2(__ldg(alpha13 + 2 * mine) * kUndo, __ldg(alpha13 + 2 * mine + 1) * kUndo) : make_float2(0, 0);
    const int per_token = topk * groups, token0 = begin / per_token;  // kTiles tiles never reach into a third token: per_token is at least 8
    stage_acts<1>(room, x + static_cast<size_t>(token0) * hidden, (begin + count - 1) / per_token - token0 + 1, 0, span, hidden, 32 * W);
    zeros_behind(room + 4 * span);
    __syncthreads();
    uint32_t stage = ring;
    for (int tile = 0; tile < count; ++tile) {
      const int which = begin + tile >= (token0 + 1) * per_token;
      const uint32_t at = g ? acts + 4 * span : acts + which * span * 2, stride = g ? 0 : 256;
      const uint32_t one = at + (g ? 0 : acts_at(which, 4 * t)), two = at + (g ? 32 : acts_at(which, 4 * t + 2));
      Acc<1> acc = {};
      for (int step = warp; step < turns * W; step += W) {
        copy_wait<S - 1>();
        __syncwarp();
        if (step < steps) multiply<T, 1>(stage, one + step * stride, two + step * stride, acc);
        __syncwarp();
        fetch(stage);
        stage = stage == ring + (S - 1) * bytes ? ring : stage + bytes;
      }
      float sum[1][4];
      fold<1>(acc, sum);
      if (t == 0) partial[tile][warp][g] = sum[0][0], partial[tile][warp][g + 8] = sum[0][2];
    }
    __syncthreads();
    if (threadIdx.x < 8 * count) {
      const int tile = threadIdx.x >> 3, row = threadIdx.x & 7;
      float gate = 0.0f, up = 0.0f;
#pragma unroll
      for (int w = 0; w < W; ++w) gate += partial[tile][w][row], up += partial[tile][w][row + 8];
      const size_t pair = (begin + tile) / groups;
      store(h, Act<T>::kind, pair * inter + (begin + tile) % groups * 8 + row, silu(gate * alpha[tile].x) * (up * alpha[tile].y));
    }
    if (begin + kTiles < last) __syncthreads();
  }
}

// A block: 16 rows of the result, over all of a token's experts. A unit of work is one step of 128 k in one expert.
template <class T>
__global__ void __launch_bounds__(32 * kWarps, SB_NATIVE_FP4 ? 1 : 2)
    moe_down(const uint8_t* __restrict__ w2, const uint8_t* __restrict__ s2, const float* __restrict__ alpha2, int experts,
             const int* __restrict__ ids, const float* __restrict__ weights, const T* __restrict__ h, void* __restrict__ y, int y_kind,
             int topk, int inter, int hidden) {
  constexpr int W = kWarps, S = kDownStages, bytes = kStageBytes<1>;
  extern __shared__ __align__(16) uint8_t room[];  // activations of all slots, zeros, a factor a slot, rings
  __shared__ Partial<16, W> partial;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int row0 = blockIdx.x * 16, token = blockIdx.y;
  const int steps = (inter + 127) >> 7, units = topk * steps, span = steps * 128;
  float* const factor = reinterpret_cast<float*>(room + topk * span * 2 + 64);
  const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(room)) + topk * span * 2 + 64 + ((4 * topk + 15) & ~15) + warp * S * bytes;
  Rows<1> rows;
  rows.set(0, row0, hidden, inter);
  ids += token * topk;
  weights += token * topk;

  auto expert = [&](int slot) {  // or -1
    const int e = __ldg(ids + slot);
    return e < experts ? e : -1;
  };
  int mine = 0, first = -1;  // lane i knows this warp's unit i (then 32 + i, ...): slot and step, and its expert's first row or -1
  auto look_up = [&](int i) {
    const int u = warp + (i + lane) * W;
    if (u < units) {
      const int slot = u / steps;
      mine = slot << 16 | (u - slot * steps);
      const int e = expert(slot);
      first = e >= 0 ? e * hidden : -1;
    }
  };
  look_up(0);
  auto fetch = [&](uint32_t stage, int i) {
    if (warp + i * W < units) {
      if (i && i % 32 == 0) look_up(i);
      const int from = __shfl_sync(~0u, first, i & 31), k0 = (__shfl_sync(~0u, mine, i & 31) & 0xffff) * 128;
      const size_t at = max(from, 0);
      copy_rows<1>(stage, w2 + at * (inter >> 1), s2 + at * (inter >> 4), rows, k0, inter, from >= 0);
    }
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < S; ++s) fetch(ring + s * bytes, s);  // the ids are older than the kernel before
  for (int slot = threadIdx.x; slot < topk; slot += 32 * W) {
    const int e = expert(slot);
    factor[slot] = e >= 0 ? __ldg(weights + slot) * __ldg(alpha2 + e) * kUndo : 0.0f;
  }
  let_next_start();
  wait_for_previous();
  for (int slot = warp; slot < topk; slot += W)  // a slot without an expert has no h: zeros
    stage_acts<2>(room + slot * span * 2, h + (static_cast<size_t>(token) * topk + slot) * inter, 1, 0, span, expert(slot) >= 0 ? inter : 0, 32);
  zeros_behind(room + topk * span * 2);
  __syncthreads();
  const ActsView at(room, 1, topk * span);  // one row of all slots' h
  float sum[1][4] = {};
  uint32_t stage = ring;
  for (int i = 0, u = warp; u < units; ++i, u += W) {
    const float s = factor[u / steps];
    copy_wait<S - 1>();
    __syncwarp();
    Acc<1> acc = {};
    multiply<T, 1>(stage, at.first + at.stride * u, at.second + at.stride * u, acc);
    __syncwarp();
    fetch(stage, i + S);
#pragma unroll
    for (int c = 0; c < 4; ++c) sum[0][c] = fmaf(s, acc[0][0][c] + acc[0][1][c], sum[0][c]);
    stage = stage == ring + (S - 1) * bytes ? ring : stage + bytes;
  }
  put<1>(partial, sum);
  __syncthreads();
  if (threadIdx.x < 16 && row0 + threadIdx.x < hidden)
    store(y, y_kind, static_cast<size_t>(token) * hidden + row0 + threadIdx.x, take(partial, threadIdx.x, 0));
}

// The second launch is always programmatic: what it reads before it waits, weights and the router's ids, is older than the first.
template <class T>
int run_moe(const void* w13, const void* s13, const void* alpha13, const void* w2, const void* s2, const void* alpha2, int experts,
            const void* ids, const void* weights, const void* x, void* h, void* y, int y_kind, int m, int topk, int inter, int hidden,
            int pdl, void* stream) {
  const int tiles = m * topk * (inter / 8), acts = ((hidden + 127) & ~127) * 4 + 64;
  const bool large = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= 160 * 1024;
  const int stages = large ? kUpStages : kUpStagesSmall;
  const auto gate_up = large ? moe_gate_up<T, kUpStages> : moe_gate_up<T, kUpStagesSmall>;
  // Kernels that split L1 and shared memory differently can't share a multiprocessor. (For kernels that load into registers this split
  // would be wrong: what is on its way to them stands in L1.)
  cudaFuncSetAttribute(gate_up, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  cudaFuncSetAttribute(moe_down<T>, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  const int code = launch_shared(gate_up, dim3(min(tiles, attribute(cudaDevAttrMultiProcessorCount))), 32 * kWarps,
                                 acts + kWarps * stages * kStageBytes<1>, stream, pdl, static_cast<const uint8_t*>(w13), static_cast<const uint8_t*>(s13),
                                 static_cast<const float*>(alpha13), experts, static_cast<const int*>(ids), static_cast<const T*>(x),
                                 static_cast<T*>(h), m, topk, inter, hidden);
  if (code) return code;
  const int row = topk * ((inter + 127) / 128) * 256 + 64 + ((4 * topk + 15) & ~15);
  return launch_shared(moe_down<T>, dim3((hidden + 15) / 16, m), 32 * kWarps, row + kWarps * kDownStages * kStageBytes<1>, stream, 1,
                       static_cast<const uint8_t*>(w2), static_cast<const uint8_t*>(s2), static_cast<const float*>(alpha2), experts,
                       static_cast<const int*>(ids), static_cast<const float*>(weights), static_cast<const T*>(h), y, y_kind, topk, inter,
                       hidden);
}

}  // namespace sb

// w13 [E, 2 inter, hidden / 2], s13 [E, 2 inter, hidden / 16], alpha13 [E, 2] (gate, up); w2 [E, hidden, inter / 2], s2, alpha2 [E];
// ids int32 and weights float32 [m, topk]; x [m, hidden]; h [m, topk, inter]: room, of x's type; y [m, hidden].
// hidden and inter are multiples of 64. A programmatic launch (pdl) may be used if no kernel after the router's wrote the ids.
SB_API int sb_moe_decode(const void* w13, const void* s13, const void* alpha13, const void* w2, const void* s2, const void* alpha2,
                         int experts, const void* ids, const void* weights, const void* x, int x_kind, void* h, void* y, int y_kind, int m,
                         int topk, int inter, int hidden, int pdl, void* stream) {
  if (m < 1 || topk < 1 || experts < 1 || inter < 64 || inter % 64 || hidden < 64 || hidden % 64) return cudaErrorInvalidValue;
  return x_kind == sb::kBf16 ? sb::run_moe<__nv_bfloat16>(w13, s13, alpha13, w2, s2, alpha2, experts, ids, weights, x, h, y, y_kind, m,
                                                          topk, inter, hidden, pdl, stream)
                             : sb::run_moe<__half>(w13, s13, alpha13, w2, s2, alpha2, experts, ids, weights, x, h, y, y_kind, m, topk,
                                                   inter, hidden, pdl, stream);
}
