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
void drop_and_add(const Tensor& out, const Tensor& x, const Tensor* residual,
                  const Dropout& dropout, const Stream& stream);

}  // namespace fusewire::ops
