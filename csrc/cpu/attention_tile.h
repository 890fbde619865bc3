// Attention of a block of kColumns queries to a tile of keys.
//
// All matrices are transposed, with queries along the lanes: scores^T = k . q^T and out^T =
// v^T . p^T are then products of the micro-kernel, and the softmax runs down the rows without
// reductions across lanes. Keys are processed in tiles with the running maximum and sum of Milakov
// & Gimelshein 2018 ("Online normalizer calculation for softmax"), so scores never exceed a tile
// and memory does not grow with length.
#pragma once

#include "cpu/micro_kernel.h"
#include "cpu/transpose.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t kKeyTile = 9 * 14;   // a multiple of the micro-kernel's 14 and 6 rows
constexpr float kLog2e = 1.44269504f;  // scores are in units of log2, so that exp is 2^x
constexpr float kMasked = -1e30f;      // finite: its exp is 0, its differences are not NaN

// The error of a score is a relative error of its exponential, so wide heads are summed in parts.
constexpr int64_t kSummedDims = 128;

template <int kRows>
__attribute__((noinline)) void score_rows(const Product& product, bool add, float* scores) {
  Vec sum[kRows][2] = {};
  multiply<kRows>(product, sum);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* row = scores + r * kColumns;
    store(row, add ? load(row) + sum[r][0] : sum[r][0]);
    store(row + kLanes, add ? load(row + kLanes) + sum[r][1] : sum[r][1]);
  }
}

// Computes rows of out^T: their previous values times `correction`, plus v^T p^T of this tile.
template <int kRows>
__attribute__((noinline)) void value_rows(const Product& product, const Vec (&correction)[2],
                                          float* out) {
  Vec sum[kRows][2] = {};  // of this tile alone, so that long sequences keep their precision
  multiply<kRows>(product, sum);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* row = out + r * kColumns;
    store(row, load(row) * correction[0] + sum[r][0]);
    store(row + kLanes, load(row + kLanes) * correction[1] + sum[r][1]);
  }
}

// Prefetches the rows of a head: they are a whole matrix row apart, which no hardware prefetcher
// follows.
inline void prefetch_head(const float* rows, int64_t stride, int64_t count, int64_t dim) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t d = 0; d < dim; d += 16) __builtin_prefetch(rows + r * stride + d, 0, 2);
  }
}

// Writes query^T [dim][kColumns] * scale from the rows of `queries` queries, at most kColumns;
// zeros beyond.
inline void transpose_queries(float* to, const float* q, int64_t q_stride, int64_t queries,
                              int64_t dim, float scale) {
  for (int64_t i = 0; i < kColumns; i += kLanes) {
    for (int64_t d = 0; d < dim; d += kLanes) {
      transpose_block(to + d * kColumns + i, kColumns, q + i * q_stride + d, q_stride, queries - i,
                      dim - d, [&](Vec v) { return v * scale; });
    }
  }
}

// scores [keys][kColumns] = keys . query^T, with query^T [dim][kColumns].
inline void score(const float* k, int64_t k_stride, const float* query, int64_t keys, int64_t dim,
                  float* scores) {
  const int64_t parts = (dim + kSummedDims - 1) / kSummedDims;
  const int64_t part = (dim + parts - 1) / parts;
  for (int64_t begin = 0; begin < dim; begin += part) {
    const int64_t dims = dim - begin < part ? dim - begin : part;
    for_row_blocks(keys, [&](auto rows, int64_t from) {
      const float* of = k + from * k_stride + begin;
      const Product product = {of, k_stride, 1, query + begin * kColumns, kColumns, dims};
      score_rows<decltype(rows)::value>(product, begin > 0, scores + from * kColumns);
    });
  }
}

// out^T [dim][kColumns] = out^T * correction + values^T . scores
inline void add_values(const float* v, int64_t v_stride, const float* scores, int64_t keys,
                       const Vec (&correction)[2], float* out, int64_t dim) {
  for_row_blocks(dim, [&](auto rows, int64_t from) {
    const Product product = {v + from, 1, v_stride, scores, kColumns, keys};
    value_rows<decltype(rows)::value>(product, correction, out + from * kColumns);
  });
}

// The running maximum and sum of each query.
struct OnlineSoftmax {
  Vec highest[2] = {broadcast(kMasked), broadcast(kMasked)};
  Vec total[2] = {};

  // Replaces the scores of a tile by their exponentials. Earlier sums are to be multiplied by
  // `correction`.
  FUSEWIRE_INLINE void step(float* scores, int64_t keys, Vec (&correction)[2]) {
    for (int half = 0; half < 2; ++half) {
      float* column = scores + half * kLanes;
      Vec top = highest[half];
      for (int64_t j = 0; j < keys; ++j) top = max(top, load(column + j * kColumns));
      correction[half] = exp2(highest[half] - top);
      highest[half] = top;
      Vec sum = {};
      for (int64_t j = 0; j < keys; ++j) {
        const Vec e = exp2(load(column + j * kColumns) - top);
        store(column + j * kColumns, e);
        sum += e;
      }
      total[half] = total[half] * correction[half] + sum;
    }
  }
};

// out[i][d] = from[d][i] * inverse[i], or += with kAdd, for i < queries, d < dim, at most kLanes
// each.
template <bool kAdd = false>
inline void write_block(float* out, int64_t out_stride, const float* from, Vec inverse,
                        int64_t queries, int64_t dim) {
  Vec block[kLanes];
#pragma GCC unroll 16
  for (int d = 0; d < kLanes; ++d) {
    block[d] = d < dim ? load(from + d * kColumns) * inverse : Vec{};
  }
  transpose(block);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i >= queries) continue;
    float* row = out + i * out_stride;
    if constexpr (kAdd) block[i] += dim >= kLanes ? load(row) : load_first(row, dim);
    dim >= kLanes ? store(row, block[i]) : store_first(row, block[i], dim);
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
