// The second stage of sums over rows: blocks store the sums of their own rows, which are then added
// in the order of the blocks, so that a sum has the same bits every time.
#pragma once

#include <cstdint>

#include "core/stream.h"

namespace fusewire::cuda {

// Computes out[c] (+)= the sum of parts[p, c] over p, for c < cols. `second`, which may be null,
// receives the sums of the columns from cols on.
struct ColumnTotals {
  const float* parts;  // [count, width]
  int64_t count, width;
  float *out, *second;
  int64_t cols;
  bool accumulate;
};

void add_parts(const ColumnTotals& a, const Stream& stream);

}  // namespace fusewire::cuda
