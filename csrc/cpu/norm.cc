// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), which may add a residual to its
// result. Each row is read from memory once; the second pass finds it in L1.
#include <cmath>

#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/columns.h"
#include "cpu/statistics.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int kRowsTogether = 4;

int64_t grain_rows(int64_t cols) {
  const int64_t rows = rows_of_a_task(cols) / kRowsTogether * kRowsTogether;
  return rows > kRowsTogether ? rows : int64_t{kRowsTogether};
}

template <int kRows>
void layer_norm_rows(const NormArguments& a, int64_t first) {
  const float* x = static_cast<const float*>(a.x) + first * a.x_stride;
  float* out = static_cast<float*>(a.out) + first * a.out_stride;
  Moments m[kRows];
  const auto tail = [&](int r, int64_t c, int64_t n) { return read(x + r * a.x_stride + c, n); };
  moments<kRows>(a.cols, [&](int r, int64_t c) { return load(x + r * a.x_stride + c); }, tail, m);
  for (int r = 0; r < kRows; ++r) {
    scale_row(out + r * a.out_stride, x + r * a.x_stride, m[r], static_cast<const float*>(a.weight),
              static_cast<const float*>(a.bias), a.cols, a.eps);
  }
}

template <int kRows, bool kResidual>
void rms_norm_rows(const NormArguments& a, int64_t first) {
  constexpr int64_t kBlockColumns = 64 * kLanes;  // summed separately: wide rows keep precision
  const float* x = static_cast<const float*>(a.x) + first * a.x_stride;
  const float* weight = static_cast<const float*>(a.weight);
  float* out = static_cast<float*>(a.out) + first * a.out_stride;
  Vec squares[kRows] = {};
  for (int64_t block = 0; block < a.cols; block += kBlockColumns) {
    const int64_t width = a.cols - block < kBlockColumns ? a.cols - block : kBlockColumns;
    Vec sum[kRows] = {};
    for_columns(width, [&](int64_t inside, int64_t count) {
      const int64_t c = block + inside;
      for (int r = 0; r < kRows; ++r) {
        const Vec v = read(x + r * a.x_stride + c, count);
        sum[r] = multiply_add(v, v, sum[r]);
      }
    });
    for (int r = 0; r < kRows; ++r) squares[r] += sum[r];
  }
  for (int r = 0; r < kRows; ++r) {
    const float mean_square = reduce_add(squares[r]) / static_cast<float>(a.cols);
    const float scale = 1.0f / std::sqrt(mean_square + a.eps);
    for_columns(a.cols, [&](int64_t c, int64_t count) {
      Vec y = read(x + r * a.x_stride + c, count) * scale * read(weight + c, count);
      if constexpr (kResidual) {
        y += read(static_cast<const float*>(a.residual) + (first + r) * a.residual_stride + c,
                  count);
      }
      write(out + r * a.out_stride + c, y, count);
    });
  }
}

// Processes rows in fours, then one by one: the arithmetic of a row is the same either way.
template <class Four, class One>
void for_rows(int64_t rows, int64_t cols, Four&& four, One&& one) {
  parallel_for(rows, grain_rows(cols), [&](int64_t begin, int64_t end, int) {
    int64_t r = begin;
    for (; r + kRowsTogether <= end; r += kRowsTogether) four(r);
    for (; r < end; ++r) one(r);
  });
}

}  // namespace

void layer_norm(const NormArguments& a, const Stream&) {
  for_rows(
      a.rows, a.cols, [&](int64_t r) { layer_norm_rows<kRowsTogether>(a, r); },
      [&](int64_t r) { layer_norm_rows<1>(a, r); });
}

void rms_norm(const NormArguments& a, const Stream&) {
  for_rows(
      a.rows, a.cols, [&](int64_t r) { rms_norm_rows<kRowsTogether, false>(a, r); },
      [&](int64_t r) { rms_norm_rows<1, false>(a, r); });
}

void rms_norm_add(const NormArguments& a, const Stream&) {
  for_rows(
      a.rows, a.cols, [&](int64_t r) { rms_norm_rows<kRowsTogether, true>(a, r); },
      [&](int64_t r) { rms_norm_rows<1, true>(a, r); });
}

void rms_norm_heads(void* x, int64_t x_stride, const void* weight, int64_t tokens, int64_t heads,
                    int64_t head_dim, float eps, const Stream&) {
  parallel_for(tokens, grain_rows(heads * head_dim), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = static_cast<float*>(x) + t * x_stride;
      const NormArguments a = {row,      row,      nullptr, weight,   nullptr, head_dim,
                               head_dim, head_dim, heads,   head_dim, eps};
      int64_t head = 0;
      for (; head + kRowsTogether <= heads; head += kRowsTogether) {
        rms_norm_rows<kRowsTogether, false>(a, head);
      }
      for (; head < heads; ++head) rms_norm_rows<1, false>(a, head);
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
