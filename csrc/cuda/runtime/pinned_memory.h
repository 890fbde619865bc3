// Host memory that the device reads and writes by itself, so that a copy is only begun: one between
// the device and pageable memory waits for the stream, but for small copies to the device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "core/device.h"

namespace fusewire::cuda {

struct PinnedBlock {
  void* data = nullptr;
  size_t bytes = 0;
  cudaEvent_t copied = nullptr;  // recorded behind each copy
};

// At least `bytes` that no copy is under way from or to, of a device's own.
PinnedBlock take_pinned(int index, size_t bytes);
// For others, once its last copy has ended.
void give_pinned(int index, const PinnedBlock& block) noexcept;

}  // namespace fusewire::cuda
