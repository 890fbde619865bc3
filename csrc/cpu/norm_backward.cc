// Gradients of LayerNorm and RMSNorm. With n = (x - mean) / sqrt(variance + eps) and g = dy *
// weight: dx = (g - mean(g) - n * mean(g * n)) / sqrt(variance + eps), dweight = sum of dy * n,
// dbias = sum of dy (Ba et al. 2016). RMSNorm has no mean, neither of x nor of g.
//
// Mean and deviation are recomputed from x: a row is in L1 for three passes. Rows are processed in
// fours: their chains are independent, and they access the sums of a block once.
#include <cmath>

#include "core/training_kernels.h"
#include "cpu/row_blocks.h"
#include "cpu/statistics.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int kRowsTogether = 4;
constexpr int64_t kBlockColumns = 64 * kLanes;  // summed separately: wide rows keep precision

// Calls body(column, count) for the columns of each block, then end().
template <class Body, class End>
FUSEWIRE_INLINE void for_column_blocks(int64_t cols, Body&& body, End&& end) {
  for (int64_t block = 0; block < cols; block += kBlockColumns) {
    const int64_t width = cols - block < kBlockColumns ? cols - block : kBlockColumns;
    for_columns(width, [&](int64_t inside, int64_t count) { body(block + inside, count); });
    end();
  }
}

template <int kRows>
FUSEWIRE_INLINE void add_to(Vec (&totals)[kRows], Vec (&sums)[kRows]) {
  for (int r = 0; r < kRows; ++r) {
    totals[r] += sums[r];
    sums[r] = Vec{};
  }
}

struct Row {
  float mean, scale;  // n = (x - mean) * scale
};

template <int kRows, bool kCentred>
FUSEWIRE_INLINE void statistics(const NormBackwardArguments& a, const float* x,
                                Row (&rows)[kRows]) {
  const float n = static_cast<float>(a.cols);
  if constexpr (kCentred) {
    Moments m[kRows];
    moments<kRows>(
        a.cols, [&](int r, int64_t c) { return load(x + r * a.x_stride + c); },
        [&](int r, int64_t c, int64_t count) { return read(x + r * a.x_stride + c, count); }, m);
    for (int r = 0; r < kRows; ++r) {
      rows[r] = {m[r].mean, 1.0f / std::sqrt(m[r].squares / n + a.eps)};
    }
  } else {
    Vec squares[kRows] = {}, sum[kRows] = {};
    for_column_blocks(
        a.cols,
        [&](int64_t c, int64_t count) {
          for (int r = 0; r < kRows; ++r) {
            const Vec v = read(x + r * a.x_stride + c, count);
            sum[r] = multiply_add(v, v, sum[r]);
          }
        },
        [&] { add_to(squares, sum); });
    for (int r = 0; r < kRows; ++r) {
      rows[r] = {0.0f, 1.0f / std::sqrt(reduce_add(squares[r]) / n + a.eps)};
    }
  }
}

// Computes dx of kRows rows from `first` on. Their contributions to dweight and dbias are added to
// the sums of the block if it has `begun`, and overwrite them otherwise.
template <int kRows, bool kCentred>
void norm_backward_rows(const NormBackwardArguments& a, int64_t first, float* dweight, float* dbias,
                        bool begun) {
  const float* x = static_cast<const float*>(a.x) + first * a.x_stride;
  const float* dy = static_cast<const float*>(a.dy) + first * a.dy_stride;
  const float* weight = static_cast<const float*>(a.weight);
  Row rows[kRows];
  statistics<kRows, kCentred>(a, x, rows);
  Vec g_sum[kRows] = {}, gn_sum[kRows] = {}, g_block[kRows] = {}, gn_block[kRows] = {};
  for_column_blocks(
      a.cols,
      [&](int64_t c, int64_t count) {
        const Vec w = read(weight + c, count);
        Vec dw = begun ? read(dweight + c, count) : Vec{};
        Vec db = {};
        if (dbias && begun) db = read(dbias + c, count);
        for (int r = 0; r < kRows; ++r) {
          const Vec d = read(dy + r * a.dy_stride + c, count);
          const Vec n = (read(x + r * a.x_stride + c, count) - rows[r].mean) * rows[r].scale;
          const Vec g = d * w;
          dw += d * n;
          db += d;
          if constexpr (kCentred) g_block[r] += g;
          gn_block[r] += g * n;
        }
        write(dweight + c, dw, count);
        if (dbias) write(dbias + c, db, count);
      },
      [&] {
        if constexpr (kCentred) add_to(g_sum, g_block);
        add_to(gn_sum, gn_block);
      });
  for (int r = 0; r < kRows; ++r) {
    const float g_mean = kCentred ? reduce_add(g_sum[r]) / static_cast<float>(a.cols) : 0.0f;
    const float gn_mean = reduce_add(gn_sum[r]) / static_cast<float>(a.cols);
    float* dx = static_cast<float*>(a.dx) + (first + r) * a.dx_stride;
    const float* more =
        a.dresidual ? static_cast<const float*>(a.dresidual) + (first + r) * a.dresidual_stride
                    : nullptr;
    for_columns(a.cols, [&](int64_t c, int64_t count) {
      const Vec n = (read(x + r * a.x_stride + c, count) - rows[r].mean) * rows[r].scale;
      const Vec g = read(dy + r * a.dy_stride + c, count) * read(weight + c, count);
      Vec d = (g - g_mean - n * gn_mean) * rows[r].scale;
      if (more) d += read(more + c, count);
      write(dx + c, d, count);
    });
  }
}

template <bool kCentred>
void norm_backward_block(const NormBackwardArguments& a, int64_t first, int64_t last,
                         float* dweight, float* dbias, bool begun) {
  int64_t r = first;
  for (; r + kRowsTogether <= last; r += kRowsTogether, begun = true) {
    norm_backward_rows<kRowsTogether, kCentred>(a, r, dweight, dbias, begun);
  }
  for (; r < last; ++r, begun = true) {
    norm_backward_rows<1, kCentred>(a, r, dweight, dbias, begun);
  }
}

template <bool kCentred>
void norm_backward(const NormBackwardArguments& a) {
  sum_row_blocks(
      a.rows, a.dbias ? 2 * a.cols : a.cols,
      [&](float* sums, int64_t first, int64_t last) {
        norm_backward_block<kCentred>(a, first, last, sums, a.dbias ? sums + a.cols : nullptr,
                                      false);
      },
      [&](const float* total) {
        write_gradient(a.dweight, total, a.cols, a.accumulate);
        if (a.dbias) write_gradient(a.dbias, total + a.cols, a.cols, a.accumulate);
      });
}

}  // namespace

void dropout_add(void* out, int64_t out_stride, float* sums, const void* x, int64_t x_stride,
                 const void* residual, int64_t residual_stride, int64_t rows, int64_t cols,
                 const Dropout& dropout, bool accumulate, const Stream& stream);

void layer_norm_backward(const NormBackwardArguments& a, const Stream& stream) {
  norm_backward<true>(a);
  if (!a.dz) return;
  dropout_add(a.dz, a.dz_stride, a.sums, a.dx, a.dx_stride, nullptr, 0, a.rows, a.cols, a.dropout,
              a.accumulate, stream);
}

void rms_norm_backward(const NormBackwardArguments& a, const Stream&) {
  norm_backward<false>(a);
}

void rms_norm_heads_backward(void* dx, int64_t dx_stride, float* dweight, const void* x,
                             int64_t x_stride, const void* weight, int64_t tokens, int64_t heads,
                             int64_t head_dim, float eps, bool accumulate, const Stream&) {
  sum_row_blocks(
      tokens, head_dim,
      [&](float* sums, int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) {
          float* row = static_cast<float*>(dx) + t * dx_stride;
          NormBackwardArguments a = {};
          a.dx = row;
          a.dy = row;
          a.x = static_cast<const float*>(x) + t * x_stride;
          a.weight = weight;
          a.dx_stride = a.dy_stride = a.x_stride = a.cols = head_dim;
          a.eps = eps;
          norm_backward_block<false>(a, 0, heads, sums, nullptr, t > first);
        }
      },
      [&](const float* total) { write_gradient(dweight, total, head_dim, accumulate); });
}

}  // namespace fusewire::FUSEWIRE_TARGET
