// Finds a threshold without sorting, by narrowing a bracket around it: the largest t such that the
// elements >= t have a mass of at least `target` (a count, for the k-th largest element; a
// probability, for top-p). Each pass over the elements computes the masses above kPivots pivots;
// the two pivots around the target are the next bracket.
//
// The first passes divide the range of values, over which logits are spread. Later passes divide
// the ordered bit patterns of floats: there are 2^32, so eleven such passes suffice for any input.
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

// Map a float to an integer of the same order, and back.
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
  int64_t low, high;  // orders: the mass of elements >= low reaches the target, >= high does not
  float above;        // the mass of elements >= high
};

// Returns the bracket of elements within [least, most], which must be finite.
FUSEWIRE_EVERYWHERE Bracket bracket_of(float least, float most) {
  return {order_of(least), int64_t{order_of(most)} + 1, 0.0f};
}

FUSEWIRE_EVERYWHERE bool found(const Bracket& b) {
  return b.high - b.low == 1;
}

// Computes pivots within the bracket, which must be wider than one: they divide the range of values
// if `values`, else that of bit patterns.
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

// Narrows the bracket to the pivots around `target`; masses[j] is the mass of the elements
// >= pivots[j].
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
