// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), with the residual and the
// embedding sum fused in front. Row r is read once; the second pass finds it in L1.
#include <cmath>

#include "core/error.h"
#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/statistics.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int kRowsTogether = 4;
constexpr int64_t kGrainElements = 1 << 14;  // of a task: enough to be worth waking a thread

int64_t grain_rows(int64_t cols) {
  const int64_t rows = kGrainElements / cols / kRowsTogether * kRowsTogether;
  return rows > kRowsTogether ? rows : int64_t{kRowsTogether};
}

// Walks a row: body(column, count) with count == kLanes except for the last columns.
template <class Body>
FUSEWIRE_INLINE void for_columns(int64_t cols, Body&& body) {
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) body(c, int64_t{kLanes});
  if (c < cols) body(c, cols - c);
}
FUSEWIRE_INLINE Vec read(const float* p, int64_t count) {
  return count == kLanes ? load(p) : load_first(p, count);
}
FUSEWIRE_INLINE void write(float* p, Vec v, int64_t count) {
  count == kLanes ? store(p, v) : store_first(p, v, count);
}

FUSEWIRE_INLINE void scale_row(float* out, const float* from, Moments m, const float* weight,
                               const float* bias, int64_t cols, float eps) {
  const float scale = 1.0f / std::sqrt(m.squares / static_cast<float>(cols) + eps);
  for_columns(cols, [&](int64_t c, int64_t count) {
    Vec y = (read(from + c, count) - m.mean) * scale * read(weight + c, count);
    if (bias) y += read(bias + c, count);
    write(out + c, y, count);
  });
}

template <int kRows>
void layer_norm_rows(const NormArguments& a, int64_t first) {
  const float* x = static_cast<const float*>(a.x) + first * a.x_stride;
  const float* residual =
      a.residual ? static_cast<const float*>(a.residual) + first * a.residual_stride : nullptr;
  float* out = static_cast<float*>(a.out) + first * a.out_stride;
  Moments m[kRows];
  if (residual) {  // the sum is kept in out, which the second pass reads back from L1
    const auto sum = [&](int r, int64_t c, int64_t count) {
      const Vec v =
          read(x + r * a.x_stride + c, count) + read(residual + r * a.residual_stride + c, count);
      write(out + r * a.out_stride + c, v, count);
      return v;
    };
    moments<kRows>(a.cols, [&](int r, int64_t c) { return sum(r, c, kLanes); }, sum, m);
  } else {
    const auto tail = [&](int r, int64_t c, int64_t n) { return read(x + r * a.x_stride + c, n); };
    moments<kRows>(a.cols, [&](int r, int64_t c) { return load(x + r * a.x_stride + c); }, tail, m);
  }
  for (int r = 0; r < kRows; ++r) {
    float* to = out + r * a.out_stride;
    scale_row(to, residual ? to : x + r * a.x_stride, m[r], static_cast<const float*>(a.weight),
              static_cast<const float*>(a.bias), a.cols, a.eps);
  }
}

template <int kRows>
void rms_norm_rows(const NormArguments& a, int64_t first) {
  constexpr int64_t kBlockColumns = 64 * kLanes;  // summed on their own: wide rows keep precision
  const float* x = static_cast<const float*>(a.x) + first * a.x_stride;
  const float* residual =
      a.residual ? static_cast<const float*>(a.residual) + first * a.residual_stride : nullptr;
  const float* weight = static_cast<const float*>(a.weight);
  float* out = static_cast<float*>(a.out) + first * a.out_stride;
  Vec squares[kRows] = {};
  for (int64_t block = 0; block < a.cols; block += kBlockColumns) {
    const int64_t width = a.cols - block < kBlockColumns ? a.cols - block : kBlockColumns;
    Vec sum[kRows] = {};
    for_columns(width, [&](int64_t inside, int64_t count) {
      const int64_t c = block + inside;
      for (int r = 0; r < kRows; ++r) {
        Vec v = read(x + r * a.x_stride + c, count);
        if (residual) {
          v += read(residual + r * a.residual_stride + c, count);
          write(out + r * a.out_stride + c, v, count);
        }
        sum[r] += v * v;
      }
    });
    for (int r = 0; r < kRows; ++r) squares[r] += sum[r];
  }
  for (int r = 0; r < kRows; ++r) {
    float* to = out + r * a.out_stride;
    const float* from = residual ? to : x + r * a.x_stride;
    const float mean_square = reduce_add(squares[r]) / static_cast<float>(a.cols);
    const float scale = 1.0f / std::sqrt(mean_square + a.eps);
    for_columns(a.cols, [&](int64_t c, int64_t count) {
      write(to + c, read(from + c, count) * scale * read(weight + c, count), count);
    });
  }
}

// Rows in fours, then one by one: a row's own arithmetic is the same either way.
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
      a.rows, a.cols, [&](int64_t r) { rms_norm_rows<kRowsTogether>(a, r); },
      [&](int64_t r) { rms_norm_rows<1>(a, r); });
}

void embed_layer_norm(const EmbedArguments& a, const Stream&) {
  const auto row_of = [&](const void* table, int64_t index, int64_t limit, const char* what) {
    if (index < 0 || index >= limit) {
      fail("embed_layer_norm: ", what, ": got ", index, ", wanted 0 to ", limit - 1);
    }
    return static_cast<const float*>(table) + index * a.hidden;
  };
  parallel_for(a.tokens, grain_rows(a.hidden), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* word = row_of(a.word, a.ids[t], a.vocabulary, "id");
      const float* position =
          a.position ? row_of(a.position, a.positions[t], a.max_positions, "position") : nullptr;
      const float* type = a.token_type
                              ? row_of(a.token_type, a.types[t], a.type_vocabulary, "token type")
                              : nullptr;
      float* out = static_cast<float*>(a.out) + t * a.out_stride;
      const auto sum = [&](int, int64_t c, int64_t count) {
        Vec v = read(word + c, count);
        if (type) v += read(type + c, count);
        if (position) v += read(position + c, count);
        write(out + c, v, count);
        return v;
      };
      Moments m[1];
      moments<1>(a.hidden, [&](int r, int64_t c) { return sum(r, c, kLanes); }, sum, m);
      scale_row(out, out, m[0], static_cast<const float*>(a.weight),
                static_cast<const float*>(a.bias), a.hidden, a.eps);
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
