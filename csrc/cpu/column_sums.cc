// Sums of the columns of a matrix: gradients of biases.
#include "core/training_kernels.h"
#include "cpu/row_blocks.h"

namespace fusewire::FUSEWIRE_TARGET {

void column_sums(float* out, const void* x, int64_t x_stride, int64_t rows, int64_t cols,
                 bool accumulate, const Stream&) {
  const float* from = static_cast<const float*>(x);
  sum_row_blocks(
      rows, cols,
      [&](float* sums, int64_t first, int64_t last) {
        for_columns(cols, [&](int64_t c, int64_t count) {
          Vec sum = {};
          for (int64_t r = first; r < last; ++r) sum += read(from + r * x_stride + c, count);
          write(sums + c, sum, count);
        });
      },
      [&](const float* total) { write_gradient(out, total, cols, accumulate); });
}

}  // namespace fusewire::FUSEWIRE_TARGET
