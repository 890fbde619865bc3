// Checks of a matrix product's operands.
#pragma once

#include "core/check.h"
#include "core/gemm.h"
#include "ops/linear.h"

namespace fusewire::ops {

struct Product {
  const GemmKernels* kernels;  // for the weight's format
  GemmArguments arguments;
};

// Checks the operands and returns the arguments. residual may be null.
Product product(Check& check, const Tensor& out, const Tensor& x, const Linear& linear,
                Activation activation, const Tensor* residual, const Stream& stream);

}  // namespace fusewire::ops
