// A block of kColumns queries of one kv head over its cache, for prompts, which are bound by
// arithmetic. Queries are along the lanes as in cpu/attention_tile.h, and the keys and values of a
// tile are first copied from their pages. cpu/paged_order.h defines the order of the sums.
#pragma once

#include "cpu/paged_cache.h"
#include "cpu/paged_order.h"

namespace fusewire::FUSEWIRE_TARGET {

// A chain and the sum of the chains before it stay in registers together.
constexpr int kScoreRows = (kRegisters - 3) / 4;

template <int kRows>
__attribute__((noinline)) void score_rows_by_lane(const float* keys, const float* query,
                                                  int64_t dim, float* scores) {
  Vec total[kRows][2] = {};
  for (int64_t lane = 0; lane < lesser(kLanes, dim); ++lane) {
    const Product product = {keys + lane,
                             dim,
                             kLanes,
                             query + lane * kColumns,
                             kLanes * kColumns,
                             (dim - lane + kLanes - 1) / kLanes};
    Vec chain[kRows][2] = {};
    multiply<kRows>(product, chain);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      total[r][0] += chain[r][0];
      total[r][1] += chain[r][1];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    store(scores + r * kColumns, total[r][0]);
    store(scores + r * kColumns + kLanes, total[r][1]);
  }
}

// scores [count][kColumns] = keys [count][dim] . query^T [dim][kColumns]
inline void score_by_lane(const float* keys, const float* query, int64_t count, int64_t dim,
                          float* scores) {
  for_row_blocks<kScoreRows>(count, [&](auto rows, int64_t from) {
    score_rows_by_lane<decltype(rows)::value>(keys + from * dim, query, dim,
                                              scores + from * kColumns);
  });
}

// Returns the sum over keys for kLanes queries at once, in the order of registers of keys and
// reduce_add.
FUSEWIRE_INLINE Vec sum_by_lane(const float* column, int64_t count) {
  Vec lanes[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    lanes[lane] = Vec{};
    for (int64_t j = lane; j < count; j += kLanes) lanes[lane] += load(column + j * kColumns);
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// The sums of one part: out^T [dim][kColumns] of values, and the maximum and sum of each query.
struct PartSums {
  float* out;
  Vec highest[2] = {broadcast(kMasked), broadcast(kMasked)};
  Vec total[2] = {};

  // Replaces the scores of a tile by their exponentials, and adds its values.
  void add(float* scores, const float* values, int64_t count, int64_t dim) {
    Vec correction[2];
    for (int half = 0; half < 2; ++half) {
      float* column = scores + half * kLanes;
      Vec top = highest[half];
      for (int64_t j = 0; j < count; ++j) top = max(top, load(column + j * kColumns));
      for (int64_t j = 0; j < count; ++j) {
        store(column + j * kColumns, exp2(load(column + j * kColumns) - top));
      }
      correction[half] = exp2(highest[half] - top);
      highest[half] = top;
      total[half] = corrected(total[half], correction[half], sum_by_lane(column, count));
    }
    add_values(values, dim, scores, count, correction, out, dim);
  }

  // Adds the sums of the next part.
  void join(const PartSums& next, int64_t dim) {
    for (int half = 0; half < 2; ++half) {
      const Join joined(highest[half], next.highest[half]);
      total[half] = joined(total[half], next.total[half]);
      for (int64_t d = 0; d < dim; ++d) {
        float* sum = out + d * kColumns + half * kLanes;
        store(sum, joined(load(sum), load(next.out + d * kColumns + half * kLanes)));
      }
    }
  }
};

}  // namespace fusewire::FUSEWIRE_TARGET
