// The rotation of two numbers by an angle, rounded alike wherever it is done.
#pragma once

#include "cuda/element.h"

namespace fusewire::cuda {

__device__ __forceinline__ float2 rotated(float x, float y, float cosine, float sine) {
  return {fmaf(x, cosine, -__fmul_rn(y, sine)), fmaf(y, cosine, __fmul_rn(x, sine))};
}

}  // namespace fusewire::cuda
