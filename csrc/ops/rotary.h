// The checks of rotary, also for the op that applies it before attention.
#pragma once

#include "core/check.h"
#include "core/kernels.h"

namespace fusewire::ops {

RotaryArguments rotary_arguments(Check& check, const Tensor& qkv, const Tensor& positions,
                                 const Tensor& cos, const Tensor& sin, int64_t heads,
                                 int64_t kv_heads);

}  // namespace fusewire::ops
