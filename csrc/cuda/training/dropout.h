// Which elements of a row are dropped (core/dropout.h).
#pragma once

#include "core/dropout.h"
#include "core/philox.h"

namespace fusewire::cuda {

class RowDropout {
 public:
  // After wait_for_inputs: the key may be in memory.
  __device__ __forceinline__ explicit RowDropout(const Dropout& dropout)
      : key_(dropout.key()),
        offset_(static_cast<uint64_t>(dropout.offset)),
        threshold_(dropout.threshold()),
        factor_(dropout.factor()) {}

  // v: n elements that share a counter, from `column` on, which is a multiple of n. Dropped NaN and
  // infinity are gone, as with a selection. A product is rounded before anything is added to
  // it, so that every kernel that drops gives the same bits.
  template <int n>
  __device__ __forceinline__ void apply(float (&v)[n], int64_t row, int64_t column) const {
    static_assert(n == kDropoutGroup || n == kDropoutGroup / 2);
    const PhiloxWords words = philox<kDropoutRounds>(
        key_, {{static_cast<uint32_t>(column / kDropoutGroup), static_cast<uint32_t>(row),
                static_cast<uint32_t>(offset_), static_cast<uint32_t>(offset_ >> 32)}});
    const bool second = n < kDropoutGroup && column % kDropoutGroup;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const uint32_t word = second ? words.x[(kDropoutGroup - n + i) / 2] : words.x[i / 2];
      const uint32_t number = i % 2 ? word >> 16 : word & 0xffff;
      v[i] = number < threshold_ ? 0.0f : __fmul_rn(v[i], factor_);
    }
  }

 private:
  uint64_t key_, offset_;
  uint32_t threshold_;
  float factor_;
};

}  // namespace fusewire::cuda
