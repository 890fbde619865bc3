// The end of kernels that write weights.
#pragma once

#include <cuda_runtime.h>

#include "cuda/launch.h"
#include "cuda/runtime/kept_memory.h"

namespace fusewire::cuda {

// Kernels may load weights before they wait for earlier kernels of the stream (launch.h), as if
// copies had written the weights. Copies and fills end before a later kernel begins, so a fill
// after a kernel that writes weights makes this safe. Such a kernel does not let the next one start
// early. `spare` is kWeightsEndBytes of memory that is otherwise unused.
constexpr size_t kWeightsEndBytes = 16;

inline void end_weights(void* spare, const Stream& stream) {
  check(cudaMemsetAsync(spare, 0, kWeightsEndBytes, handle(stream)), "weights");
}

inline void end_weights(const Stream& stream) {
  end_weights(kept_memory(stream, kWeightsEndBytes), stream);
}

}  // namespace fusewire::cuda
