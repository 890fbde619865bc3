// Dropout of the weights of attention (core/dropout.h) in kernels of this device.
#pragma once

#include "core/dropout.h"
#include "core/philox.h"

namespace fusewire::cuda {

struct WeightDropout {
  uint64_t seed, offset;
  const int64_t* added;  // added to the seed; may be null
  uint32_t threshold;
  float factor;  // multiplies a weight that is kept
  bool any;

  explicit WeightDropout(const Dropout& d)
      : seed(static_cast<uint64_t>(d.seed)),
        offset(static_cast<uint64_t>(d.offset)),
        added(d.added),
        threshold(d.threshold()),
        factor(d.factor()),
        any(d.probability > 0) {}

  // Returns the random numbers of a row of the mask in 8 adjacent columns. Word w holds those of
  // columns 2w, in its low half, and 2w + 1.
  __device__ __forceinline__ PhiloxWords words(uint32_t row, uint32_t group) const {
    const uint64_t key = added ? seed + static_cast<uint64_t>(__ldg(added)) : seed;
    return philox<kDropoutRounds>(
        key, {{group, row, static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)}});
  }

  __device__ __forceinline__ float factor_of(uint32_t number) const {
    return number < threshold ? 0.0f : factor;
  }

  // Returns the factor of a single weight.
  __device__ __forceinline__ float factor_at(uint32_t row, uint32_t column) const {
    const PhiloxWords w = words(row, column / kDropoutGroup);
    const uint32_t low = column & 2 ? w.x[1] : w.x[0], high = column & 2 ? w.x[3] : w.x[2];
    const uint32_t word = column & 4 ? high : low;
    return factor_of(column & 1 ? word >> 16 : word & 0xffff);
  }
};

}  // namespace fusewire::cuda
