// The product of one token, weights in Marlin's order. Included by marlin.cu.
//
// The tensor core has eight columns, and one token would fill one of them. So they are eight blocks of 16 k of that token: column b of B
// holds block b's activations, zeros for all others, and after eight products into one accumulator each column has its own block's sum.
// Then a block's scale multiplies its sums, four for eight products of a lane, and not its weights, four for each product.
// Weights go into the product as fp4_pairs leaves them, 2^-126 (bf16) or 2^-14 (f16) of their values. Products of bf16 with those could be
// lost in float32, so each warp multiplies its activations by the power of two that brings the largest near 2^125, and divides its sums.
#pragma once

namespace sb {

// D = A B, with nothing to add to.
template <class T>
__device__ __forceinline__ void mma_first(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma_first<__nv_bfloat16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                                         uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
               : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
}
template <>
__device__ __forceinline__ void mma_first<__half>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
               : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
}

// Byte `which` of four scales as a float32: 2^-112 of its value.
__device__ __forceinline__ float scale_at(uint32_t four, int which) {
  return __uint_as_float((which == 3 ? four >> 4 : four << (20 - 8 * which)) & 0x0ff00000u);
}
__device__ __forceinline__ float power_of_two(int exponent) { return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23); }

// The powers of two that lift a warp's activations and bring its sums down again; two factors each way, since one float may not hold them.
struct Lift {
  uint32_t up[2];
  float down[2];
  // largest: the two largest exponent fields of this lane's bf16s. Sums end as 2^-16 of what they are, so that large ones are not lost.
  __device__ __forceinline__ explicit Lift(uint32_t largest) {
    const int shift = 252 - static_cast<int>(__reduce_max_sync(~0u, max(largest & 0xffffu, largest >> 16)) >> 7), one = shift >> 1;
    up[0] = static_cast<uint32_t>(127 + one) * 0x00800080u, up[1] = static_cast<uint32_t>(127 + shift - one) * 0x00800080u;
    down[0] = power_of_two(112 - one), down[1] = power_of_two(126 - 16 - (shift - one));
  }
  __device__ __forceinline__ uint32_t operator()(uint32_t two) const {
    return Act<__nv_bfloat16>::mul2(Act<__nv_bfloat16>::mul2(two, up[0]), up[1]);
  }
};

__device__ __forceinline__ void cluster_arrive_early() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// v into the place of `mine` in the shared memory of the cluster's first block.
__device__ __forceinline__ void give_first(const float* mine, float v) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(mine));
  asm volatile("{.reg .b32 a; mapa.shared::cluster.u32 a, %0, 0; st.shared::cluster.f32 [a], %1;}" ::"r"(at), "f"(v) : "memory");
}

constexpr int kOneStages = 2;  // of a warp's ring, 32 k each: more in flight means more left to compute when the last has come

// A cluster of `split` blocks: 64 R rows; units of 128 k split among the blocks, and in each among its W warps. A lane reads back the
// weights that it copied itself, so that no warp waits for its own lanes.
template <class T, int R, int W>
__global__ void __launch_bounds__(32 * W, W == 16 ? 1 : R == 2 ? 2 : 3)
    marlin_one(const uint8_t* __restrict__ w, const uint8_t* __restrict__ scale, const float* __restrict__ global, const T* __restrict__ x,
               void* __restrict__ y, int y_kind, int n, int k, int split) {
  constexpr bool lifted = Act<T>::kind == kBf16;
  constexpr int S = kOneStages, stage = 1024 * R, rows = 64 * R;
  extern __shared__ __align__(16) uint8_t room[];  // a ring for each warp, in the end its sums; behind them the cluster's sums
  float* const gathered = reinterpret_cast<float*>(room + W * S * stage);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int rank = blockIdx.x % split, row0 = blockIdx.x / split * rows;
  if (split > 1) cluster_arrive_early();
  const Share share((k + 127) >> 7, rank, split);
  const int first = share.first + warp;
  int todo = max(0, (share.last - first + W - 1) / W);  // units
  int left = (k >> 5) - 4 * first;                      // pieces of 32 k from this unit's first to the end of k

  const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(room)) + warp * S * stage + 16 * lane;
  const size_t half = static_cast<size_t>(n) * 8;
  const uint8_t* from = w + 8 * first * half + static_cast<size_t>(row0) * 8 + 16 * lane;
  auto copy = [&](int piece) {  // of this unit, or of the next
    const int unit = piece / 4, sub = piece % 4;
    const bool take = unit < todo && sub < left - 4 * W * unit;
    const uint8_t* const at = from + (8 * W * unit + 2 * sub) * half;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) copy16(ring + piece % S * stage + r * 1024 + h * 512, at + h * half + 512 * r, take);
    copy_commit();
  };
#pragma unroll
  for (int piece = 0; piece < S; ++piece) copy(piece);

  // This lane's scales are those of its sums' columns, 2t and 2t + 1.
  const uint8_t* s_from = scale + static_cast<size_t>(8 * first + 2 * t) * n + row0 + 8 * g;
  uint2 s_next[R][2];
  auto read_scales = [&](int unit) {  // 0: this one, 1: the next
    const int pieces = left - 4 * W * unit;
    const bool there = unit < todo && t < pieces;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int b = 0; b < 2; ++b) s_next[r][b] = there ? load_once8(s_from + static_cast<size_t>(8 * W * unit + b) * n + 64 * r) : make_uint2(0, 0);
  };
  read_scales(0);

  let_next_start();
  wait_for_previous();
  const T* x_from = x + 16 * (8 * first + g) + 2 * t;  // this lane's are its column's, g
  uint32_t x_next[2];
  auto read_x = [&](int unit, uint32_t (&to)[2]) {
    const bool there = unit < todo && (g >> 1) < left - 4 * W * unit;
    to[0] = there ? load_after_wait32(x_from + 128 * W * unit) : 0;
    to[1] = there ? load_after_wait32(x_from + 128 * W * unit + 8) : 0;
  };
  read_x(0, x_next);
  uint32_t largest = 0;
  if constexpr (lifted) {
    auto look = [&](const uint32_t (&v)[2]) { largest = __vmaxu2(largest, __vmaxu2(v[0] & 0x7f807f80u, v[1] & 0x7f807f80u)); };
    look(x_next);
#pragma unroll 8
    for (int unit = 1; unit < todo; ++unit) {
      uint32_t v[2];
      read_x(unit, v);
      look(v);
    }
  }
  const Lift lift(largest);

  float acc[R][4][2] = {};
  for (; todo > 0; --todo, left -= 4 * W, from += 8 * W * half, s_from += static_cast<size_t>(8 * W) * n, x_from += 128 * W) {
    uint32_t b[2] = {x_next[0], x_next[1]};
    uint2 s[R][2];
#pragma unroll
    for (int r = 0; r < R; ++r) s[r][0] = s_next[r][0], s[r][1] = s_next[r][1];
    read_x(1, x_next);
    read_scales(1);
    if constexpr (lifted) b[0] = lift(b[0]), b[1] = lift(b[1]);
    float sum[R][4][4];
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) {
      copy_wait<S - 1>();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int block = 2 * piece + h;
        const uint32_t b0 = g == block ? b[0] : 0, b1 = g == block ? b[1] : 0;
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const uint4 words = shared16(ring + piece % S * stage + r * 1024 + h * 512);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            uint32_t p[4];
            fp4_pairs<T>(j == 0 ? words.x : j == 1 ? words.y : j == 2 ? words.z : words.w, p);
            if (block == 0) mma_first<T>(sum[r][j], p[0], p[2], p[1], p[3], b0, b1);
            else mma<T>(sum[r][j], p[0], p[2], p[1], p[3], b0, b1);
          }
        }
      }
      copy(piece + S);
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const uint2& of = s[r][c & 1];  // rows 16 j + g and + 8: bytes 0, 2 and 1, 3 of the first or second word
          float f = scale_at(j < 2 ? of.x : of.y, (j & 1) + 2 * (c >> 1));
          if constexpr (!lifted) f *= 5.192296858534827629e33f;  // 2^112
          acc[r][j][c >> 1] = fmaf(sum[r][j][c], f, acc[r][j][c >> 1]);
        }
  }

  // Over a row's four lanes, over the block's warps, over the cluster's blocks, in their order: the same bits in every run.
  float* const mine = reinterpret_cast<float*>(room + warp * S * stage);
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float v = acc[r][j][c];
        if constexpr (lifted) v = v * lift.down[0] * lift.down[1];
        v += __shfl_xor_sync(~0u, v, 1);
        v += __shfl_xor_sync(~0u, v, 2);
        if (t == 0) mine[64 * r + 16 * j + g + 8 * c] = v;
      }
  // Marlin's scale leaves out 2^7 of the scales as well: 2^16 / 2^7 / 2^7.
  const float whole = (lifted ? 4.0f : 1.0f) * (__ldg(global) * kMarlinUndo<T>);
  __syncthreads();
  if (split > 1) cluster_wait();  // the first block has begun
  for (int i = threadIdx.x; i < rows; i += 32 * W) {
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < W; ++v) sum += reinterpret_cast<const float*>(room + v * S * stage)[i];
    if (split > 1) give_first(gathered + rank * rows + i, sum);
    else store(y, y_kind, row0 + i, sum * whole);
  }
  if (split == 1) return;
  cluster_arrive();
  if (rank > 0) return;
  cluster_wait();
  for (int i = threadIdx.x; i < rows; i += 32 * W) {
    float sum = 0.0f;
    for (int c = 0; c < split; ++c) sum += gathered[c * rows + i];
    store(y, y_kind, row0 + i, sum * whole);
  }
}

template <int R, int W>
int one_room(int split) {
  return W * kOneStages * 1024 * R + (split > 1 ? split * R * 256 : 0);
}

}  // namespace sb
