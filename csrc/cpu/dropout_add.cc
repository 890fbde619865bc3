// Dropout with the residual that follows it, and the norm of their sum. The counters of a row are
// along the lanes, so that one evaluation of Philox decides kLanes groups of columns.
#include "core/norm.h"
#include "core/threads.h"
#include "core/training_kernels.h"
#include "cpu/columns.h"
#include "cpu/dropout.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kRun = kLanes * kDropoutGroup;  // columns per evaluation of Philox

// Sets bit i of kept[g] where column 8 g + i of the run is kept.
FUSEWIRE_INLINE void keep_run(const Dropout& dropout, int64_t row, int64_t run,
                              uint8_t (&kept)[kLanes]) {
  UintVec group;
  for (int lane = 0; lane < kLanes; ++lane) {
    group[lane] = static_cast<uint32_t>(run * kLanes + lane);
  }
  UintVec words[4];
  dropout_words(dropout, UintVec{} + static_cast<uint32_t>(row), group, words);
  const uint32_t threshold = dropout.threshold();
  UintVec bits = {};
#pragma GCC unroll 8
  for (int i = 0; i < kDropoutGroup; ++i) {
    const UintVec number = i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xFFFF;
    // The difference is negative where the number is less; only its sign bit is used.
    bits |= (~(number - threshold) >> 31) << i;
  }
  for (int lane = 0; lane < kLanes; ++lane) kept[lane] = static_cast<uint8_t>(bits[lane]);
}

// Returns 0 or `factor` for kLanes columns of the run from `column` on.
FUSEWIRE_INLINE Vec factors(const uint8_t (&kept)[kLanes], int64_t column, float factor) {
  uint32_t bits;
  if constexpr (kLanes == 16) {
    bits = kept[column / 8] | static_cast<uint32_t>(kept[column / 8 + 1]) << 8;
  } else {
    bits = static_cast<uint32_t>(kept[column / 8]) >> (column % 8);
  }
  UintVec one;
  for (int lane = 0; lane < kLanes; ++lane) one[lane] = uint32_t{1} << lane;
  const UintVec set = (UintVec{} + bits) & one;
  return reinterpret_cast<const IntVec&>(set) != 0 ? broadcast(factor) : Vec{};
}

}  // namespace

void column_sums(float* out, const void* x, int64_t x_stride, int64_t rows, int64_t cols,
                 bool accumulate, const Stream& stream);

void dropout_add(void* out, int64_t out_stride, float* sums, const void* x, int64_t x_stride,
                 const void* residual, int64_t residual_stride, int64_t rows, int64_t cols,
                 const Dropout& dropout, bool accumulate, const Stream& stream) {
  const float factor = dropout.factor();
  parallel_for(rows, rows_of_a_task(cols) + 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* to = static_cast<float*>(out) + r * out_stride;
      const float* from = static_cast<const float*>(x) + r * x_stride;
      const float* more =
          residual ? static_cast<const float*>(residual) + r * residual_stride : nullptr;
      for (int64_t first = 0; first < cols; first += kRun) {
        uint8_t kept[kLanes];
        keep_run(dropout, r, first / kRun, kept);
        for_columns(cols - first < kRun ? cols - first : kRun, [&](int64_t c, int64_t count) {
          // Dropped NaN and infinity become 0, as with a selection.
          const Vec by = factors(kept, c, factor);
          Vec y = by == 0.0f ? Vec{} : read(from + first + c, count) * by;
          if (more) y += read(more + first + c, count);
          write(to + first + c, y, count);
        });
      }
    }
  });
  if (sums) column_sums(sums, out, out_stride, rows, cols, accumulate, stream);
}

void layer_norm(const NormArguments& a, const Stream& stream);

void dropout_add_layer_norm(const DropoutNormArguments& a, const Stream& stream) {
  dropout_add(a.sum, a.sum_stride, nullptr, a.x, a.x_stride, a.residual, a.residual_stride, a.rows,
              a.cols, a.dropout, false, stream);
  layer_norm({a.out, a.sum, nullptr, a.weight, a.bias, a.out_stride, a.sum_stride, 0, a.rows,
              a.cols, a.eps},
             stream);
}

}  // namespace fusewire::FUSEWIRE_TARGET
