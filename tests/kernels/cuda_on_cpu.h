// Stands in for the CUDA headers and for kernels/ptx.cuh, so that a C++ compiler makes the products in Marlin's order and the one for prefill
// run on a CPU (test_on_cpu.py): a fiber for each thread of a cluster, one cluster after the other. Which thread goes on is drawn, shared memory begins
// as NaN and is NaN again once its block has ended, and asynchronous copies arrive at once or no sooner than they are waited for. What a GPU's
// memory may do out of order is not imitated.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __align__(bytes)

using std::max;
using std::min;

// ---- types, launches

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct float2 {
  float x, y;
};
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

struct __nv_bfloat16 {
  uint16_t bits;
  operator float() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float v;
    memcpy(&v, &wide, 4);
    return v;
  }
};
struct __half {
  _Float16 v;
  operator float() const { return v; }
};
struct __half2 {
  __half x, y;
};
inline float2 __half22float2(__half2 v) { return {v.x, v.y}; }
inline __nv_bfloat16 __float2bfloat16(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return {static_cast<uint16_t>(v != v ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline __half __float2half(float v) { return {static_cast<_Float16>(v)}; }

enum { cudaSuccess, cudaErrorInvalidValue, cudaErrorNotSupported };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
  cudaDevAttrReservedSharedMemoryPerBlock,
  cudaDevAttrComputeCapabilityMajor
};
enum { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared };
enum { cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension };
using cudaStream_t = void*;
struct cudaLaunchAttribute {
  int id;
  struct {
    int programmaticStreamSerializationAllowed;
    dim3 clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  int numAttrs;
};

namespace on_cpu {

inline int processors = 132, most_shared = 227 << 10;
inline bool early = false;
inline std::mt19937 dice(1);

// ---- fibers

struct Copy {
  uint8_t* to;
  const void* from;
  int bytes;
  void make() const { from ? memcpy(to, from, bytes) : memset(to, 0, bytes); }
};
struct Fiber {
  ucontext_t begin;
  jmp_buf place;
  std::vector<char> stack;
  bool begun, done;
  int block, thread;
  long cluster_turn;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};
struct Meeting {
  int arrived = 0;
  long turn = 0;
};
struct Operands {  // of a warp's tensor-core instruction, lane by lane
  uint32_t a[32][4], b[32][2], scale_a[32], scale_b[32];
  float d[32][4];
};
struct Block {
  std::vector<uint8_t> room;
  Meeting all, warp[32];
  uint32_t exchange[32][32];
  Operands operands[32];
};
inline std::vector<Fiber> fibers;
inline std::vector<Block> blocks;
inline Fiber* me;
inline Meeting cluster;
inline jmp_buf scheduler;
inline std::function<void()> body;
inline dim3 first;
inline int threads;

inline void yield() {
  if (!_setjmp(me->place)) _longjmp(scheduler, 1);
}
inline __attribute__((noinline)) void go_on() {
  if (_setjmp(scheduler)) return;
  if (me->begun) _longjmp(me->place, 1);
  me->begun = true;
  setcontext(&me->begin);
}
inline void enter() {
  body();
  me->done = true;
  _longjmp(scheduler, 1);
}
inline void arrive(Meeting& at, int of) {
  if (++at.arrived == of) at.arrived = 0, ++at.turn;
}
inline void meet(Meeting& at, int of) {
  const long turn = at.turn;
  arrive(at, of);
  while (at.turn == turn) yield();
}
inline Block& block() { return blocks[me->block]; }
inline int warp() { return me->thread / 32; }
inline int lane() { return me->thread % 32; }
inline void meet_warp() { meet(block().warp[warp()], 32); }

inline void run_cluster() {
  std::vector<int> left;
  for (size_t i = 0; i < fibers.size(); ++i) {
    Fiber& one = fibers[i];
    one.begun = one.done = false, one.block = i / threads, one.thread = i % threads;
    one.open.clear(), one.groups.clear(), one.stack.resize(64 << 10);
    getcontext(&one.begin);
    one.begin.uc_stack.ss_sp = one.stack.data(), one.begin.uc_stack.ss_size = one.stack.size(), one.begin.uc_link = nullptr;
    makecontext(&one.begin, enter, 0);
    left.push_back(i);
  }
  std::vector<int> alive(blocks.size(), threads);
  while (!left.empty()) {
    if (dice() % 4 == 0) std::shuffle(left.begin(), left.end(), dice);
    for (size_t i = 0; i < left.size();) {
      me = &fibers[left[i]];
      go_on();
      if (!me->done) {
        ++i;
        continue;
      }
      if (--alive[me->block] == 0) std::fill(block().room.begin(), block().room.end(), 0xff);
      left[i] = left.back(), left.pop_back();
    }
  }
}

template <class... P, class... A>
int launch(const cudaLaunchConfig_t* config, void (*kernel)(P...), A... args) {
  int of = 1;
  for (int i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) of = config->attrs[i].val.clusterDim.x;
  if (config->dynamicSmemBytes > static_cast<size_t>(most_shared) || config->blockDim.x > 1024 || of > 8 || config->gridDim.x % of)
    return cudaErrorInvalidValue;
  threads = config->blockDim.x;
  body = [=] { kernel(args...); };
  for (unsigned y = 0; y < config->gridDim.y; ++y)
    for (unsigned x = 0; x < config->gridDim.x; x += of) {
      first = dim3(x, y), cluster = {};
      blocks.assign(of, {});
      for (Block& one : blocks) one.room.assign(config->dynamicSmemBytes, 0xff);
      fibers.resize(of * threads);
      run_cluster();
    }
  return cudaSuccess;
}

inline struct {
  struct {
    operator unsigned() const { return me->thread; }
  } x;
} thread_index;
inline struct {
  struct {
    operator unsigned() const { return first.x + me->block; }
  } x;
  struct {
    operator unsigned() const { return first.y; }
  } y;
} block_index;

// ---- memory

inline uint8_t* room() { return block().room.data(); }
inline uint8_t* shared(uint32_t at, uint32_t bytes) {
  if (at % bytes || at + bytes > block().room.size()) fprintf(stderr, "outside of shared memory: %u\n", at), abort();
  return room() + at;
}
template <class V>
V shuffle(V v, int from) {
  uint32_t* const slots = block().exchange[warp()];
  memcpy(slots + lane(), &v, 4);
  meet_warp();
  memcpy(&v, slots + (from & 31), 4);
  meet_warp();
  return v;
}

// ---- pairs

template <class T>
T rounded(float v) {
  if constexpr (std::is_same_v<T, __half>) return __float2half(v);
  else return __float2bfloat16(v);
}
template <class T>
void unpack(uint32_t two, float& a, float& b) {
  T v[2];
  memcpy(v, &two, 4);
  a = v[0], b = v[1];
}
template <class T>
uint32_t pack(float a, float b) {
  const T v[2] = {rounded<T>(a), rounded<T>(b)};
  uint32_t two;
  memcpy(&two, v, 4);
  return two;
}
template <class T>
uint32_t times(uint32_t a, uint32_t b) {
  float x, y, z, w;
  unpack<T>(a, x, y), unpack<T>(b, z, w);
  return pack<T>(x * z, y * w);
}

inline float e2m1(uint32_t code) {
  const float of[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -of[code & 7] : of[code & 7];
}
inline float e4m3(uint32_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return NAN;
  return exponent ? std::ldexp(8.0f + mantissa, exponent - 10) : std::ldexp(1.0f * mantissa, -9);
}

// A warp's instruction: D [16, 8] += A [16, K] B [8, K]^T. The last lane to come spreads the operands out and computes.
template <int K, class Spread>
void tensor_core(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t scale_a, uint32_t scale_b, Spread spread) {
  Operands& all = block().operands[warp()];
  memcpy(all.a[lane()], a, sizeof a), memcpy(all.b[lane()], b, sizeof b), memcpy(all.d[lane()], d, sizeof d);
  all.scale_a[lane()] = scale_a, all.scale_b[lane()] = scale_b;
  if (block().warp[warp()].arrived == 31) {
    float left[16][K], right[8][K];
    spread(all, left, right);
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < K; ++k) all.d[l][i] += left[l / 4 + 8 * (i >> 1)][k] * right[2 * (l % 4) + (i & 1)][k];
  }
  meet_warp();
  memcpy(d, all.d[lane()], sizeof d);
  meet_warp();
}

}  // namespace on_cpu

#define threadIdx on_cpu::thread_index
#define blockIdx on_cpu::block_index
#define cudaLaunchKernelEx on_cpu::launch

template <class... A>
int cudaFuncSetAttribute(A...) {
  return cudaSuccess;
}
inline int cudaGetDevice(int*) { return cudaSuccess; }
inline int cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  constexpr int reserved = 1 << 10;
  const int of[] = {on_cpu::processors, on_cpu::most_shared, on_cpu::most_shared + reserved, reserved, 12};
  *value = of[which];
  return cudaSuccess;
}
inline uint32_t __cvta_generic_to_shared(const void* p) { return static_cast<const uint8_t*>(p) - on_cpu::room(); }
inline void __syncwarp() { on_cpu::meet_warp(); }
inline void __syncthreads() { on_cpu::meet(on_cpu::block().all, on_cpu::threads); }
template <class V>
V __shfl_xor_sync(unsigned, V v, int other) {
  return on_cpu::shuffle(v, on_cpu::lane() ^ other);
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t v) {
  for (int other = 1; other < 32; other *= 2) v = max(v, on_cpu::shuffle(v, on_cpu::lane() ^ other));
  return v;
}
template <class V>
V __ldg(const V* p) {
  return *p;
}
inline float __uint_as_float(uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}
inline uint32_t __vmaxu2(uint32_t a, uint32_t b) { return max(a & 0xffffu, b & 0xffffu) | max(a >> 16, b >> 16) << 16; }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t select) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t v = 0;
  for (int i = 0; i < 4; ++i) v |= static_cast<uint32_t>(both >> 8 * (select >> 4 * i & 7) & 0xff) << 8 * i;
  return v;
}

// ---- kernels/ptx.cuh

namespace sb {

inline void wait_for_previous() { on_cpu::yield(); }
inline void let_next_start() {}
template <class V>
V loaded(const void* p) {
  if (reinterpret_cast<size_t>(p) % sizeof(V)) fprintf(stderr, "a load from an odd address\n"), abort();
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}
inline uint4 load_stream(const void* p) { return loaded<uint4>(p); }
inline uint2 load_once8(const void* p) { return loaded<uint2>(p); }
inline uint4 load_after_wait(const void* p) { return loaded<uint4>(p); }
inline uint32_t load_after_wait32(const void* p) { return loaded<uint32_t>(p); }
inline uint4 shared16(uint32_t at) { return loaded<uint4>(on_cpu::shared(at, 16)); }
inline uint2 shared8(uint32_t at) { return loaded<uint2>(on_cpu::shared(at, 8)); }
inline uint32_t shared2(uint32_t at) { return loaded<uint16_t>(on_cpu::shared(at, 2)); }

template <int BYTES>
void copy_async(uint32_t to, const void* from, bool valid) {
  on_cpu::me->open.push_back({on_cpu::shared(to, BYTES), valid ? from : nullptr, BYTES});
  if (on_cpu::early) on_cpu::me->open.back().make();
}
inline void copy16(uint32_t to, const uint8_t* from, bool take = true) {
  if (take) copy_async<16>(to, from, true);
}
inline void copy_commit() { on_cpu::me->groups.push_back(std::exchange(on_cpu::me->open, {})); }
template <int PENDING>
void copy_wait() {
  auto& groups = on_cpu::me->groups;
  for (; groups.size() > PENDING; groups.pop_front())
    for (const auto& one : groups.front())
      if (!on_cpu::early) one.make();
}

inline void cluster_arrive() {
  on_cpu::me->cluster_turn = on_cpu::cluster.turn;
  on_cpu::arrive(on_cpu::cluster, on_cpu::fibers.size());
}
inline void cluster_arrive_early() { cluster_arrive(); }
inline void cluster_wait() {
  while (on_cpu::cluster.turn == on_cpu::me->cluster_turn) on_cpu::yield();
}
inline void cluster_barrier() { cluster_arrive(), cluster_wait(); }
inline float* there(const float* mine, int rank) {
  on_cpu::yield();
  return reinterpret_cast<float*>(on_cpu::blocks[rank].room.data() + (reinterpret_cast<const uint8_t*>(mine) - on_cpu::room()));
}
inline float shared_of(const float* mine, int rank) { return *there(mine, rank); }
inline void give_first(const float* mine, float v) { *there(mine, 0) = v; }

inline uint32_t e4m3x2_to_half2(uint32_t) { fprintf(stderr, "not imitated\n"), abort(); }
inline uint32_t bf16_twice(float v) { return on_cpu::pack<__nv_bfloat16>(v, v); }
inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) { return on_cpu::times<__nv_bfloat16>(a, b); }
inline uint32_t mul_f16x2(uint32_t a, uint32_t b) { return on_cpu::times<__half>(a, b); }
template <class T>
uint32_t mul2_by_half(uint32_t a, uint32_t b, bool upper) {
  const uint32_t half = upper ? b >> 16 : b & 0xffff;
  return on_cpu::times<T>(a, half << 16 | half);
}

// By the PTX ISA's layouts of operands ("Matrix fragments for mma.m16n8k16" and "m16n8k64", "Block scaling for mma.sync" with both selectors 0).
template <class T>
void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  on_cpu::tensor_core<16>(c, {a0, a1, a2, a3}, {b0, b1}, 0, 0, [](const on_cpu::Operands& all, auto& left, auto& right) {
    for (int l = 0; l < 32; ++l) {
      const int g = l / 4, k = 2 * (l % 4);
      for (int i = 0; i < 4; ++i) {
        float* const row = left[g + 8 * (i & 1)] + k + 8 * (i >> 1);
        on_cpu::unpack<T>(all.a[l][i], row[0], row[1]);
      }
      for (int i = 0; i < 2; ++i) on_cpu::unpack<T>(all.b[l][i], right[g][k + 8 * i], right[g][k + 8 * i + 1]);
    }
  });
}
inline void mma_fp4(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t scale_a, uint32_t scale_b) {
  on_cpu::tensor_core<64>(d, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, scale_a, scale_b, [](const on_cpu::Operands& all, auto& left, auto& right) {
    for (int l = 0; l < 32; ++l) {
      const int g = l / 4, t = l % 4;
      for (int k = 0; k < 8; ++k) {
        for (int i = 0; i < 4; ++i) {
          const int row = g + 8 * (i & 1), scales = 4 * g + (i & 1);
          left[row][8 * t + 32 * (i >> 1) + k] = on_cpu::e2m1(all.a[l][i] >> 4 * k) * on_cpu::e4m3(all.scale_a[scales] >> 8 * (t / 2 + 2 * (i >> 1)));
        }
        for (int i = 0; i < 2; ++i)
          right[g][8 * t + 32 * i + k] = on_cpu::e2m1(all.b[l][i] >> 4 * k) * on_cpu::e4m3(all.scale_b[4 * g] >> 8 * (t / 2 + 2 * i));
      }
    }
  });
}
template <class T>
void mma_first(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  c[0] = c[1] = c[2] = c[3] = 0.0f;
  mma<T>(c, a0, a1, a2, a3, b0, b1);
}

}  // namespace sb

extern "C" __attribute__((weak)) void imitate(bool early, int seed, int processors, int most_shared) {
  on_cpu::early = early, on_cpu::dice.seed(seed), on_cpu::processors = processors, on_cpu::most_shared = most_shared;
}
