// Pinned host memory, which the device can access directly, so that copies are asynchronous. A copy
// between the device and pageable memory waits for the stream, except for small copies to the
// device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "core/device.h"

namespace fusewire::cuda {

struct PinnedBlock {
  void* data = nullptr;
  size_t bytes = 0;
  cudaEvent_t copied = nullptr;  // recorded after each copy
};

// Returns a block of at least `bytes` for copies with device `index`, which no copy in flight uses.
PinnedBlock take_pinned(int index, size_t bytes);
// Returns a block to the pool. It is reused once its last copy has completed.
void give_pinned(int index, const PinnedBlock& block) noexcept;

}  // namespace fusewire::cuda
