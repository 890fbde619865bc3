// The end of kernels that write weights.
#pragma once

#include <cuda_runtime.h>

#include "cuda/launch.h"
#include "cuda/runtime/kept_memory.h"

namespace fusewire::cuda {

// Kernels may fetch weights before they wait for what comes before them in the stream (launch.h),
// as if copies had written them. Copies and fills end before a later kernel begins, so one after a
// kernel that writes weights makes that true of it. Such a kernel does not let the next one start.
// `spare` is kWeightsEndBytes of memory that is not used.
constexpr size_t kWeightsEndBytes = 16;

inline void end_weights(void* spare, const Stream& stream) {
  check(cudaMemsetAsync(spare, 0, kWeightsEndBytes, handle(stream)), "weights");
}

inline void end_weights(const Stream& stream) {
  end_weights(kept_memory(stream, kWeightsEndBytes), stream);
}

}  // namespace fusewire::cuda
