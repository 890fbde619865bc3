// Where a threshold lies, narrowed without sorting: the largest number t such that the elements
// that are at least t have a mass of at least `target` (a count, for the k-th largest; a
// probability, for top-p). A pass over the elements gives the masses above kPivots pivots, of which
// the two around the target are the next bracket.
//
// The first passes divide the range of values, which is where logits are spread, the others the
// ordered bit patterns of floats: 2^32 of them, so eleven of those end it for any input.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define FUSEWIRE_EVERYWHERE static __host__ __device__ __forceinline__
#else
#define FUSEWIRE_EVERYWHERE static inline __attribute__((always_inline))
#endif

namespace fusewire {

constexpr int kPivots = 7;
constexpr int kPassesOverValues = 3;

// Integers in the order of the floats, and back.
FUSEWIRE_EVERYWHERE int32_t order_of(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
FUSEWIRE_EVERYWHERE float ordered(int64_t order) {
  int32_t bits = static_cast<int32_t>(order);
  bits ^= (bits >> 31) & 0x7fffffff;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

struct Bracket {
  int64_t low, high;  // orders: the mass from low on reaches the target, that from high on does not
  float above;        // the mass from high on
};

// For elements within [least, most], which are finite.
FUSEWIRE_EVERYWHERE Bracket bracket_of(float least, float most) {
  return {order_of(least), int64_t{order_of(most)} + 1, 0.0f};
}

FUSEWIRE_EVERYWHERE bool found(const Bracket& b) {
  return b.high - b.low == 1;
}

// Inside of the bracket, which is wider than one.
FUSEWIRE_EVERYWHERE void pivots_of(const Bracket& b, bool values, float (&pivots)[kPivots]) {
  const float least = ordered(b.low), most = ordered(b.high - 1);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int j = 0; j < kPivots; ++j) {
    const float part = static_cast<float>(j + 1) / (kPivots + 1);
    const int64_t order = values ? order_of(least * (1.0f - part) + most * part)
                                 : b.low + (b.high - b.low) * (j + 1) / (kPivots + 1);
    pivots[j] = ordered(order <= b.low ? b.low + 1 : order >= b.high ? b.high - 1 : order);
  }
}

// masses[j]: of the elements that are at least pivots[j].
FUSEWIRE_EVERYWHERE void narrow(Bracket& b, const float (&pivots)[kPivots],
                                const float (&masses)[kPivots], float target) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int j = 0; j < kPivots; ++j) {
    const int64_t order = order_of(pivots[j]);
    if (masses[j] >= target) {
      b.low = order > b.low ? order : b.low;
    } else if (order < b.high) {
      b.high = order;
      b.above = masses[j];
    }
  }
}

struct Threshold {
  float value;
  float above;  // the mass of the larger elements
};

}  // namespace fusewire
