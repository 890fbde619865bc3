// A few queries of one kv head over a part of its cache, for decoding, which is bound by reading
// keys and values. A key's row is read whole, in registers along head_dim, while later rows are
// prefetched. The order of the sums is that of cpu/paged_order.h.
#pragma once

#include "cpu/columns.h"
#include "cpu/paged_cache.h"
#include "cpu/paged_order.h"

namespace fusewire::FUSEWIRE_TARGET {

// The queries of a sequence's new tokens: for each token, the heads that share one kv head.
struct FewQueries {
  int64_t kv_head, group, rows;  // rows = tokens * group
  const float* query;            // [rows][padded_dim], scaled
  int64_t padded_dim;            // head_dim in whole registers
};

// Returns the row stride of partial results [rows][padded_dim + 2]: the sum of values, then the
// maximum and the sum of exponentials.
inline int64_t partial_stride(int64_t padded_dim) {
  return padded_dim + 2;
}

// Returns kLanes scores: q . k of the keys at offset[0 .. kLanes). With kFetch, prefetches the
// values of these keys and the keys kPagedTile further on into L2: pages are scattered, so no
// hardware prefetcher follows.
template <bool kFetch>
FUSEWIRE_INLINE Vec dot_keys(const float* q, const float* keys, const float* values,
                             const int64_t* offset, int64_t dim) {
  constexpr int64_t kLine = 64 / sizeof(float);
  Vec sum[kLanes] = {};
  const auto fetch = [&](int r, int64_t d) {
    if (!kFetch || d % kLine != 0) return;
    __builtin_prefetch(values + offset[r] + d, 0, 2);
    __builtin_prefetch(keys + offset[r + kPagedTile] + d, 0, 2);
  };
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    const Vec qd = load(q + d);
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      fetch(r, d);
      sum[r] += qd * load(keys + offset[r] + d);
    }
  }
  if (d < dim) {
    const Vec qd = load(q + d);
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) sum[r] += qd * load_first(keys + offset[r] + d, dim - d);
  }
  transpose(sum);
  Vec total = sum[0];
#pragma GCC unroll 16
  for (int r = 1; r < kLanes; ++r) total += sum[r];
  return total;
}

// out [kRows][kVecs registers] = out * correction + p . v, over `keys` keys. With kTail only the
// first `tail` elements of the register are in a row of v.
template <int kRows, int kVecs, bool kTail = false>
FUSEWIRE_INLINE void weigh_values(const float* v, const int64_t* offset, const float* p,
                                  int64_t keys, const float* correction, float* out, int64_t stride,
                                  int64_t tail = 0) {
  Vec sum[kRows][kVecs] = {};
  for (int64_t j = 0; j < keys; ++j) {
    const float* row = v + offset[j];
    Vec value[kVecs];
#pragma GCC unroll 4
    for (int i = 0; i < kVecs; ++i) {
      value[i] = kTail ? load_first(row, tail) : load(row + i * kLanes);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = broadcast(p[r * kPagedTile + j]);
#pragma GCC unroll 4
      for (int i = 0; i < kVecs; ++i) sum[r][i] += weight * value[i];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVecs; ++i) {
      float* to = out + r * stride + i * kLanes;
      store(to, load(to) * correction[r] + sum[r][i]);
    }
  }
}

template <int kRows, int kVecs>
void weigh_rows(const float* v, const int64_t* offset, const float* p, int64_t keys,
                const float* correction, float* out, int64_t stride, int64_t dim) {
  int64_t d = 0;
  for (; d + kVecs * kLanes <= dim; d += kVecs * kLanes) {
    weigh_values<kRows, kVecs>(v + d, offset, p, keys, correction, out + d, stride);
  }
  for (; d + kLanes <= dim; d += kLanes) {
    weigh_values<kRows, 1>(v + d, offset, p, keys, correction, out + d, stride);
  }
  if (d < dim) {
    weigh_values<kRows, 1, true>(v + d, offset, p, keys, correction, out + d, stride, dim - d);
  }
}

// Computes one part of the context, positions [first, last) within one split; a register of keys
// begins at `first`.
__attribute__((noinline)) inline void attend_part(const AttentionArguments& a,
                                                  const CachedSequence& cached, const FewQueries& q,
                                                  int64_t first, int64_t last, float* partial) {
  const int64_t dim = a.head_dim, stride = partial_stride(q.padded_dim), keys = last - first;
  const float* k = static_cast<const float*>(a.key_cache);
  const float* v = static_cast<const float*>(a.value_cache);
  int64_t offset[kSplitKeys + kPagedTile + kLanes];  // the last one is repeated
  for (int64_t j = 0; j < keys; ++j) offset[j] = cached.row(q.kv_head, first + j);
  for (int64_t j = keys; j < keys + kPagedTile + kLanes; ++j) offset[j] = offset[keys - 1];

  float* scores = static_cast<float*>(
      __builtin_alloca_with_align((kPagedTile + 1) * q.rows * sizeof(float), 512));
  float* correction = scores + kPagedTile * q.rows;
  for (int64_t row = 0; row < q.rows; ++row) {
    float* out = partial + row * stride;
    for (int64_t d = 0; d < q.padded_dim; ++d) out[d] = 0.0f;
    out[q.padded_dim] = kMasked;
    out[q.padded_dim + 1] = 0.0f;
  }
  int64_t next = 0;
  for (int64_t tile = 0; tile < keys; tile = next) {
    next = piece_end(first + tile, kPagedTile, last) - first;
    const int64_t present = next - tile;
    for (int64_t j = 0; j < present; j += kLanes) {
      const int64_t* here = offset + tile + j;
      for (int64_t row = 0; row < q.rows; ++row) {
        const int64_t position = cached.context - cached.added + row / q.group;
        const Vec distance = lane_numbers() + static_cast<float>(first + tile + j - position);
        const int64_t head = q.kv_head * q.group + row % q.group;
        const float* query = q.query + row * q.padded_dim;
        Vec s = row == 0 ? dot_keys<true>(query, k, v, here, dim)
                         : dot_keys<false>(query, k, v, here, dim);
        s = adjusted(a, s, distance, [&](int) { return head; });
        if (j + kLanes > present) {
          s = lane_numbers() < static_cast<float>(present - j) ? s : broadcast(kMasked);
        }
        store(scores + row * kPagedTile + j, s);
      }
    }
    for (int64_t row = 0; row < q.rows; ++row) {
      float* highest = partial + row * stride + q.padded_dim;
      float* p = scores + row * kPagedTile;
      Vec top = broadcast(*highest);
      for (int64_t j = 0; j < present; j += kLanes) top = max(top, load(p + j));
      const Vec now = broadcast(reduce_max(top));
      Vec sum = {};
      for (int64_t j = 0; j < present; j += kLanes) {
        const Vec e = exp2(load(p + j) - now);
        store(p + j, e);
        sum += e;
      }
      const Vec factor = exp2(*highest - now);
      correction[row] = factor[0];
      highest[0] = now[0];
      highest[1] = corrected(broadcast(highest[1]), factor, broadcast(reduce_add(sum)))[0];
    }
    int64_t row = 0;
    for (; row + 4 <= q.rows; row += 4) {
      weigh_rows<4, 2>(v, offset + tile, scores + row * kPagedTile, present, correction + row,
                       partial + row * stride, stride, dim);
    }
    for (; row < q.rows; ++row) {
      weigh_rows<1, 4>(v, offset + tile, scores + row * kPagedTile, present, correction + row,
                       partial + row * stride, stride, dim);
    }
  }
}

// Writes out [dim] of one query from the partial results of its parts, which are `step` floats
// apart, and its log_sum_exp unless that is null.
inline void join_parts(const float* parts, int64_t count, int64_t step, int64_t padded_dim,
                       int64_t dim, float* out, float* log_sum_exp) {
  for_columns(dim, [&](int64_t d, int64_t columns) {
    Vec sum = {}, total = {}, highest = broadcast(kMasked);
    for (int64_t i = 0; i < count; ++i) {
      const float* part = parts + i * step;
      const Join joined(highest, broadcast(part[padded_dim]));
      sum = joined(sum, load(part + d));
      total = joined(total, broadcast(part[padded_dim + 1]));
    }
    write(out + d, sum * (1.0f / total), columns);
    if (d == 0 && log_sum_exp) *log_sum_exp = log_sum_exp_of(highest[0], total[0]);
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
