// The ceiling that the benchmark compares with: a kernel that only reads.
#include "common.cuh"

namespace sb {

// Blocks take turns, 16 KiB each (256 threads, 4 vectors). The sum keeps the compiler from dropping the loads.
__global__ void __launch_bounds__(256) read_probe(const uint4* __restrict__ p, int64_t vectors, uint32_t* __restrict__ sink) {
  uint32_t sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * 1024 + threadIdx.x; i < vectors; i += static_cast<int64_t>(gridDim.x) * 1024) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = i + 256 * j < vectors ? load_stream(p + i + 256 * j) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;  // hardly ever
}

}  // namespace sb

// Reads `bytes` (a multiple of 16) at p with `blocks` blocks of 256 threads.
SB_API int sb_read_probe(const void* p, int64_t bytes, void* sink, int blocks, void* stream) {
  if (bytes < 16 || bytes % 16 || blocks < 1) return cudaErrorInvalidValue;
  return sb::launch(sb::read_probe, dim3(blocks), 256, stream, 0, static_cast<const uint4*>(p), bytes / 16, static_cast<uint32_t*>(sink));
}
