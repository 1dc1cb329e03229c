// Products of one token, weights in Marlin's order: a linear layer, and the experts, each of which is asked for one token at a time. Included by
// marlin.cu.
//
// The tensor core has eight columns, and one token would fill one of them. So they are eight blocks of 16 k of that token: column b of B
// holds block b's activations, zeros for all others, and after eight products into one accumulator each column has its own block's sum.
// Then a block's scale multiplies its sums, four for eight products of a lane, and not its weights, four for each product.
// Weights go into the product as fp4_pairs leaves them, 2^-126 (bf16) or 2^-14 (f16) of their values. Products of bf16 with those could be
// lost in float32, so each warp multiplies its activations by the power of two that brings the largest near 2^125, and divides its sums.
#pragma once

namespace sb {

constexpr float kScalesUndo = 5.192296858534827629e33f;  // 2^112
// Byte `which` of four scales as a float32: 2^-112 of its value.
__device__ __forceinline__ float scale_at(uint32_t four, int which) {
  return __uint_as_float((which == 3 ? four >> 4 : four << (20 - 8 * which)) & 0x0ff00000u);
}
__device__ __forceinline__ float power_of_two(int exponent) { return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23); }

// The powers of two that lift a warp's activations and bring its sums down again; two factors each way, since one float may not hold them.
struct Lift {
  uint32_t up[2];
  float down[2];
  // largest: the two largest exponent fields of this lane's bf16s. before: what the scales were multiplied by already, as an exponent. Sums end
  // as 2^-16 of what they are, so that large ones are not lost.
  __device__ __forceinline__ Lift(uint32_t largest, int before) {
    const int shift = 252 - static_cast<int>(__reduce_max_sync(~0u, max(largest & 0xffffu, largest >> 16)) >> 7), one = shift >> 1;
    up[0] = static_cast<uint32_t>(127 + one) * 0x00800080u, up[1] = static_cast<uint32_t>(127 + shift - one) * 0x00800080u;
    down[0] = power_of_two(112 - before - one), down[1] = power_of_two(126 - 16 - (shift - one));
  }
  __device__ __forceinline__ uint32_t operator()(uint32_t two) const {
    return Act<__nv_bfloat16>::mul2(Act<__nv_bfloat16>::mul2(two, up[0]), up[1]);
  }
};
template <class T>
constexpr float kOneUndo = 1.0f;  // of sums: besides kMarlinUndo, 2^16 / 2^7 / 2^7
template <>
constexpr float kOneUndo<__nv_bfloat16> = 4.0f;

constexpr int kOneStages = 2;  // of a warp's ring, 32 k each: more in flight means more left to compute when the last has come
template <int R>
constexpr int kOneStage = 1024 * R;  // bytes: weights of 32 k of R tiles of 64 rows

// A unit of work, 128 k of R tiles: where its weights, scales and activations begin, and how many pieces of 32 k it has.
template <class T>
struct Unit {
  const uint8_t *w, *s;
  const T* x;
  int pieces;    // 4 or fewer; 0: there is no such unit
  float factor;  // of its products, if they have any; kScalesUndo times that
};

// A warp's `count` units. where(i) gives the i-th (pieces 0 from `count` on); n: rows of the matrix; gap: rows from the first tile to the second;
// ready() is called once the weights are on their way, and waits for the kernel before. A lane reads back the weights that it copied itself, so
// no warp waits for its own lanes. acc [r][j][c] is of row 64 r + 16 j + g + 8 c, a part of it in each of four lanes, 2^-16 of what it is (bf16).
template <class T, int R, bool FACTORS, class Where, class Ready>
__device__ __forceinline__ void one_walk(Where where, int count, int n, int gap, uint32_t ring, Ready ready, float (&acc)[R][4][2]) {
  constexpr bool lifted = Act<T>::kind == kBf16;
  constexpr int S = kOneStages;
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const size_t half = static_cast<size_t>(n) * 8;
  ring += 16 * lane;
  auto copy = [&](const Unit<T>& of, int piece, int slot) {
    const uint8_t* const from = of.w + 2 * piece * half + 16 * lane;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        copy16(ring + slot * kOneStage<R> + r * 1024 + h * 512, from + h * half + static_cast<size_t>(8 * r) * gap, piece < of.pieces);
    copy_commit();
  };
  // This lane's scales are those of its sums' columns, 2t and 2t + 1; its activations those of its column, g.
  auto read_scales = [&](const Unit<T>& of, uint2 (&to)[R][2]) {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int b = 0; b < 2; ++b)
        to[r][b] = t < of.pieces ? load_once8(of.s + static_cast<size_t>(2 * t + b) * n + static_cast<size_t>(r) * gap + 8 * g) : make_uint2(0, 0);
  };
  auto read_x = [&](const Unit<T>& of, uint32_t (&to)[2]) {
    const bool there = g >> 1 < of.pieces;
    to[0] = there ? load_after_wait32(of.x + 16 * g + 2 * t) : 0;
    to[1] = there ? load_after_wait32(of.x + 16 * g + 2 * t + 8) : 0;
  };

  Unit<T> now = where(0);
  uint2 s_next[R][2];
#pragma unroll
  for (int piece = 0; piece < S; ++piece) copy(now, piece, piece);
  read_scales(now, s_next);
  ready();
  uint32_t x_next[2], largest = 0;
  read_x(now, x_next);
  if constexpr (lifted) {
    auto look = [&](const uint32_t (&v)[2]) { largest = __vmaxu2(largest, __vmaxu2(v[0] & 0x7f807f80u, v[1] & 0x7f807f80u)); };
    look(x_next);
#pragma unroll 4
    for (int i = 1; i < count; ++i) {
      uint32_t v[2];
      read_x(where(i), v);
      look(v);
    }
  }
  const Lift lift(largest, FACTORS ? 112 : 0);

  for (int i = 0; i < count; ++i) {
    const Unit<T> next = where(i + 1);
    uint32_t b[2] = {x_next[0], x_next[1]};
    uint2 s[R][2];
#pragma unroll
    for (int r = 0; r < R; ++r) s[r][0] = s_next[r][0], s[r][1] = s_next[r][1];
    read_x(next, x_next);
    read_scales(next, s_next);
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
          const uint4 words = shared16(ring + piece % S * kOneStage<R> + r * 1024 + h * 512);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            uint32_t p[4];
            fp4_pairs<T>(j == 0 ? words.x : j == 1 ? words.y : j == 2 ? words.z : words.w, p);
            if (block == 0) mma_first<T>(sum[r][j], p[0], p[2], p[1], p[3], b0, b1);
            else mma<T>(sum[r][j], p[0], p[2], p[1], p[3], b0, b1);
          }
        }
      }
      if (piece + S < 4) copy(now, piece + S, piece % S);
      else copy(next, piece + S - 4, piece % S);
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const uint2& of = s[r][c & 1];  // rows 16 j + g and + 8: bytes 0, 2 and 1, 3 of the first or second word
          float f = scale_at(j < 2 ? of.x : of.y, (j & 1) + 2 * (c >> 1));
          if constexpr (FACTORS) f *= now.factor;
          else if constexpr (!lifted) f *= kScalesUndo;
          acc[r][j][c >> 1] = fmaf(sum[r][j][c], f, acc[r][j][c >> 1]);
        }
    now = next;
  }
  if constexpr (lifted)
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) acc[r][j][c] = acc[r][j][c] * lift.down[0] * lift.down[1];
}

// Shared memory of a block: a ring for each warp, in the end its sums, and behind them the sums of the cluster's blocks, 64 N rows of each.
template <int R, int W, int N = R>
constexpr int one_room(int split) {
  return W * kOneStages * kOneStage<R> + (split > 1 ? split * N * 256 : 0);
}
template <int R>
__device__ __forceinline__ uint32_t one_ring(const uint8_t* room) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(room)) + (threadIdx.x >> 5) * kOneStages * kOneStage<R>;
}

// The sums over a row's four lanes, over the warps that have a part of it, over the cluster's blocks, in their order: the same bits in every run.
// The W warps are G groups, each with R tiles of its own. out(i, sum) is called in one block of the cluster by 64 threads, i-th with its rows
// 64 n + i: all R of the first group, then those of the next. The cluster's blocks have called cluster_arrive_early. Code is kept short: on a
// launch's way it is fetched as weights are.
template <int R, int W, int G = 1, class Out>
__device__ __forceinline__ void one_sum(uint8_t* room, const float (&acc)[R][4][2], int split, int rank, Out out) {
  constexpr int ring = kOneStages * kOneStage<R>, N = R * G;
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, i = threadIdx.x;
  float* const mine = reinterpret_cast<float*>(room + (threadIdx.x >> 5) * ring);
  float* const gathered = reinterpret_cast<float*>(room + W * ring);
  __syncwarp();  // each lane has read its part of the ring, whose room is for the sums now
  // Of eight rows' parts a lane gives away half to a lane that has the other half, twice.
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      float v[2];
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const float(&both)[2] = acc[r][j + q];
        v[q] = (t & 1 ? both[1] : both[0]) + __shfl_xor_sync(~0u, t & 1 ? both[0] : both[1], 1);
      }
      mine[64 * r + 16 * (j + (t >> 1)) + 8 * (t & 1) + g] = (t & 2 ? v[1] : v[0]) + __shfl_xor_sync(~0u, t & 2 ? v[0] : v[1], 2);
    }
  __syncthreads();
  float sum[N] = {};
  if (i < 64)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int v = 0; v < W / G; ++v) sum[n] += reinterpret_cast<const float*>(room + (n / R * (W / G) + v) * ring)[64 * (n % R) + i];
  if (split > 1) {
    cluster_wait();  // the first block has begun
    if (i < 64)
#pragma unroll
      for (int n = 0; n < N; ++n) give_first(gathered + 64 * (rank * N + n) + i, sum[n]);
    cluster_arrive();
    if (rank > 0) return;
    cluster_wait();
    if (i < 64)
#pragma unroll
      for (int n = 0; n < N; ++n) {
        sum[n] = 0.0f;
#pragma unroll
        for (int c = 0; c < kMostSplit; ++c)
          if (c < split) sum[n] += gathered[64 * (c * N + n) + i];
      }
  }
  if (i < 64) out(i, sum);
}

// A linear layer. A cluster of `split` blocks: 64 R rows.
template <class T, int R, int W>
__global__ void __launch_bounds__(32 * W, W == 16 ? 1 : R == 2 ? 2 : 3)
    one_gemv(const uint8_t* __restrict__ w, const uint8_t* __restrict__ scale, const float* __restrict__ global, const T* __restrict__ x,
             void* __restrict__ y, int y_kind, int n, int k, int split) {
  extern __shared__ __align__(16) uint8_t room[];
  const int rank = blockIdx.x % split, row0 = blockIdx.x / split * 64 * R;
  if (split > 1) cluster_arrive_early();
  const Units<W> units((k + 127) >> 7, rank, split);
  const auto where = [&](int i) {
    const int unit = units.first + i * W;
    const size_t at = static_cast<size_t>(8 * unit) * n + row0;
    return Unit<T>{w + at * 8, scale + at, x + 128 * unit, i < units.count ? min(4, (k >> 5) - 4 * unit) : 0, 1.0f};
  };
  float acc[R][4][2] = {};
  one_walk<T, R, false>(where, units.count, n, 64, one_ring<R>(room), [] { let_next_start(), wait_for_previous(); }, acc);
  const float whole = kOneUndo<T> * (__ldg(global) * kMarlinUndo<T>);
  one_sum<R, W>(room, acc, split, rank, [&](int i, const float(&sum)[R]) {
#pragma unroll
    for (int r = 0; r < R; ++r) store(y, y_kind, row0 + 64 * r + i, sum[r] * whole);
  });
}

// The first half of experts. A cluster: 64 rows of gate and the 64 of up that go with them, of one token's one expert. R = 2: each warp has a
// part of both; R = 1: the block's first half of warps is gate's, the second up's.
constexpr int kMoeWarps = 8;
template <class T, int R>
__global__ void __launch_bounds__(32 * kMoeWarps, R == 1 && Act<T>::kind == kBf16 ? 3 : 2)
    one_gate_up(const uint8_t* __restrict__ w13, const uint8_t* __restrict__ s13, const float* __restrict__ global13, int experts,
                const int* __restrict__ ids, const T* __restrict__ x, T* __restrict__ h, int topk, int inter, int hidden, int split) {
  constexpr int G = 3 - R, W = kMoeWarps / G;
  extern __shared__ __align__(16) uint8_t room[];
  const int rank = blockIdx.x % split, row0 = blockIdx.x / split * 64, pair = blockIdx.y, n = 2 * inter;
  wait_for_previous();  // the router's ids
  let_next_start();
  const int e = load_after_wait32(ids + pair);
  if (e < 0 || e >= experts) return;  // the second launch leaves it out too
  if (split > 1) cluster_arrive_early();
  const size_t weights = static_cast<size_t>(e) * n * hidden;
  const Units<W> units((hidden + 127) >> 7, rank, split);
  const int row = row0 + (threadIdx.x >> 5) / W * inter;
  const auto where = [&](int i) {
    const int unit = units.first + i * W;
    const size_t at = static_cast<size_t>(8 * unit) * n + row;
    return Unit<T>{w13 + weights / 2 + at * 8, s13 + weights / 16 + at, x + static_cast<size_t>(pair / topk) * hidden + 128 * unit,
                   i < units.count ? min(4, (hidden >> 5) - 4 * unit) : 0, 1.0f};
  };
  float acc[R][4][2] = {};
  one_walk<T, R, false>(where, units.count, n, inter, one_ring<R>(room), [] {}, acc);
  const float whole = kOneUndo<T> * (__ldg(global13 + e) * kMarlinUndo<T>);
  one_sum<R, kMoeWarps, G>(room, acc, split, rank, [&](int i, const float(&sum)[2]) {
    const float gate = sum[0] * whole, up = sum[1] * whole;
    store(h, Act<T>::kind, static_cast<size_t>(pair) * inter + row0 + i, gate / (1.0f + expf(-gate)) * up);
  });
}

// The second half. A cluster: 64 rows of a token's result; its units are those of all of the token's experts.
template <class T>
__global__ void __launch_bounds__(32 * kMoeWarps, Act<T>::kind == kBf16 ? 3 : 2)  // 80 registers are too few for f16 on sm_121f
    one_down(const uint8_t* __restrict__ w2, const uint8_t* __restrict__ s2, const float* __restrict__ global2, int experts,
             const int* __restrict__ ids, const float* __restrict__ weights, const T* __restrict__ h, void* __restrict__ y, int y_kind, int topk,
             int inter, int hidden, int split) {
  constexpr int W = kMoeWarps;
  extern __shared__ __align__(16) uint8_t room[];
  const int rank = blockIdx.x % split, row0 = blockIdx.x / split * 64, token = blockIdx.y, per = (inter + 127) >> 7;
  if (split > 1) cluster_arrive_early();
  const Units<W> units(topk * per, rank, split);
  const auto where = [&](int i) {
    if (i >= units.count) return Unit<T>{w2, s2, h, 0, 0.0f};
    const int all = units.first + i * W, slot = all / per, unit = all - slot * per, pair = token * topk + slot;
    const int e = __ldg(ids + pair);  // older than the kernel before, as are the router's weights
    if (e < 0 || e >= experts) return Unit<T>{w2, s2, h, 0, 0.0f};
    const size_t before = static_cast<size_t>(e) * hidden * inter, at = static_cast<size_t>(8 * unit) * hidden + row0;
    return Unit<T>{w2 + before / 2 + at * 8, s2 + before / 16 + at, h + static_cast<size_t>(pair) * inter + 128 * unit,
                   min(4, (inter >> 5) - 4 * unit), __ldg(weights + pair) * (__ldg(global2 + e) * kMarlinUndo<T>) * kScalesUndo};
  };
  float acc[1][4][2] = {};
  one_walk<T, 1, true>(where, units.count, hidden, 0, one_ring<1>(room), [] { let_next_start(), wait_for_previous(); }, acc);
  one_sum<1, W>(room, acc, split, rank, [&](int i, const float(&sum)[1]) {
    store(y, y_kind, static_cast<size_t>(token) * hidden + row0 + i, sum[0] * kOneUndo<T>);
  });
}

}  // namespace sb
