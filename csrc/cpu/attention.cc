// Packed attention: softmax(q k^T * scale + bias) v for each sequence and head of a ragged batch.
//
// A task is up to kTaskQueries queries of one head, in blocks of kColumns. Everything is kept
// transposed, queries along the lanes: scores^T = k . q^T and out^T = v^T . p^T are then the
// micro-kernel's product with k and v read in place, and the softmax runs down the rows with no
// reduction across lanes. Keys are walked in tiles with the running maximum and sum of Milakov &
// Gimelshein 2018 ("Online normalizer calculation for softmax"), so scores never exceed a tile and
// memory does not grow with length. Tiles start at the sequence's own beginning: the answer does
// not depend on the batch.
#include <cmath>

#include "core/error.h"
#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/micro_kernel.h"
#include "cpu/transpose.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kKeyTile = 9 * 14;            // whole micro-kernel blocks for 14 and for 6 rows
constexpr int64_t kTaskQueries = 4 * kColumns;  // of one task: k and v of the head stay in L2
constexpr int64_t kPrefetchedKeys = 512;        // at the start of a task
constexpr float kLog2e = 1.44269504f;           // scores are kept in units of log2, exp is then 2^x
constexpr float kMasked = -1e30f;  // finite: exp of it is 0, differences of it are not NaN

// Scratch of one task, on its stack: head_dim x kColumns twice and one tile of scores.
struct Scratch {
  float* query;   // q^T [head_dim][kColumns], scaled
  float* scores;  // scores^T, then exp of them [kKeyTile][kColumns]
  float* out;     // out^T [head_dim][kColumns]
  float* bias;    // position bias of this block, reversed: see attend
};

template <int kRows>
__attribute__((noinline)) void score_rows(const Product& product, float* scores) {
  Vec sum[kRows][2] = {};
  multiply<kRows>(product, sum);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    store(scores + r * kColumns, sum[r][0]);
    store(scores + r * kColumns + kLanes, sum[r][1]);
  }
}

// out^T rows: what was there times `correction`, plus v^T p^T of this tile.
template <int kRows>
__attribute__((noinline)) void value_rows(const Product& product, const Vec (&correction)[2],
                                          float* out) {
  Vec sum[kRows][2] = {};  // of this tile alone: long sequences keep their precision
  multiply<kRows>(product, sum);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* row = out + r * kColumns;
    store(row, load(row) * correction[0] + sum[r][0]);
    store(row + kLanes, load(row + kLanes) * correction[1] + sum[r][1]);
  }
}

// Hides the scores of keys that a query may not see, |query - key| > window.
void mask_window(float* scores, int64_t first_query, int64_t first_key, int64_t keys,
                 int64_t window) {
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t i = 0; i < kColumns; ++i) {
      const int64_t distance = first_query + i - (first_key + j);
      if (distance > window || -distance > window) scores[j * kColumns + i] = kMasked;
    }
  }
}

// out[i][d] = from[d][i] * inverse[i] for i < queries, d < dim, at most kLanes each.
void write_block(float* out, int64_t out_stride, const float* from, Vec inverse, int64_t queries,
                 int64_t dim) {
  Vec block[kLanes];
#pragma GCC unroll 16
  for (int d = 0; d < kLanes; ++d) {
    block[d] = d < dim ? load(from + d * kColumns) * inverse : Vec{};
  }
  transpose(block);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i >= queries) continue;
    dim >= kLanes ? store(out + i * out_stride, block[i])
                  : store_first(out + i * out_stride, block[i], dim);
  }
}

// The rows of a head lie a whole matrix row apart, where no hardware prefetcher follows.
void prefetch_head(const float* rows, int64_t stride, int64_t count, int64_t dim) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t d = 0; d < dim; d += 16) __builtin_prefetch(rows + r * stride + d, 0, 2);
  }
}

void attend(const AttentionArguments& a, const Scratch& s, int64_t token, int64_t length,
            int64_t head, int64_t first_query) {
  const int64_t dim = a.head_dim;
  const float scale = a.scale * kLog2e;
  const int64_t queries =
      length - first_query < kColumns ? length - first_query : int64_t{kColumns};
  const float* q =
      static_cast<const float*>(a.qkv) + (token + first_query) * a.qkv_stride + head * dim;
  const float* k = static_cast<const float*>(a.qkv) + token * a.qkv_stride + (a.heads + head) * dim;
  const float* v = k + a.heads * dim;

  for (int64_t i = 0; i < kColumns; i += kLanes) {
    for (int64_t d = 0; d < dim; d += kLanes) {
      transpose_block(s.query + d * kColumns + i, kColumns, q + i * a.qkv_stride + d, a.qkv_stride,
                      queries - i, dim - d, [&](Vec v) { return v * scale; });
    }
  }
  for (int64_t d = 0; d < dim * kColumns; ++d) s.out[d] = 0.0f;
  if (a.position_bias) {
    // bias of (query i, key j) is table[j - i + bias_span - 1]; queries run along lanes, so the
    // reversed copy makes them ascend: s.bias[(length - 1 - j) + (i - first_query)].
    const float* table = a.position_bias + head * (2 * a.bias_span - 1);
    for (int64_t u = 0; u < length + kColumns - 1; ++u) {
      const int64_t index = a.bias_span - 1 + length - 1 - first_query - u;
      s.bias[u] =
          index >= 0 ? table[index] * kLog2e : 0.0f;  // only lanes beyond the sequence go below 0
    }
  }

  int64_t first_key = 0, last_key = length;
  if (a.window > 0) {
    // Tiles begin at multiples of kKeyTile whatever the window, or the answer would shift.
    first_key = first_query - a.window;
    first_key = first_key > 0 ? first_key / kKeyTile * kKeyTile : 0;
    const int64_t reach = first_query + queries + a.window;
    last_key = reach < length ? reach : length;
  }

  Vec highest[2] = {broadcast(kMasked), broadcast(kMasked)};
  Vec total[2] = {};
  for (int64_t tile = first_key; tile < last_key; tile += kKeyTile) {
    const int64_t keys = last_key - tile < kKeyTile ? last_key - tile : kKeyTile;
    for_row_blocks(keys, [&](auto rows, int64_t from) {
      const Product product = {
          k + (tile + from) * a.qkv_stride, a.qkv_stride, 1, s.query, kColumns, dim};
      score_rows<decltype(rows)::value>(product, s.scores + from * kColumns);
    });
    if (a.position_bias) {
      for (int64_t j = 0; j < keys; ++j) {
        float* row = s.scores + j * kColumns;
        const float* bias = s.bias + length - 1 - (tile + j);
        store(row, load(row) + load(bias));
        store(row + kLanes, load(row + kLanes) + load(bias + kLanes));
      }
    }
    if (a.window > 0) mask_window(s.scores, first_query, tile, keys, a.window);

    Vec correction[2];
    for (int half = 0; half < 2; ++half) {
      float* column = s.scores + half * kLanes;
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
    for_row_blocks(dim, [&](auto rows, int64_t from) {
      const Product product = {
          v + tile * a.qkv_stride + from, 1, a.qkv_stride, s.scores, kColumns, keys};
      value_rows<decltype(rows)::value>(product, correction, s.out + from * kColumns);
    });
  }

  // out^T, divided by the sums, back to rows of the output: a block of it is kLanes queries.
  float* out = static_cast<float*>(a.out) + (token + first_query) * a.out_stride + head * dim;
  for (int64_t i = 0; i < queries; i += kLanes) {
    const Vec inverse = 1.0f / total[i / kLanes];
    for (int64_t d = 0; d < dim; d += kLanes) {
      write_block(out + i * a.out_stride + d, a.out_stride, s.out + d * kColumns + i, inverse,
                  queries - i, dim - d);
    }
  }
}

}  // namespace

void attention(const AttentionArguments& a, const Stream&) {
  const SequenceBatch& batch = *a.batch;
  const int64_t tasks_each = (batch.max_seqlen() + kTaskQueries - 1) / kTaskQueries;
  const int64_t bias_floats = a.position_bias ? batch.max_seqlen() + 2 * kColumns : 0;
  // Tasks of one head of one sequence are neighbours; those beyond a short sequence end at once.
  parallel_for(batch.sequences() * a.heads * tasks_each, 1, [&](int64_t task, int64_t, int) {
    const int64_t sequence = task / tasks_each / a.heads;
    const int64_t token = batch.begin()[sequence];
    const int64_t length = batch.begin()[sequence + 1] - token;
    const int64_t begin = task % tasks_each * kTaskQueries;
    if (begin >= length) return;
    const int64_t end = begin + kTaskQueries < length ? begin + kTaskQueries : length;
    const int64_t wide = a.head_dim * kColumns;
    float* floats = static_cast<float*>(__builtin_alloca_with_align(
        (2 * wide + kKeyTile * kColumns + bias_floats) * sizeof(float), 512));
    const Scratch scratch = {floats, floats + 2 * wide, floats + wide,
                             floats + 2 * wide + kKeyTile * kColumns};
    const float* q = static_cast<const float*>(a.qkv) + token * a.qkv_stride +
                     task / tasks_each % a.heads * a.head_dim;
    const int64_t width = a.heads * a.head_dim;
    prefetch_head(q + begin * a.qkv_stride, a.qkv_stride, end - begin, a.head_dim);
    const int64_t ahead = length < kPrefetchedKeys ? length : kPrefetchedKeys;
    prefetch_head(q + width, a.qkv_stride, ahead, a.head_dim);
    prefetch_head(q + 2 * width, a.qkv_stride, ahead, a.head_dim);
    for (int64_t query = begin; query < end; query += kColumns) {
      attend(a, scratch, token, length, task / tasks_each % a.heads, query);
    }
  });
}

void rotary(void* qkv, int64_t stride, const int32_t* positions, int64_t angles, const float* cos,
            const float* sin, int64_t tokens, int64_t heads, int64_t head_dim, const Stream&) {
  const int64_t half = head_dim / 2;
  parallel_for(tokens, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      if (positions[t] < 0 || positions[t] >= angles) {
        fail("rotary: position: got ", positions[t], ", wanted 0 to ", angles - 1);
      }
      const float* c = cos + positions[t] * half;
      const float* s = sin + positions[t] * half;
      float* row = static_cast<float*>(qkv) + t * stride;
      for (int64_t head = 0; head < 2 * heads; ++head, row += head_dim) {  // q's, then k's
        for (int64_t d = 0; d < half; ++d) {
          const float x = row[d], y = row[d + half];
          row[d] = x * c[d] - y * s[d];
          row[d + half] = y * c[d] + x * s[d];
        }
      }
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
