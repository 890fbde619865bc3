// Rows whose numbers lie in the order in which a weight has its inputs.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

// to[r, i] = x[r, order[i]], of 16-bit numbers. `to` [rows, k] begins at a multiple of 16 bytes,
// and k is a multiple of 8.
void order_rows(void* to, const GemmOperand& x, const int32_t* order, int64_t rows, int64_t k,
                const Stream& stream);

}  // namespace fusewire::cuda
