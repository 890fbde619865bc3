// The only place where a tensor's device and element type select the kernels.
#pragma once

#include "core/check.h"
#include "core/kernels.h"
#include "core/runtime.h"
#include "core/training_kernels.h"

namespace fusewire::ops {

// Calls launch(kernels), unless the stream only records or there are no rows.
template <class Launch>
void dispatch(const Check& check, const Stream& stream, int64_t rows, Launch&& launch) {
  const Kernels& kernels = kernels_for(stream.device, check.dtype());
  if (stream.recording || rows == 0) return;
  const CurrentDevice current(stream.device);
  launch(kernels);
}

// As dispatch, for an op of a backward pass.
template <class Launch>
void dispatch_training(const Check& check, const Stream& stream, int64_t rows, Launch&& launch) {
  const TrainingKernels& kernels = training_kernels_for(stream.device, check.dtype());
  if (stream.recording || rows == 0) return;
  const CurrentDevice current(stream.device);
  launch(kernels);
}

}  // namespace fusewire::ops
