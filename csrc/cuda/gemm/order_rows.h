// Reorders the columns of activations into the order of a weight's inputs.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

// Computes to[r, i] = x[r, order[i]], for 16-bit elements. `to` [rows, k] is aligned to 16 bytes,
// and k is a multiple of 8.
void order_rows(void* to, const GemmOperand& x, const int32_t* order, int64_t rows, int64_t k,
                const Stream& stream);

}  // namespace fusewire::cuda
