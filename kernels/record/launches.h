// Included before the sources when `sparkbook.kernels.gb10` compiles them: launches are noted instead of made, on a pretended GB10. So what
// is recorded of a launch, its kernel, grid and shared memory, is what the sources themselves ask for.
#pragma once
#include <cuda_runtime.h>
#include <cuda_occupancy.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

namespace noted {

// Multiprocessors: deviceQuery on a Spark, https://blog.kubesimplify.com/blog/day-3-the-dgx-spark-unpacked-gb10-unified-memory-sm-121-and-the-one-reason-this-hardware-exists
// The rest: CUDA C++ Programming Guide, technical specifications by compute capability, 12.x. The calculator knows the other limits.
constexpr int kMultiprocessors = 48, kThreads = 1536, kRegisters = 65536, kShared = 102400, kSharedOfBlock = 101376, kReserved = 1024;

inline FILE* out = nullptr;

template <class... P, class... A>
cudaError_t launch(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&...) {
  Dl_info found{};
  dladdr(reinterpret_cast<void*>(kernel), &found);
  // By its place in the library: kernels' names are in no table that the loader reads.
  fprintf(out, "%zx %u %zu\n", reinterpret_cast<char*>(kernel) - static_cast<char*>(found.dli_fbase), config->blockDim.x,
          config->dynamicSmemBytes);
  return cudaSuccess;
}

inline cudaError_t device_attribute(int* value, cudaDeviceAttr which, int) {
  if (which == cudaDevAttrMultiProcessorCount) *value = kMultiprocessors;
  else if (which == cudaDevAttrMaxSharedMemoryPerBlockOptin) *value = kSharedOfBlock;
  else if (which == cudaDevAttrMaxSharedMemoryPerMultiprocessor) *value = kShared;
  else if (which == cudaDevAttrReservedSharedMemoryPerBlock) *value = kReserved;
  else if (which == cudaDevAttrComputeCapabilityMajor) *value = 12;
  else abort();  // a figure that is not pretended yet
  return cudaSuccess;
}

template <class... A>
cudaError_t nothing(A...) {
  return cudaSuccess;
}

}  // namespace noted

// The file that launches are written to.
extern "C" __attribute__((used, visibility("default"))) inline void note_launches(const char* path) {
  if (noted::out) fclose(noted::out);
  noted::out = path ? fopen(path, "w") : nullptr;
}

// Blocks of a kernel that a multiprocessor of GB10 holds at a time, by NVIDIA's calculator; negative: an error of it.
extern "C" __attribute__((used, visibility("default"))) inline int resident_blocks(int registers, int fixed_shared, int threads, int shared) {
  cudaOccDeviceProp device;
  device.computeMajor = 12, device.computeMinor = 1;
  device.maxThreadsPerBlock = 1024, device.maxThreadsPerMultiprocessor = noted::kThreads;
  device.regsPerBlock = device.regsPerMultiprocessor = noted::kRegisters, device.warpSize = 32;
  device.sharedMemPerBlock = 49152, device.sharedMemPerMultiprocessor = noted::kShared;
  device.sharedMemPerBlockOptin = noted::kSharedOfBlock, device.reservedSharedMemPerBlock = noted::kReserved;
  device.numSms = noted::kMultiprocessors;
  cudaOccFuncAttributes kernel;
  kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = fixed_shared;
  kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, kernel.maxDynamicSharedSizeBytes = shared;
  const cudaOccDeviceState state;
  cudaOccResult result;
  const int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared);
  return error ? -error : result.activeBlocksPerMultiprocessor;
}

#define cudaLaunchKernelEx noted::launch
#define cudaDeviceGetAttribute noted::device_attribute
#define cudaFuncSetAttribute noted::nothing
#define cudaGetDevice noted::nothing
