// Declarations of the op table.
#pragma once

#include "core/activation.h"
#include "core/attention.h"
#include "core/pooling.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "ops/linear.h"
#include "ops/table.h"

namespace fusewire::ops {

#define OP(name, signature, meaning) void name signature;
#include "ops/ops.def"
#undef OP

// As dropout_add, with a seed that may be in memory.
void drop_and_add(const Tensor& out, const Tensor* sums, const Tensor& x, const Tensor* residual,
                  const Dropout& dropout, bool accumulate, const Stream& stream);
// dropout_add_layer_norm and layer_norm_dropout_backward with a seed that may be in memory.
void drop_add_and_norm(const Tensor& out, const Tensor& sum, const Tensor& x,
                       const Tensor& residual, const Tensor& weight, const Tensor* bias, float eps,
                       const Dropout& dropout, const Stream& stream);
void norm_and_drop_backward(const Tensor& dx, const Tensor& dz, const Tensor& dweight,
                            const Tensor* dbias, const Tensor* sums, const Tensor& dy,
                            const Tensor& x, const Tensor& weight, float eps,
                            const Dropout& dropout, bool accumulate, const Stream& stream);

}  // namespace fusewire::ops
