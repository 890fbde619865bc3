// Packed attention: softmax(q k^T * scale + bias) v for each sequence and head of a ragged batch.
//
// A task is up to kTaskQueries queries of one head, in blocks of kColumns (cpu/attention_tile.h),
// with k and v read in place. Tiles of keys start at the sequence's own beginning: the answer does
// not depend on the batch.
#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/attention_tile.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kTaskQueries = 4 * kColumns;  // of one task: k and v of the head stay in L2
constexpr int64_t kPrefetchedKeys = 512;        // at the start of a task

// Scratch of one task, on its stack: head_dim x kColumns twice and one tile of scores.
struct Scratch {
  float* query;   // q^T [head_dim][kColumns], scaled
  float* scores;  // scores^T, then exp of them [kKeyTile][kColumns]
  float* out;     // out^T [head_dim][kColumns]
  float* bias;    // position bias of this block, reversed: see attend
};

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

  OnlineSoftmax online;
  for (int64_t tile = first_key; tile < last_key; tile += kKeyTile) {
    const int64_t keys = last_key - tile < kKeyTile ? last_key - tile : kKeyTile;
    score(k + tile * a.qkv_stride, a.qkv_stride, s.query, keys, dim, s.scores);
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
    online.step(s.scores, keys, correction);
    add_values(v + tile * a.qkv_stride, a.qkv_stride, s.scores, keys, correction, s.out, dim);
  }

  // out^T, divided by the sums, back to rows of the output: a block of it is kLanes queries.
  float* out = static_cast<float*>(a.out) + (token + first_query) * a.out_stride + head * dim;
  for (int64_t i = 0; i < queries; i += kLanes) {
    const Vec inverse = 1.0f / online.total[i / kLanes];
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

}  // namespace fusewire::FUSEWIRE_TARGET
