// Mean and variance of rows in one pass over memory, several rows reduced together.
//
// A block of a row is held in registers; its lane-wise mean and squared deviations are computed
// from there and merged into the running ones (Chan, Golub & LeVeque 1983), so a large mean costs
// no precision, unlike E[x^2] - E[x]^2. Rows are independent chains: interleaving them hides the
// latency of each (batch reduction, TurboTransformers, Fang et al. 2021, section 4.1).
#pragma once

#include <cmath>

#include "cpu/columns.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int kBlock = 4;  // registers of a row per step

template <int n>
struct Registers {
  static constexpr int value = n;
};

struct Moments {
  float mean;
  float squares;  // sum of squared deviations from the mean
};

// Computes the moments of kRows rows of `cols` columns. read(row, column) returns the Vec of the
// columns from `column` on, read_tail(row, column, count) that of the last `count` < kLanes
// columns.
template <int kRows, class Read, class ReadTail>
FUSEWIRE_INLINE void moments(int64_t cols, Read&& read, ReadTail&& read_tail,
                             Moments (&result)[kRows]) {
  Vec mean[kRows] = {}, squares[kRows] = {};
  const int64_t whole = cols / kLanes;  // registers
  int64_t done = 0;
  const auto merge = [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    const float weight = static_cast<float>(kSize) / static_cast<float>(done + kSize);
    const float cross = static_cast<float>(done) * weight;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      Vec v[kSize], sum = {}, deviations = {};
#pragma GCC unroll 4
      for (int i = 0; i < kSize; ++i) {
        v[i] = read(r, (done + i) * kLanes);
        sum += v[i];
      }
      const Vec block_mean = sum * (1.0f / kSize);
#pragma GCC unroll 4
      for (int i = 0; i < kSize; ++i) deviations += (v[i] - block_mean) * (v[i] - block_mean);
      const Vec delta = block_mean - mean[r];
      mean[r] += delta * weight;
      squares[r] += deviations + delta * delta * cross;
    }
    done += kSize;
  };
  while (done + kBlock <= whole) merge(Registers<kBlock>{});
  while (done < whole) merge(Registers<1>{});

  const int64_t tail = cols - whole * kLanes;
  for (int r = 0; r < kRows; ++r) {
    Moments m = {0.0f, 0.0f};
    if (whole > 0) {
      m.mean = reduce_add(mean[r]) / kLanes;
      const Vec delta = mean[r] - m.mean;
      m.squares = reduce_add(squares[r] + delta * delta * static_cast<float>(whole));
    }
    if (tail > 0) {
      float last[kLanes];
      store(last, read_tail(r, whole * kLanes, tail));
      for (int64_t i = 0; i < tail; ++i) {
        const float delta = last[i] - m.mean;
        m.mean += delta / static_cast<float>(whole * kLanes + i + 1);
        m.squares += delta * (last[i] - m.mean);
      }
    }
    result[r] = m;
  }
}

// out = (from - mean) / sqrt(variance + eps) * weight [+ bias]
FUSEWIRE_INLINE void scale_row(float* out, const float* from, Moments m, const float* weight,
                               const float* bias, int64_t cols, float eps) {
  const float scale = 1.0f / std::sqrt(m.squares / static_cast<float>(cols) + eps);
  for_columns(cols, [&](int64_t c, int64_t count) {
    Vec y = (read(from + c, count) - m.mean) * scale * read(weight + c, count);
    if (bias) y += read(bias + c, count);
    write(out + c, y, count);
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
