// The second stage of sums over rows: blocks store the sums of their own rows, which are then added
// in the order of the blocks, so that a sum has the same bits every time.
#pragma once

#include <cstdint>

#include "core/stream.h"

namespace fusewire::cuda {

// Computes outs[i][c] (+)= the sum of parts[p, i * cols + c] over p, for c < cols and every i with
// i * cols < width. Those whose outs[i] is null are left out.
struct ColumnTotals {
  const float* parts;  // [count, width]
  int64_t count, width;
  float* outs[3];
  int64_t cols;
  bool accumulate;
};

void add_parts(const ColumnTotals& a, const Stream& stream);

}  // namespace fusewire::cuda
