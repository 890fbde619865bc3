// The gradient of pooling: the share of each token of a sequence in the gradient of the pooled
// vector.
#include "core/threads.h"
#include "core/training_kernels.h"
#include "cpu/columns.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

// Writes the gradient of each column to the token with the largest element, the first of equals,
// and zeros to the others. NaN counts as the largest, so that it is not lost.
void of_largest(float* dx, int64_t dx_stride, const float* dy, const float* x, int64_t x_stride,
                int64_t tokens, int64_t hidden) {
  for_columns(hidden, [&](int64_t c, int64_t count) {
    Vec top = read(x + c, count);
    IntVec at = {};
    for (int64_t t = 1; t < tokens; ++t) {
      const Vec v = read(x + t * x_stride + c, count);
      const IntVec better = (v > top) | ((v != v) & (top == top));
      top = better ? v : top;
      at = better ? IntVec{} + static_cast<int32_t>(t) : at;
    }
    const Vec d = read(dy + c, count);
    for (int64_t t = 0; t < tokens; ++t) {
      write(dx + t * dx_stride + c, at == static_cast<int32_t>(t) ? d : Vec{}, count);
    }
  });
}

}  // namespace

void pool_backward(void* dx, int64_t dx_stride, const void* dy, int64_t dy_stride, const void* x,
                   int64_t x_stride, const SequenceBatch& batch, int64_t hidden, Pooling pooling,
                   const Stream&) {
  parallel_for(batch.sequences(), 1, [&](int64_t sequence, int64_t, int) {
    const int64_t first = batch.begin()[sequence];
    const int64_t tokens = batch.begin()[sequence + 1] - first;
    float* to = static_cast<float*>(dx) + first * dx_stride;
    const float* d = static_cast<const float*>(dy) + sequence * dy_stride;
    if (pooling == Pooling::kMax) {
      const float* from = static_cast<const float*>(x) + first * x_stride;
      return of_largest(to, dx_stride, d, from, x_stride, tokens, hidden);
    }
    const float share = pooling == Pooling::kMean ? 1.0f / static_cast<float>(tokens) : 1.0f;
    for (int64_t t = 0; t < tokens; ++t) {
      const bool gets =
          pooling == Pooling::kMean || (pooling == Pooling::kCls ? t == 0 : t == tokens - 1);
      for_columns(hidden, [&](int64_t c, int64_t count) {
        write(to + t * dx_stride + c, gets ? read(d + c, count) * share : Vec{}, count);
      });
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
