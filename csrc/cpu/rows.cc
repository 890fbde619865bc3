// Operations on whole rows after the layers: pooling, softmax, L2 norm, top-k, row selection.
#include <cmath>

#include "core/error.h"
#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

// Returns fold(accumulator, vector) over a row, with `fill` in the lanes beyond its end.
template <class Fold>
FUSEWIRE_INLINE Vec fold_row(const float* row, int64_t cols, Vec start, float fill, Fold&& fold) {
  Vec a = start;
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) a = fold(a, load(row + c));
  if (c < cols) a = fold(a, load_first(row + c, cols - c, fill));
  return a;
}

// Returns the sum of map(vector) over a row. Blocks are summed separately: one long chain over a
// vocabulary would lose digits.
template <class Map>
FUSEWIRE_INLINE float sum_row(const float* row, int64_t cols, Map&& map, float fill = 0.0f) {
  constexpr int64_t kBlock = 64 * kLanes;
  Vec total = {};
  for (int64_t c = 0; c < cols; c += kBlock) {
    const int64_t width = cols - c < kBlock ? cols - c : kBlock;
    total += fold_row(row + c, width, Vec{}, fill, [&](Vec a, Vec b) { return a + map(b); });
  }
  return reduce_add(total);
}

template <class Map>
FUSEWIRE_INLINE void map_row(float* out, const float* row, int64_t cols, Map&& map) {
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) store(out + c, map(load(row + c)));
  if (c < cols) store_first(out + c, map(load_first(row + c, cols - c)), cols - c);
}

template <class Body>
void for_each_row(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
                  Body&& body) {
  parallel_for(rows, 1, [&](int64_t r, int64_t, int) {
    body(static_cast<float*>(out) + r * out_stride, static_cast<const float*>(x) + r * x_stride);
  });
}

}  // namespace

// An odd number of cache lines, so that adjacent rows do not fall into the same set of the L1
// cache.
int64_t row_stride(int64_t cols) {
  constexpr int64_t kLine = 64 / sizeof(float);
  return ((cols + kLine - 1) / kLine | 1) * kLine;
}

void pool(void* out, int64_t out_stride, const void* x, int64_t x_stride,
          const SequenceBatch& batch, int64_t hidden, Pooling pooling, const Stream&) {
  parallel_for(batch.sequences(), 1, [&](int64_t sequence, int64_t, int) {
    const int64_t first = batch.begin()[sequence], last = batch.begin()[sequence + 1];
    const float* from = static_cast<const float*>(x) + first * x_stride;
    float* to = static_cast<float*>(out) + sequence * out_stride;
    const auto copy = [](Vec v) { return v; };
    if (pooling == Pooling::kLast) from += (last - 1 - first) * x_stride;
    map_row(to, from, hidden, copy);
    if (pooling == Pooling::kCls || pooling == Pooling::kLast) return;
    for (int64_t t = first + 1; t < last; ++t) {
      from += x_stride;
      for (int64_t c = 0; c < hidden; c += kLanes) {
        const int64_t n = hidden - c < kLanes ? hidden - c : int64_t{kLanes};
        const Vec a = n == kLanes ? load(to + c) : load_first(to + c, n);
        const Vec b = n == kLanes ? load(from + c) : load_first(from + c, n);
        const Vec y = pooling == Pooling::kMean ? a + b : max(a, b);
        n == kLanes ? store(to + c, y) : store_first(to + c, y, n);
      }
    }
    const float scale = 1.0f / static_cast<float>(last - first);
    if (pooling == Pooling::kMean) map_row(to, to, hidden, [&](Vec v) { return v * scale; });
  });
}

void softmax(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
             int64_t cols, const Stream&) {
  for_each_row(out, out_stride, x, x_stride, rows, [&](float* to, const float* from) {
    const float lowest = -INFINITY;
    const float top = reduce_max(
        fold_row(from, cols, broadcast(lowest), lowest, [](Vec a, Vec b) { return max(a, b); }));
    map_row(to, from, cols, [&](Vec v) { return exp(v - top); });
    const float sum = sum_row(to, cols, [](Vec v) { return v; });
    map_row(to, to, cols, [&](Vec v) { return v / sum; });
  });
}

void log_softmax(float* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
                 int64_t cols, const Stream&) {
  for_each_row(out, out_stride, x, x_stride, rows, [&](float* to, const float* from) {
    const float lowest = -INFINITY;
    const float top = reduce_max(
        fold_row(from, cols, broadcast(lowest), lowest, [](Vec a, Vec b) { return max(a, b); }));
    const float sum = sum_row(from, cols, [&](Vec v) { return exp(v - top); }, lowest);
    const float log_sum = std::log(sum);
    map_row(to, from, cols, [&](Vec v) { return v - top - log_sum; });
  });
}

void l2_normalize(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
                  int64_t cols, const Stream&) {
  for_each_row(out, out_stride, x, x_stride, rows, [&](float* to, const float* from) {
    const float norm = std::sqrt(sum_row(from, cols, [](Vec v) { return v * v; }));
    const float scale = 1.0f / (norm > 1e-12f ? norm : 1e-12f);
    map_row(to, from, cols, [&](Vec v) { return v * scale; });
  });
}

// Keeps the k best so far in order; most elements are rejected by one comparison with the last of
// them.
void top_k(void* values, int64_t* indices, const void* x, int64_t x_stride, int64_t rows,
           int64_t cols, int64_t k, const Stream&) {
  for_each_row(values, k, x, x_stride, rows, [&](float* best, const float* from) {
    int64_t* at = indices + (best - static_cast<float*>(values));
    for (int64_t c = 0; c < cols; ++c) {
      const float value = from[c];
      if (c >= k && !(value > best[k - 1])) continue;
      int64_t place = c < k ? c : k - 1;
      for (; place > 0 && value > best[place - 1]; --place) {
        best[place] = best[place - 1];
        at[place] = at[place - 1];
      }
      best[place] = value;
      at[place] = c;
    }
  });
}

void gather_rows(void* out, int64_t out_stride, const void* x, int64_t x_stride,
                 const int64_t* rows, int64_t count, int64_t x_rows, int64_t cols, const Stream&) {
  for (int64_t r = 0; r < count; ++r) {
    if (rows[r] < 0 || rows[r] >= x_rows) {
      fail("gather_rows: rows[", r, "]: got ", rows[r], ", wanted 0 to ", x_rows - 1);
    }
    map_row(static_cast<float*>(out) + r * out_stride,
            static_cast<const float*>(x) + rows[r] * x_stride, cols, [](Vec v) { return v; });
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
