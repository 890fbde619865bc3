// Operations between logits and tokens: penalties, biases, sampling, log-sum-exp, ranks.
#include <cmath>

#include "core/error.h"
#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/draw.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

void in_vocabulary(const char* op, int32_t token, int64_t at, int64_t cols) {
  if (token < 0 || token >= cols) {
    fail(op, ": tokens[", at, "]: got ", token, ", wanted 0 to ", cols - 1);
  }
}

thread_local Floats memory;

}  // namespace

void penalize(void* logits, int64_t stride, int64_t rows, int64_t cols, const int32_t* offsets,
              const int32_t* tokens, const int32_t* counts, int64_t n, const float* repetition,
              const float* presence, const float* frequency, const Stream&) {
  for (int64_t r = 0; r < rows; ++r) {
    if (offsets[r] < 0 || offsets[r] > offsets[r + 1] || offsets[r + 1] > n) {
      fail("penalize: offsets[", r, "]: got ", offsets[r], " and then ", offsets[r + 1],
           ", wanted ascending ones within 0 to ", n);
    }
    float* row = static_cast<float*>(logits) + r * stride;
    for (int64_t i = offsets[r]; i < offsets[r + 1]; ++i) {
      in_vocabulary("penalize", tokens[i], i, cols);
      float& x = row[tokens[i]];
      x = x < 0.0f ? x * repetition[r] : x / repetition[r];
      if (counts[i] > 0) x -= presence[r] + static_cast<float>(counts[i]) * frequency[r];
    }
  }
}

void bias_logits(void* logits, int64_t stride, int64_t rows, int64_t cols, const int32_t* at_rows,
                 const int32_t* tokens, const float* values, int64_t n, const Stream&) {
  for (int64_t i = 0; i < n; ++i) {
    if (at_rows[i] < 0 || at_rows[i] >= rows) {
      fail("bias_logits: rows[", i, "]: got ", at_rows[i], ", wanted 0 to ", rows - 1);
    }
    in_vocabulary("bias_logits", tokens[i], i, cols);
    static_cast<float*>(logits)[at_rows[i] * stride + tokens[i]] += values[i];
  }
}

void sample(const SampleArguments& a, const Stream&) {
  parallel_for(a.rows, 1, [&](int64_t r, int64_t, int) {
    a.tokens[r] = draw(static_cast<const float*>(a.logits) + r * a.stride, a, r, memory);
  });
}

void log_sum_exp(float* out, const void* x, int64_t x_stride, int64_t rows, int64_t cols,
                 const Stream&) {
  parallel_for(rows, 1, [&](int64_t r, int64_t, int) {
    const float* row = static_cast<const float*>(x) + r * x_stride;
    const Range range = range_of(row, cols);
    if (range.sound) {
      const float sum = sum_of(0, cols, [&](int64_t c, int64_t lanes) {
        return exp(load_lanes(row + c, lanes, -INFINITY) - range.most);
      });
      out[r] = range.most + std::log(sum);
    } else {  // NaN, or decided by an infinite element
      float sum = 0.0f;
      for (int64_t c = 0; c < cols; ++c) sum += std::exp(row[c]);
      out[r] = std::log(sum);
    }
  });
}

void gather_columns(float* out, const void* x, int64_t x_stride, const int64_t* columns,
                    int64_t rows, int64_t cols, const Stream&) {
  for (int64_t r = 0; r < rows; ++r) {
    const bool inside = columns[r] >= 0 && columns[r] < cols;
    out[r] = inside ? static_cast<const float*>(x)[r * x_stride + columns[r]] : NAN;
  }
}

void rank_columns(int32_t* out, const void* x, int64_t x_stride, const int64_t* columns,
                  int64_t rows, int64_t cols, const Stream&) {
  parallel_for(rows, 1, [&](int64_t r, int64_t, int) {
    const int64_t column = columns[r];
    if (column < 0 || column >= cols) {
      out[r] = 0;
      return;
    }
    const float* row = static_cast<const float*>(x) + r * x_stride;
    const float value = row[column];
    int32_t before = 0;
    for (int64_t c = 0; c < column; ++c) before += row[c] >= value;
    for (int64_t c = column + 1; c < cols; ++c) before += row[c] > value;
    out[r] = 1 + before;
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
