// Thread-block clusters (Hopper and later): blocks that run at the same time, on neighbouring
// multiprocessors, and read each other's shared memory. Kernels that also run without clusters
// include this header; a GPU that has none sees one block.
#pragma once

#include <cstdint>

#include "cuda/launch.h"

namespace fusewire::cuda {

inline bool has_clusters() {
  static const bool found = attribute_of_device(cudaDevAttrComputeCapabilityMajor) >= 9;
  return found;
}

// Returns the float at a shared-memory address in block `rank` of the cluster.
__device__ __forceinline__ float load_of_block(uint32_t address, int rank) {
  float value;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .u32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n"
      "}"
      : "=f"(value)
      : "r"(address), "r"(rank)
      : "memory");
#else
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
#endif
  return value;
}

__device__ __forceinline__ float load_of_block(const float* shared, int rank) {
  return load_of_block(static_cast<uint32_t>(__cvta_generic_to_shared(shared)), rank);
}

// A barrier of all threads of the cluster, before which their writes become visible.
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
#endif
}

}  // namespace fusewire::cuda
