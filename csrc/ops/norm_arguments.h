// Checks of a norm's operands.
#pragma once

#include "core/check.h"
#include "core/norm.h"

namespace fusewire::ops {

// Checks the operands and returns the arguments. residual and bias may be null.
NormArguments norm_arguments(Check& check, const Tensor& out, const Tensor& x,
                             const Tensor* residual, const Tensor& weight, const Tensor* bias,
                             float eps);

}  // namespace fusewire::ops
