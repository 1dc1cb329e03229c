// Products of a few tokens with NVFP4 weights in the order in which vLLM's Marlin keeps them: linear layers (1 to 16 tokens) and the
// experts of a mixture-of-experts layer. So one copy of the weights serves both, and whoever calls may take either for each number of tokens.
//
// Marlin's order: W [N, K] in tiles of 64 rows x 16 k, [K / 16][N / 64][512 bytes]; a lane's 16 bytes are its part of four tensor-core
// operands (16 rows x 16 k each). The word of an operand holds codes of rows g and g + 8, g = lane / 4: nibbles j and j + 4 are a pair
// (k, k + 1), and pairs 0 to 3 are rows and k (g, 2t), (g, 2t + 8), (g + 8, 2t), (g + 8, 2t + 8), t = lane % 4.
// Scales: [K / 16][N] bytes of five exponent and three mantissa bits, 128 times the scale; a lane's eight are those of rows g + 8 i, in the
// order 0 2 1 3 4 6 5 7. The scale of the whole tensor carries what Marlin's decoding leaves out: 2^119 for bf16, 2^7 for f16.
#include <limits.h>
#include "common.cuh"

namespace sb {

// Four scales to pairs for rows (g, g + 8) of two operands, in the range that fp4_pairs wants: times 2^119 (bf16) or 2^7 (f16).
template <class T>
__device__ __forceinline__ void marlin_scales(uint32_t four, uint32_t& first, uint32_t& second);
template <>
__device__ __forceinline__ void marlin_scales<__nv_bfloat16>(uint32_t four, uint32_t& first, uint32_t& second) {
  using A = Act<__nv_bfloat16>;
  constexpr uint32_t up = 0x77807780u;  // 2^112, twice: the exponent's five bits stand at the low end of bf16's eight
  first = A::mul2(A::mul2(four << 4 & 0x0ff00ff0u, up), up);
  second = A::mul2(A::mul2(four >> 4 & 0x0ff00ff0u, up), up);
}
template <>
__device__ __forceinline__ void marlin_scales<__half>(uint32_t four, uint32_t& first, uint32_t& second) {
  first = four << 7 & 0x7f807f80u;
  second = four >> 1 & 0x7f807f80u;
}

// What is left of Marlin's scale of the whole tensor once the accumulators are 2^-7 of the sums: 2^7 / 2^119, 2^7 / 2^7.
template <class T>
constexpr float kMarlinUndo = 1.0f;
template <>
constexpr float kMarlinUndo<__nv_bfloat16> = 1.92592994438723585305597794258493e-34f;  // 2^-112

// R tiles of 64 rows, B times eight tokens.
template <int R, int B>
using MarlinAcc = float[R][4][B][4];

template <int R>
constexpr int kMarlinStage = R * 1152;  // bytes of 32 k of R tiles: weights [R][2][512], scales [R][2][64]
constexpr int kMarlinStages = 2;  // of a warp's ring: more in flight means more left to compute when the last has come
template <int R>
constexpr int kMarlinRing = kMarlinStages * kMarlinStage<R>;

// A warp's part of R tiles, one beside the other: where this lane copies from next, and how far it is to the second 16 k and the next turn.
template <int R>
struct MarlinTiles {
  const uint8_t *w, *s;
  size_t w_half, w_turn, s_turn;
  // codes, scales: of a matrix of n rows; row: the first tile's first; k, turn: the warp's first 32 k, to its next
  __device__ __forceinline__ MarlinTiles(const uint8_t* codes, const uint8_t* scales, int n, int row, int k, int turn) {
    const int lane = threadIdx.x & 31;
    w = codes + (static_cast<size_t>(2 * k) * n + row) * 8 + 16 * lane;
    s = scales + static_cast<size_t>(2 * k + (lane >> 2 & 1)) * n + row + 16 * (lane & 3);
    w_half = static_cast<size_t>(n) * 8, w_turn = static_cast<size_t>(turn) * n * 16, s_turn = static_cast<size_t>(turn) * n * 2;
  }
  __device__ __forceinline__ void copy(uint32_t stage) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      copy16(stage + r * 1024 + 16 * lane, w + 512 * r);
      copy16(stage + r * 1024 + 512 + 16 * lane, w + 512 * r + w_half);
      copy16(stage + R * 1024 + r * 128 + 16 * lane, s + 64 * r, lane < 8);
    }
    w += w_turn, s += s_turn;
  }
};

template <class T, int R, int B>
__device__ __forceinline__ void multiply(uint32_t stage, const uint32_t (&x)[B][4], MarlinAcc<R, B>& acc) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 w = shared16(stage + r * 1024 + half * 512 + 16 * lane);
      const uint2 s = shared8(stage + R * 1024 + r * 128 + half * 64 + 8 * (lane >> 2));
      uint32_t scale[4];
      marlin_scales<T>(s.x, scale[0], scale[1]);
      marlin_scales<T>(s.y, scale[2], scale[3]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t word = j == 0 ? w.x : j == 1 ? w.y : j == 2 ? w.z : w.w;
        uint32_t p[4];
        fp4_pairs<T>(word, p);
#pragma unroll
        for (int i = 0; i < 4; ++i) p[i] = mul2_by_half<T>(p[i], scale[j], i >= 2);
#pragma unroll
        for (int b = 0; b < B; ++b) mma<T>(acc[r][j][b], p[0], p[2], p[1], p[3], x[b][2 * half], x[b][2 * half + 1]);
      }
    }
}

// A warp's part of K: `count` times 32, each a turn behind the one before. Weights come by asynchronous copies into the warp's ring, x
// straight into registers, two steps ahead. x: this lane's token (lane / 4, and the one eight further); a column of the tensor core's tile
// whose token does not exist may read any. The weights do not depend on the kernel before; x does.
template <class T, int R, int B>
__device__ __forceinline__ void marlin_walk(MarlinTiles<R> at, int count, const T* (&x)[B], int turn, uint32_t ring, MarlinAcc<R, B>& acc) {
  constexpr int S = kMarlinStages, X = 2;
#pragma unroll
  for (int s = 0; s < S; ++s) {
    if (s < count) at.copy(ring + s * kMarlinStage<R>);
    copy_commit();
  }
  let_next_start();
  wait_for_previous();
  uint32_t ahead[X][B][4];
  auto fetch = [&](uint32_t (&to)[B][4]) {
#pragma unroll
    for (int b = 0; b < B; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[b][i] = load_after_wait32(x[b] + 8 * i);
      x[b] += 32 * turn;
    }
  };
#pragma unroll
  for (int d = 0; d < X; ++d)
    if (d < count) fetch(ahead[d]);
  for (int left = count; left > 0; left -= S) {
#pragma unroll
    for (int d = 0; d < S; ++d)
      if (d < left) {
        copy_wait<S - 1>();
        __syncwarp();
        multiply<T, R, B>(ring + d * kMarlinStage<R>, ahead[d % X], acc);
        if (d + X < left) fetch(ahead[d % X]);
        __syncwarp();
        if (d + S < left) at.copy(ring + d * kMarlinStage<R>);
        copy_commit();
      }
  }
  __syncthreads();  // the rings' room is for the sums now
}

// ---- the sum over a block's warps, then over a cluster's blocks, in their order: the same bits in every run

// Shared memory of a block: the rings, then in their place for each of m tokens a row of sums for each warp, and one for all.
template <int R, int W>
int marlin_room(int m) {
  return max(W * kMarlinRing<R>, (W + 1) * m * (64 * R + 8) * 4);
}
// This warp's ring.
template <int R>
__device__ __forceinline__ uint32_t marlin_ring(const float* room) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(room)) + (threadIdx.x >> 5) * kMarlinRing<R>;
}

// Puts the block's sums into room, [token][64 R + 8], where the whole cluster may read them.
template <int W, int R, int B>
__device__ __forceinline__ void marlin_sum(float* room, const MarlinAcc<R, B>& acc, int m, int split) {
  constexpr int width = 64 * R + 8;
  const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  float* const mine = room + (warp + 1) * m * width;
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int b = 0; b < B; ++b)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int token = 8 * b + 2 * t + (c & 1), row = 64 * r + 16 * j + g + 8 * (c >> 1);
          if (token < m) mine[token * width + row] = acc[r][j][b][c];
        }
  __syncthreads();
  for (int i = threadIdx.x; i < m * width; i += 32 * W) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 1; w <= W; ++w) sum += room[w * m * width + i];
    room[i] = sum;
  }
  split > 1 ? cluster_barrier() : __syncthreads();
}
__device__ __forceinline__ float cluster_sum(const float* at, int split) {
  if (split == 1) return *at;
  float sum = 0.0f;
  for (int c = 0; c < split; ++c) sum += shared_of(at, c);
  return sum;
}

// This block's share of `total`, of `split` shares.
struct Share {
  int first, last;
  __device__ __forceinline__ Share(int total, int rank, int split) : first(total * rank / split), last(total * (rank + 1) / split) {}
};

constexpr int kMostSplit = 8;  // blocks of a cluster that every GPU allows

// This warp's units of `total`, which a cluster's blocks share, and W warps of a block (or of each part of it).
template <int W>
struct Units {
  int first, count;
  __device__ __forceinline__ Units(int total, int rank, int split) {
    const Share share(total, rank, split);
    first = share.first + (threadIdx.x >> 5) % W, count = max(0, (share.last - first + W - 1) / W);
  }
};

// ---- linear layers, two to sixteen tokens

// A cluster of `split` blocks: 64 R rows, K split among them, and in each among its W warps.
template <class T, int R, int B, int W>
__global__ void __launch_bounds__(32 * W, (R * B == 1 ? 24 : 16) / W)
    marlin_gemv(const uint8_t* __restrict__ w, const uint8_t* __restrict__ scale, const float* __restrict__ global, const T* __restrict__ x,
                void* __restrict__ y, int y_kind, int m, int n, int k, int split) {
  extern __shared__ __align__(16) float sums[];  // before that, the rings
  const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  const int rank = blockIdx.x % split, row0 = blockIdx.x / split * 64 * R;
  const Units<W> units(k >> 5, rank, split);
  const MarlinTiles<R> at(w, scale, n, row0, units.first, W);
  const T* from[B];
#pragma unroll
  for (int b = 0; b < B; ++b) from[b] = x + static_cast<size_t>(min(g + 8 * b, m - 1)) * k + 32 * units.first + 2 * t;
  MarlinAcc<R, B> acc = {};
  marlin_walk<T, R, B>(at, units.count, from, W, marlin_ring<R>(sums), acc);
  marlin_sum<W, R, B>(sums, acc, m, split);
  const float a = __ldg(global) * kMarlinUndo<T>;
  constexpr int rows = 64 * R;
  for (int i = rank * 32 * W + threadIdx.x; i < m * rows; i += split * 32 * W)
    store(y, y_kind, static_cast<size_t>(i / rows) * n + row0 + i % rows, cluster_sum(sums + i / rows * (rows + 8) + i % rows, split) * a);
  if (split > 1) cluster_barrier();  // no block leaves while another reads its sums
}

}  // namespace sb
#include "one_token.cuh"
namespace sb {

// ---- launches

template <class... P, class... A>
int launch_marlin(void (*kernel)(P...), dim3 grid, int warps, int shared_bytes, void* stream, int pdl, int split, A... args) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  return launch_clusters(kernel, grid, 32 * warps, shared_bytes, stream, pdl, split, args...);
}

struct Linear {
  const void *w, *scale, *global, *x;
  void* y;
  int y_kind, m, n, k;
};

// How it is cut: tiles of 64 rows a block (1, 2), warps a block (8, 16), blocks that share K (a cluster).
struct Cut {
  int tiles, warps, split;
};

// What was fastest on an H200 (`VERSIONS.md`): all blocks resident from the start, and each multiprocessor with as much to do. A choice by m, n
// and k alone, so that a programmatic launch gives the same bits.
inline Cut marlin_cut(int m, int n, int k) {
  const int processors = attribute(cudaDevAttrMultiProcessorCount), tiles = n / 64, pair = tiles % 2 ? 1 : 2;
  const bool long_k = k >= 8192;
  if (tiles > 4 * processors) return {m > 1 ? pair : 1, 8, 1};
  if (tiles > 3 * processors) return {pair, 8, 1};
  if (tiles > processors) return m > 8 ? Cut{pair, 8, 1} : Cut{1, 8, 2 * tiles <= 3 * processors ? 2 : 1};
  if (4 * tiles <= processors) return {1, 8, m > 8 ? 4 : 8};
  if (2 * tiles <= processors) return {1, 16, 2};
  if (8 * tiles <= 5 * processors && (m == 1 || (m <= 8 && long_k))) return {1, 8, 4};
  const bool two = pair == 2 && long_k && m * k >= 7 * 8192 && marlin_room<2, 16>(m) <= attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return two ? Cut{2, 16, 2} : Cut{1, 16, 1};
}

// Shared memory of which `per` blocks fit a multiprocessor, and not one more. A launch that starts while another ends fills whatever is free, and
// would leave some multiprocessors with half as many blocks again as they need to have and others with none.
inline int room_for(int per, int room) {
  const int all = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor), each = attribute(cudaDevAttrReservedSharedMemoryPerBlock);
  return max(room, (all / (per + 1) - each + 16) & ~15);
}

template <class T, int R, int W>
int run_one(const Linear& a, int split, int pdl, void* stream) {
  const int blocks = a.n / 64 / R * split, processors = attribute(cudaDevAttrMultiProcessorCount);
  int room = one_room<R, W>(split);
  if (pdl && split == 1 && W == 8 && blocks > processors && blocks <= 2 * processors) room = room_for(2, room);
  return launch_marlin(one_gemv<T, R, W>, dim3(blocks), W, room, stream, pdl, split,
                       static_cast<const uint8_t*>(a.w), static_cast<const uint8_t*>(a.scale), static_cast<const float*>(a.global),
                       static_cast<const T*>(a.x), a.y, a.y_kind, a.n, a.k, split);
}

template <class T, int R, int B, int W>
int run_several(const Linear& a, int split, int pdl, void* stream) {
  return launch_marlin(marlin_gemv<T, R, B, W>, dim3(a.n / 64 / R * split), W, marlin_room<R, W>(a.m), stream, pdl, split,
                       static_cast<const uint8_t*>(a.w), static_cast<const uint8_t*>(a.scale), static_cast<const float*>(a.global),
                       static_cast<const T*>(a.x), a.y, a.y_kind, a.m, a.n, a.k, split);
}

template <class T>
int run_marlin(const Linear& a, Cut cut, int pdl, void* stream) {
  const Cut best = marlin_cut(a.m, a.n, a.k);
  if (!cut.tiles) cut.tiles = best.tiles;
  if (!cut.warps) cut.warps = best.warps;
  if (!cut.split) cut.split = best.split;
  const auto is = [&](int tiles, int warps) { return cut.tiles == tiles && cut.warps == warps && a.n / 64 % tiles == 0; };
  int (*run)(const Linear&, int, int, void*) = nullptr;
  if (a.m == 1) run = is(1, 8) ? run_one<T, 1, 8> : is(1, 16) ? run_one<T, 1, 16> : is(2, 8) ? run_one<T, 2, 8> : nullptr;
  else if (is(1, 8)) run = a.m > 8 ? run_several<T, 1, 2, 8> : run_several<T, 1, 1, 8>;
  else if (is(1, 16)) run = a.m > 8 ? run_several<T, 1, 2, 16> : run_several<T, 1, 1, 16>;
  else if (is(2, 8)) run = a.m > 8 ? run_several<T, 2, 2, 8> : run_several<T, 2, 1, 8>;
  else if (is(2, 16)) run = a.m > 8 ? run_several<T, 2, 2, 16> : run_several<T, 2, 1, 16>;
  return run ? run(a, cut.split, pdl, stream) : static_cast<int>(cudaErrorInvalidValue);
}

// How `tiles` tiles of `units` units each are cut for blocks with `warps` warps for a tile: blocks that share a tile (a cluster), and how many may be
// on a multiprocessor at once. Two or three fit; clusters of more than two leave some places empty, since they lie in one group of multiprocessors.
// Least is a warp's turns times the blocks of a multiprocessor; blocks that wait for a place cost three turns (what was fastest on an H200).
struct MoeCut {
  int split, per;
};
inline MoeCut moe_cut(int tiles, int units, int warps) {
  const int processors = attribute(cudaDevAttrMultiProcessorCount);
  MoeCut best{};
  for (int split = 1, least = INT_MAX; split <= kMostSplit; ++split) {
    const int blocks = tiles * split, lost = split > 2 ? processors / 4 : 0, turns = (units + warps * split - 1) / (warps * split);
    const int per = blocks <= 2 * processors - lost ? 2 : 3, waves = (blocks + 3 * processors - lost - 1) / (3 * processors - lost);
    const int cost = turns * max(per, (blocks + processors - 1) / processors) + 3 * (waves - 1);
    if (cost < least) least = cost, best = {split, per};
  }
  return best;
}

template <class T, int R>
int run_gate_up(const void* w13, const void* s13, const void* global13, int experts, const void* ids, const void* x, void* h, int pairs, int topk,
                int inter, int hidden, MoeCut cut, int pdl, void* stream) {
  return launch_marlin(one_gate_up<T, R>, dim3(inter / 64 * cut.split, pairs), kMoeWarps,
                       room_for(cut.per, one_room<R, kMoeWarps, 2>(cut.split)), stream, pdl, cut.split, static_cast<const uint8_t*>(w13),
                       static_cast<const uint8_t*>(s13), static_cast<const float*>(global13), experts, static_cast<const int*>(ids),
                       static_cast<const T*>(x), static_cast<T*>(h), topk, inter, hidden, cut.split);
}

template <class T>
int run_marlin_moe(const void* w13, const void* s13, const void* global13, const void* w2, const void* s2, const void* global2, int experts,
                   const void* ids, const void* weights, const void* x, void* h, void* y, int y_kind, int m, int topk, int inter, int hidden,
                   int pdl, void* stream) {
  // A block for each multiprocessor has few warps, and each of them both tiles.
  const int tiles = m * topk * (inter / 64);
  const bool both = 2 * tiles <= attribute(cudaDevAttrMultiProcessorCount);
  const MoeCut up = both ? MoeCut{2, 2} : moe_cut(tiles, (hidden + 127) / 128, kMoeWarps / 2);
  const MoeCut down = moe_cut(m * (hidden / 64), topk * ((inter + 127) / 128), kMoeWarps);
  const auto gate_up = both ? run_gate_up<T, 2> : run_gate_up<T, 1>;
  if (const int code = gate_up(w13, s13, global13, experts, ids, x, h, m * topk, topk, inter, hidden, up, pdl, stream)) return code;
  return launch_marlin(one_down<T>, dim3(hidden / 64 * down.split, m), kMoeWarps, room_for(down.per, one_room<1, kMoeWarps>(down.split)), stream, 1,
                       down.split, static_cast<const uint8_t*>(w2), static_cast<const uint8_t*>(s2), static_cast<const float*>(global2), experts,
                       static_cast<const int*>(ids), static_cast<const float*>(weights), static_cast<const T*>(h), y, y_kind, topk, inter, hidden,
                       down.split);
}

}  // namespace sb

// w, scale: as Marlin keeps [n, k]; global: its one float32; x [m, k], y [m, n]. n is a multiple of 64, k of 32, m is 1 to 16.
// tiles (1, 2), warps (8, 16) and split (1, 2, 4, 8) choose the variant; 0: the one measured best. One token has none of two tiles and 16 warps.
SB_API int sb_marlin_gemv(const void* w, const void* scale, const void* global, const void* x, int x_kind, void* y, int y_kind, int m, int n,
                          int k, int tiles, int warps, int split, int pdl, void* stream) {
  if (m < 1 || m > 16 || n < 64 || n % 64 || k < 32 || k % 32) return cudaErrorInvalidValue;
  const auto run = x_kind == sb::kBf16 ? sb::run_marlin<__nv_bfloat16> : sb::run_marlin<__half>;
  return run({w, scale, global, x, y, y_kind, m, n, k}, {tiles, warps, split}, pdl, stream);
}

// w13 [E] of [2 inter, hidden], w2 [E] of [hidden, inter], each with scales and global [E]; ids int32 and weights float32 [m, topk];
// x [m, hidden]; h [m, topk, inter]: room, of x's type; y [m, hidden]. hidden and inter are multiples of 64, topk is 1 to 64.
SB_API int sb_marlin_moe(const void* w13, const void* s13, const void* global13, const void* w2, const void* s2, const void* global2,
                         int experts, const void* ids, const void* weights, const void* x, int x_kind, void* h, void* y, int y_kind, int m,
                         int topk, int inter, int hidden, int pdl, void* stream) {
  if (m < 1 || topk < 1 || topk > 64 || experts < 1 || inter < 64 || inter % 64 || hidden < 64 || hidden % 64) return cudaErrorInvalidValue;
  const auto run = x_kind == sb::kBf16 ? sb::run_marlin_moe<__nv_bfloat16> : sb::run_marlin_moe<__half>;
  return run(w13, s13, global13, w2, s2, global2, experts, ids, weights, x, h, y, y_kind, m, topk, inter, hidden, pdl, stream);
}
