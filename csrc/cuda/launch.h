// Kernel launches. Every launch is a programmatic dependent launch (CUDA programming guide,
// "Programmatic Dependent Launch"), so that the prologue of a kernel overlaps with the end of its
// predecessor.
//
// The rule that makes this correct: every thread of a kernel calls `wait_for_inputs()` before it
// accesses memory that an earlier kernel of the stream reads or writes. Weights are written by
// copies, which complete before a later kernel begins, and may be fetched before the wait. So may
// pages of a KV cache that no kernel has written since the last copy (the input of a step is such a
// copy). `let_next_start()` may be the first statement: the next kernel passes its own wait only
// after this kernel, and everything before it, has completed.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <utility>

#include "core/error.h"
#include "core/stream.h"

namespace fusewire::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    cudaGetLastError();  // clears the error, which the check of the next launch would report again
    if (status == cudaErrorMemoryAllocation) {
      fail_out_of_memory("the GPU", what, ": got ", cudaGetErrorName(status),
                         ", wanted success; free some of its memory, or use less");
    }
    fail_as(ErrorKind::kDevice, what, ": got ", cudaGetErrorName(status), " (",
            cudaGetErrorString(status),
            "), wanted success; run the same under compute-sanitizer to find the cause");
  }
}

inline cudaStream_t handle(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

inline int attribute_of_device(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "current device");
  check(cudaDeviceGetAttribute(&value, attribute, device), "device attribute");
  return value;
}

// Properties of the current device. All GPUs of a process are assumed to be of the same model.
inline int multiprocessors() {
  static const int count = attribute_of_device(cudaDevAttrMultiProcessorCount);
  return count;
}
inline bool hopper() {
  static const bool is = attribute_of_device(cudaDevAttrComputeCapabilityMajor) == 9;
  return is;
}

__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Prefetches memory into L2, which all multiprocessors share, for data that is read later, once
// registers are free or inputs are available. May be called before wait_for_inputs(), whichever
// kernel writes the memory.
__device__ __forceinline__ void prefetch(const void* memory) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(memory));
}

constexpr int kMostDevices = 64;

// Allows a kernel to use `bytes` of dynamic shared memory. More than 48 KiB need this call, once
// per kernel and device. A kernel passes the same number at every launch.
template <auto kKernel>
void allow_shared_memory(size_t bytes, const Stream& stream) {
  static std::atomic<bool> allowed[kMostDevices];
  if (bytes <= 48 * 1024 || allowed[stream.device.index].load(std::memory_order_acquire)) return;
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory");
  allowed[stream.device.index].store(true, std::memory_order_release);
}

// Launches a kernel in which `cluster` consecutive blocks along the grid's x dimension form a
// thread-block cluster (Hopper); 1: no clusters.
template <class... Parameters, class... Arguments>
void launch_clusters(void (*kernel)(Parameters...), int cluster, dim3 grid, dim3 block,
                     size_t shared_bytes, const Stream& stream, Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = handle(stream);
  config.attrs = attributes;
  config.numAttrs = cluster == 1 ? 1 : 2;
  check(cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...),
        "kernel launch");
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            const Stream& stream, Arguments&&... arguments) {
  launch_clusters(kernel, 1, grid, block, shared_bytes, stream,
                  std::forward<Arguments>(arguments)...);
}

}  // namespace fusewire::cuda
