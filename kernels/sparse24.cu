// K6: product with NVFP4 weights of which at least two in each group of four are zero (2:4), on the sparse tensor core.
//
// 0.4375 bytes a weight instead of 0.5625: 4 bits for each of the two kept values, 4 bits for their two positions, 1/16 byte of scale.
// Right only for models that were pruned to 2:4 (and trained on) before they were quantized: in others 3 % of the groups fit.
//
// Layout, made by the converter: tiles of 16 rows x 256 k, 1792 contiguous bytes: [2][32 lanes][16] values, [32 lanes][16] positions,
// [32 lanes][8] scales. Lane (g, t) has rows g and g + 8, and of each the 64 k from 64 t on: 16 groups of four.
// Values: word w holds groups 4 w .. 4 w + 3; the first value of group 4 w + j is at nibble j, the second at nibble j + 4.
// Positions: tensor-core step i (0..7) takes groups 2 i and 2 i + 1 of each lane; even steps read the positions from lanes t = 0, 1 of each
// four, odd steps from t = 2, 3. So lane t holds, for w = 0..3, step 2 w + t / 2, and of that group 2 i + (t & 1) of each of the four lanes:
// four bits each, row g in the low half of the word, row g + 8 in the high half.
#include "common.cuh"

namespace sb {

constexpr int kTileBytes = 1792;

template <class T, int SELECTOR>
__device__ __forceinline__ void mma_sp(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, const uint32_t (&b)[4],
                                       uint32_t positions) {
  if constexpr (Act<T>::kind == kBf16)
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(positions), "n"(SELECTOR));
  else
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(positions), "n"(SELECTOR));
}

struct SparseStage {
  uint4 upper, lower, positions;
  uint2 scales;  // four E4M3 each: row g, row g + 8
};

template <class T>
__global__ void __launch_bounds__(256, 2)
    sparse_gemv(const uint8_t* __restrict__ w, const float* __restrict__ alpha, const T* __restrict__ x, void* __restrict__ y, int y_kind,
                int m, int n, int k) {
  constexpr int D = 3;
  __shared__ Partial<16> partial;
  const int warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int steps = k >> 8;
  const int mine = steps > warp ? (steps - warp + warps - 1) / warps : 0;
  const uint8_t* wp = w + static_cast<size_t>(blockIdx.x) * steps * kTileBytes;
  auto fetch = [&](SparseStage& st, int i) {
    if (i < mine) {
      const uint8_t* tile = wp + static_cast<size_t>(warp + i * warps) * kTileBytes;
      st.upper = load_stream(tile + 16 * lane);
      st.lower = load_stream(tile + 512 + 16 * lane);
      st.positions = load_stream(tile + 1024 + 16 * lane);
      st.scales = __ldg(reinterpret_cast<const uint2*>(tile + 1536 + 8 * lane));
    }
  };
  SparseStage st[D];
#pragma unroll
  for (int d = 0; d < D; ++d) fetch(st[d], d);
  let_next_start();
  wait_for_previous();
  // Column g, of lanes (t >> 1) and 2 + (t >> 1): half (t & 1) of each of their groups. A group is 8 bytes, so a half is one register.
  const T* xp = x + static_cast<size_t>(g < m ? g : 0) * k + 64 * (t >> 1) + 2 * (t & 1);
  Acc<1> acc = {};
  for (int i = 0; i < mine; i += D) {
#pragma unroll
    for (int d = 0; d < D; ++d) {
      if (i + d < mine) {
        const uint32_t* xs = reinterpret_cast<const uint32_t*>(xp + static_cast<size_t>(warp + (i + d) * warps) * 256);
        const uint32_t upper[4] = {st[d].upper.x, st[d].upper.y, st[d].upper.z, st[d].upper.w};
        const uint32_t lower[4] = {st[d].lower.x, st[d].lower.y, st[d].lower.z, st[d].lower.w};
        const uint32_t positions[4] = {st[d].positions.x, st[d].positions.y, st[d].positions.z, st[d].positions.w};
        uint32_t su[4], sl[4];
        Act<T>::scales(st[d].scales.x, su[0], su[1]);
        Act<T>::scales(st[d].scales.x >> 16, su[2], su[3]);
        Act<T>::scales(st[d].scales.y, sl[0], sl[1]);
        Act<T>::scales(st[d].scales.y >> 16, sl[2], sl[3]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint32_t p[4], q[4], b[2][4];
#pragma unroll
          for (int step = 0; step < 2; ++step)
#pragma unroll
            for (int r = 0; r < 4; ++r)  // registers b0..b3: lane pair r & 1, group 2 i + (r >> 1), i = 2 j + step; 32-bit words
              b[step][r] = g < m ? __ldg(xs + 64 * (r & 1) + 2 * (2 * (2 * j + step) + (r >> 1))) : 0u;
          decode_fp4<T>(upper[j], su[j], p);  // word j: the four groups of scale block j
          decode_fp4<T>(lower[j], sl[j], q);
          mma_sp<T, 0>(acc[0][0], p[0], q[0], p[1], q[1], b[0], positions[j]);
          mma_sp<T, 1>(acc[0][1], p[2], q[2], p[3], q[3], b[1], positions[j]);
        }
        fetch(st[d], i + d + D);
      }
    }
  }
  float sum[1][4];
  fold<1>(acc, sum);
  put<1>(partial, sum);
  __syncthreads();
  const float a = *alpha * kUndo;
  for (int i = threadIdx.x; i < 16 * m; i += blockDim.x) {
    const int row = blockIdx.x * 16 + i % 16, token = i / 16;
    if (row < n) store(y, y_kind, static_cast<size_t>(token) * n + row, take(partial, i % 16, token) * a);
  }
}

template <class T>
int run_sparse(const void* w, const void* alpha, const void* x, void* y, int y_kind, int m, int n, int k, int pdl, void* stream) {
  return launch(sparse_gemv<T>, dim3((n + 15) / 16), 256, stream, pdl, static_cast<const uint8_t*>(w), static_cast<const float*>(alpha),
                static_cast<const T*>(x), y, y_kind, m, n, k);
}

}  // namespace sb

// w: the converter's tiles [ceil(n / 16), k / 256, 1792]; k is a multiple of 256, m is 1 to 8.
SB_API int sb_sparse_gemv(const void* w, const void* alpha, const void* x, int x_kind, void* y, int y_kind, int m, int n, int k, int pdl,
                          void* stream) {
  if (m < 1 || m > 8 || n < 1 || k < 256 || k % 256) return cudaErrorInvalidValue;
  return x_kind == sb::kBf16 ? sb::run_sparse<__nv_bfloat16>(w, alpha, x, y, y_kind, m, n, k, pdl, stream)
                             : sb::run_sparse<__half>(w, alpha, x, y, y_kind, m, n, k, pdl, stream);
}
