// Stands in for common.cuh and fp4_mma.cuh, so that a C++ compiler makes kernels/prefill.cu run on a CPU: a thread for each of a block's, one
// block after the other. Only the memory's copies, the barriers and the tensor core are imitated; the latter is asked of the caller.
#pragma once
#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#define SB_API extern "C"
#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct dim3 {
  unsigned x = 0, y = 0;
};
enum { cudaSuccess, cudaErrorInvalidValue, cudaErrorNotSupported, cudaDevAttrComputeCapabilityMajor };

namespace sb {

using std::min;
constexpr int kThreads = 256;
uint8_t room[100 << 10];
thread_local dim3 threadIdx, blockIdx;
bool early = false;  // copies arrive at once; otherwise no sooner than they are waited for
std::unique_ptr<std::barrier<>> block, warps[kThreads / 32];

struct Operands {  // of a warp, lane by lane
  uint32_t a[32][4], b[32][2], scale_a[32], scale_b[32];
  float d[32][4];
} operands[kThreads / 32];
void (*tensor_core)(Operands*) = nullptr;

struct Copy {
  uint8_t* to;
  const void* from;
  int bytes;
  void make() const { from ? memcpy(to, from, bytes) : memset(to, 0, bytes); }
};
thread_local std::vector<Copy> open;
thread_local std::deque<std::vector<Copy>> groups;

inline size_t __cvta_generic_to_shared(const void* p) { return static_cast<const uint8_t*>(p) - room; }
template <int BYTES>
void copy_async(uint32_t to, const void* from, bool valid) {
  open.push_back({room + to, valid ? from : nullptr, BYTES});
  if (early) open.back().make();
}
inline void copy_commit() { groups.push_back(std::exchange(open, {})); }
template <int PENDING>
void copy_wait() {
  for (; groups.size() > PENDING; groups.pop_front())
    for (const Copy& one : groups.front())
      if (!early) one.make();
}
inline void wait_for_previous() {}
inline void __syncthreads() { block->arrive_and_wait(); }
inline void store(void* y, int, size_t i, float v) { static_cast<float*>(y)[i] = v; }

inline void mma_fp4(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t scale_a, uint32_t scale_b) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Operands& all = operands[warp];
  memcpy(all.a[lane], a, sizeof a), memcpy(all.b[lane], b, sizeof b), memcpy(all.d[lane], d, sizeof d);
  all.scale_a[lane] = scale_a, all.scale_b[lane] = scale_b;
  warps[warp]->arrive_and_wait();
  if (lane == 0) tensor_core(&all);
  warps[warp]->arrive_and_wait();
  memcpy(d, all.d[lane], sizeof d);
  warps[warp]->arrive_and_wait();
}

inline int attribute(int) { return 12; }

template <class K, class... A>
int launch_shared(K kernel, dim3 grid, int threads, size_t bytes, void*, int, A... args) {
  if (threads != kThreads || bytes > sizeof room) return cudaErrorInvalidValue;
  for (unsigned i = 0; i < grid.x * grid.y; ++i) {
    memset(room, 0xff, sizeof room);  // scales of NaN
    block = std::make_unique<std::barrier<>>(kThreads);
    for (auto& one : warps) one = std::make_unique<std::barrier<>>(32);
    std::vector<std::thread> all;
    for (unsigned t = 0; t < kThreads; ++t)
      all.emplace_back([=] {
        threadIdx = {t, 0}, blockIdx = {i % grid.x, i / grid.x};
        kernel(args...);
      });
    for (auto& one : all) one.join();
  }
  return cudaSuccess;
}

}  // namespace sb

SB_API void imitate(void (*tensor_core)(sb::Operands*), bool early) { sb::tensor_core = tensor_core, sb::early = early; }
