// Rotates a pair of elements by an angle. All kernels that apply RoPE use it, so that they round in
// the same way.
#pragma once

#include "cuda/element.h"

namespace fusewire::cuda {

__device__ __forceinline__ float2 rotated(float x, float y, float cosine, float sine) {
  return {fmaf(x, cosine, -__fmul_rn(y, sine)), fmaf(y, cosine, __fmul_rn(x, sine))};
}

}  // namespace fusewire::cuda
