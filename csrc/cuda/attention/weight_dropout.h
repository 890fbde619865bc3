// Which weights of attention are dropped (core/dropout.h), as kernels of this device ask.
#pragma once

#include "core/dropout.h"
#include "core/philox.h"

namespace fusewire::cuda {

struct WeightDropout {
  uint64_t seed, offset;
  const int64_t* added;  // to the seed; may be null
  uint32_t threshold;
  float factor;  // of a weight that is kept
  bool any;

  explicit WeightDropout(const Dropout& d)
      : seed(static_cast<uint64_t>(d.seed)),
        offset(static_cast<uint64_t>(d.offset)),
        added(d.added),
        threshold(d.threshold()),
        factor(d.factor()),
        any(d.probability > 0) {}

  // The numbers of a row of the mask in 8 neighbouring columns: word w holds the numbers of columns
  // 2w, in the low half, and 2w + 1.
  __device__ __forceinline__ PhiloxWords words(uint32_t row, uint32_t group) const {
    const uint64_t key = added ? seed + static_cast<uint64_t>(__ldg(added)) : seed;
    return philox(
        key, {{group, row, static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)}});
  }

  __device__ __forceinline__ float factor_of(uint32_t number) const {
    return number < threshold ? 0.0f : factor;
  }

  // The factor of one weight alone.
  __device__ __forceinline__ float factor_at(uint32_t row, uint32_t column) const {
    const PhiloxWords w = words(row, column / kDropoutGroup);
    const uint32_t low = column & 2 ? w.x[1] : w.x[0], high = column & 2 ? w.x[3] : w.x[2];
    const uint32_t word = column & 4 ? high : low;
    return factor_of(column & 1 ? word >> 16 : word & 0xffff);
  }
};

}  // namespace fusewire::cuda
