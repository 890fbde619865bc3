// Parts of a product: its arguments for the rows or columns of the result from `first` on (the
// caller moves x and the weight itself), and for the product of a gated unit alone.
#pragma once

#include "core/gemm.h"

namespace fusewire {

template <class T>
const T* moved(const void* data, int64_t by) {
  return data ? static_cast<const T*>(data) + by : nullptr;
}

template <class T>
GemmArguments columns_from(GemmArguments a, int64_t first) {
  a.n -= first;
  a.out = static_cast<T*>(a.out) + first;
  a.bias = moved<T>(a.bias, first);
  a.residual = moved<T>(a.residual, first);
  return a;
}

template <class T>
GemmArguments rows_from(GemmArguments a, int64_t first) {
  a.m -= first;
  a.out = static_cast<T*>(a.out) + first * a.out_stride;
  a.residual = moved<T>(a.residual, first * a.residual_stride);
  return a;
}

// Returns the product a | b of a gated unit, in its scratch memory, or `a` as it is.
inline GemmArguments ungated(GemmArguments a) {
  if (!a.both) return a;
  a.out = a.both;
  a.out_stride = a.both_stride;
  a.both = nullptr;
  a.activation = Activation::kNone;
  return a;
}

}  // namespace fusewire
