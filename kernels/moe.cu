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

// A block: 16 rows of gate and the 16 rows of up that go with them.
template <class T>
__global__ void __launch_bounds__(128, 4)
    moe_gate_up(const uint8_t* __restrict__ w13, const uint8_t* __restrict__ s13, const float* __restrict__ alpha13, int experts,
                const int* __restrict__ ids, const T* __restrict__ x, T* __restrict__ h, int topk, int inter, int hidden, int acts) {
  constexpr int W = 4, S = 4, bytes = kStageBytes<2>;
  extern __shared__ __align__(16) uint8_t room[];
  __shared__ Partial<32, W> partial;
  const int warp = threadIdx.x >> 5;
  const int row0 = blockIdx.x * 16, slot = blockIdx.y, token = blockIdx.z;
  const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(room)) + acts + warp * S * bytes;
  Rows<2> rows;
  rows.set(0, row0, inter, hidden);
  rows.set(1, row0, inter, hidden);
  rows.w[1][0] += inter * (hidden >> 1), rows.w[1][1] += inter * (hidden >> 1), rows.s[1] += inter * (hidden >> 4);
  wait_for_previous();  // the router's ids; only after this may the next launch start, which then can read them at once
  let_next_start();
  const int e = __ldg(ids + token * topk + slot);
  if (e < 0 || e >= experts) return;
  w13 += static_cast<size_t>(e) * 2 * inter * (hidden >> 1);
  s13 += static_cast<size_t>(e) * 2 * inter * (hidden >> 4);
  auto fetch = [&](uint32_t stage, int k0) {
    if (k0 < hidden) copy_rows<2>(stage, w13, s13, rows, k0, hidden, true);
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < S; ++s) fetch(ring + s * bytes, (warp + s * W) * 128);
  const int span = hidden + 127 & ~127;
  stage_acts(room, x + static_cast<size_t>(token) * hidden, 1, 0, span, hidden);
  const float gate_alpha = __ldg(alpha13 + 2 * e) * kUndo, up_alpha = __ldg(alpha13 + 2 * e + 1) * kUndo;
  __syncthreads();
  const ActsView at(room, 1, span);
  uint32_t step = at.stride * warp, stage = ring;
  Acc<2> acc = {};
  for (int k0 = warp * 128; k0 < hidden; k0 += W * 128) {
    copy_wait<S - 1>();
    __syncwarp();
    multiply<T, 2>(stage, at.first + step, at.second + step, acc);
    __syncwarp();
    fetch(stage, k0 + S * W * 128);
    step += at.stride * W;
    stage = stage == ring + (S - 1) * bytes ? ring : stage + bytes;
  }
  float sum[2][4];
  fold<2>(acc, sum);
  put<2>(partial, sum);
  __syncthreads();
  if (threadIdx.x < 16 && row0 + threadIdx.x < inter) {
    const float gate = take(partial, threadIdx.x, 0) * gate_alpha, up = take(partial, threadIdx.x + 16, 0) * up_alpha;
    store(h, Act<T>::kind, (static_cast<size_t>(token) * topk + slot) * inter + row0 + threadIdx.x, silu(gate) * up);
  }
}

constexpr int kDownWarps = 16;

// A block: 16 rows of the result, over all of a token's experts. A unit of work is one step of 128 k in one expert.
template <class T>
__global__ void __launch_bounds__(32 * kDownWarps, 1)
    moe_down(const uint8_t* __restrict__ w2, const uint8_t* __restrict__ s2, const float* __restrict__ alpha2, int experts,
             const int* __restrict__ ids, const float* __restrict__ weights, const T* __restrict__ h, void* __restrict__ y, int y_kind,
             int topk, int inter, int hidden, int acts) {
  constexpr int S = 3, bytes = kStageBytes<1>;
  extern __shared__ __align__(16) uint8_t room[];
  __shared__ Partial<16, kDownWarps> partial;
  const int warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const int row0 = blockIdx.x * 16, token = blockIdx.y;
  const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(room)) + acts + warp * S * bytes;
  const int steps = (inter + 127) >> 7, units = topk * steps, span = steps * 128;
  Rows<1> rows;
  rows.set(0, row0, hidden, inter);
  ids += token * topk;
  weights += token * topk;

  auto expert = [&](int slot) {  // or -1
    const int e = __ldg(ids + slot);
    return e < experts ? e : -1;
  };
  auto fetch = [&](uint32_t stage, int u) {
    if (u < units) {
      const int slot = u / steps, e = expert(slot);
      const size_t first = static_cast<size_t>(max(e, 0)) * hidden;
      copy_rows<1>(stage, w2 + first * (inter >> 1), s2 + first * (inter >> 4), rows, (u - slot * steps) * 128, inter, e >= 0);
    }
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < S; ++s) fetch(ring + s * bytes, warp + s * warps);  // the ids are older than the kernel before
  wait_for_previous();
  let_next_start();
  for (int slot = warp; slot < topk; slot += warps)  // a slot without an expert has no h: zeros
    stage_acts(room + slot * span * 2, h + (static_cast<size_t>(token) * topk + slot) * inter, 1, 0, span, expert(slot) >= 0 ? inter : 0, 32);
  zeros_behind(room + topk * span * 2);
  __syncthreads();
  const ActsView at(room, 1, topk * span);  // one row of all slots' h
  float sum[1][4] = {};
  uint32_t stage = ring;
  for (int u = warp; u < units; u += warps) {
    const int slot = u / steps, e = expert(slot);
    const float s = e >= 0 ? __ldg(weights + slot) * __ldg(alpha2 + e) * kUndo : 0.0f;
    copy_wait<S - 1>();
    __syncwarp();
    Acc<1> acc = {};
    multiply<T, 1>(stage, at.first + at.stride * u, at.second + at.stride * u, acc);
    __syncwarp();
    fetch(stage, u + S * warps);
#pragma unroll
    for (int c = 0; c < 4; ++c) sum[0][c] = fmaf(s, acc[0][0][c] + acc[0][1][c], sum[0][c]);
    stage = stage == ring + (S - 1) * bytes ? ring : stage + bytes;
  }
  put<1>(partial, sum);
  __syncthreads();
  if (threadIdx.x < 16 && row0 + threadIdx.x < hidden)
    store(y, y_kind, static_cast<size_t>(token) * hidden + row0 + threadIdx.x, take(partial, threadIdx.x, 0));
}

template <class T>
int run_moe(const void* w13, const void* s13, const void* alpha13, const void* w2, const void* s2, const void* alpha2, int experts,
            const void* ids, const void* weights, const void* x, void* h, void* y, int y_kind, int m, int topk, int inter, int hidden,
            int pdl, void* stream) {
  const int acts = ((hidden + 127) & ~127) * 2 + 64;
  const int code = launch_shared(moe_gate_up<T>, dim3((inter + 15) / 16, topk, m), 128, acts + 4 * 4 * kStageBytes<2>, stream, pdl,
                                 static_cast<const uint8_t*>(w13), static_cast<const uint8_t*>(s13), static_cast<const float*>(alpha13),
                                 experts, static_cast<const int*>(ids), static_cast<const T*>(x), static_cast<T*>(h), topk, inter, hidden,
                                 acts);
  if (code) return code;
  const int units = topk * ((inter + 127) / 128), warps = min(kDownWarps, units), row = units * 256 + 64;
  return launch_shared(moe_down<T>, dim3((hidden + 15) / 16, m), 32 * warps, row + warps * 3 * kStageBytes<1>, stream, pdl,
                       static_cast<const uint8_t*>(w2), static_cast<const uint8_t*>(s2), static_cast<const float*>(alpha2), experts,
                       static_cast<const int*>(ids), static_cast<const float*>(weights), static_cast<const T*>(h), y, y_kind, topk, inter,
                       hidden, row);
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
