// Packed attention: softmax(q k^T * scale + bias) v for each sequence and head of a ragged batch.
//
// A task is up to kTaskQueries queries of one head, in blocks of kColumns (cpu/attention_tile.h); k
// and v are read in place. Tiles of keys start at the beginning of the sequence, so the result does
// not depend on the batch.
#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/attention_score.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kTaskQueries = 4 * kColumns;  // per task: k and v of the head stay in L2
constexpr int64_t kPrefetchedKeys = 512;        // at the start of a task

// Scratch of one task, on its stack: head_dim x kColumns twice, one tile of scores, and the biases.
struct Scratch {
  float* query;   // q^T [head_dim][kColumns], scaled
  float* scores;  // scores^T, then their exponentials [kKeyTile][kColumns]
  float* out;     // out^T [head_dim][kColumns]
  float* bias;    // biases of this block, reversed
};

// One head of one sequence.
struct Sequence {
  const float *q, *k, *v;  // rows of the head
  int64_t head, token;     // the query head; the packed index of its first query
  int64_t queries, keys;

  // Returns the position of query 0.
  int64_t position() const { return keys - queries; }
};

// Masks the scores of keys that a query may not attend to. The first query is at `position`.
void hide(float* scores, int64_t position, int64_t first_key, int64_t keys,
          const AttentionMask& mask) {
  const Vec left = broadcast(static_cast<float>(-mask.left));
  const Vec right = broadcast(static_cast<float>(mask.right)), hidden = broadcast(kMasked);
  for (int64_t i = 0; i < kColumns; i += kLanes) {
    Vec distance = static_cast<float>(first_key - position - i) - lane_numbers();
    for (float* s = scores + i; s < scores + keys * kColumns; s += kColumns, distance += 1.0f) {
      store(s, distance < left ? hidden : distance > right ? hidden : load(s));
    }
  }
}

// Applies dropout to exponentials, after the running sums have counted them.
void drop(const AttentionArguments& a, float* scores, int64_t token, int64_t head,
          int64_t first_key, int64_t keys) {
  for (int64_t i = 0; i < kColumns; i += kLanes) {
    for_dropout_columns(a.dropout, dropout_rows(a, token + i, head), first_key, keys,
                        [&](int64_t j, Vec factors) {
                          float* s = scores + j * kColumns + i;
                          store(s, load(s) * factors);
                        });
  }
}

void attend(const AttentionArguments& a, const Scratch& s, const Sequence& of,
            int64_t first_query) {
  const int64_t dim = a.head_dim;
  const int64_t rest = of.queries - first_query;
  const int64_t queries = rest < kColumns ? rest : int64_t{kColumns};
  const int64_t position = of.position() + first_query;
  const int64_t token = of.token + first_query;
  const float* q = of.q + first_query * a.q.stride;

  transpose_queries(s.query, q, a.q.stride, queries, dim, query_scale(a));
  for (int64_t d = 0; d < dim * kColumns; ++d) s.out[d] = 0.0f;
  if (a.bias) {
    reversed_biases(a, of.head, of.keys - 1 - position, of.keys + kColumns - 1, s.bias);
  }

  // Tiles begin at multiples of kKeyTile whatever the mask, or the result would change in its last
  // bits.
  const int64_t first_key = first_visible(a, position) / kKeyTile * kKeyTile;
  const int64_t reach = position + queries + a.mask.right;
  const int64_t last_key = reach < of.keys ? reach : of.keys;

  OnlineSoftmax online;
  for (int64_t tile = first_key; tile < last_key; tile += kKeyTile) {
    const int64_t keys = last_key - tile < kKeyTile ? last_key - tile : kKeyTile;
    score(of.k + tile * a.k.stride, a.k.stride, s.query, keys, dim, s.scores);
    if (a.soft_cap > 0) {
      for (int64_t at = 0; at < keys * kColumns; at += kLanes) {
        store(s.scores + at, capped_score(a, load(s.scores + at)));
      }
    }
    if (a.bias) {
      for (int64_t j = 0; j < keys; ++j) {
        float* row = s.scores + j * kColumns;
        const float* bias = s.bias + of.keys - 1 - (tile + j);
        store(row, load(row) + load(bias));
        store(row + kLanes, load(row + kLanes) + load(bias + kLanes));
      }
    }
    const bool hidden =
        position + queries - 1 - tile > a.mask.left || tile + keys - 1 - position > a.mask.right;
    if (hidden) hide(s.scores, position, tile, keys, a.mask);

    Vec correction[2];
    online.step(s.scores, keys, correction);
    if (a.dropout.probability > 0) drop(a, s.scores, token, of.head, tile, keys);
    add_values(of.v + tile * a.v.stride, a.v.stride, s.scores, keys, correction, s.out, dim);
  }

  // Write out^T, divided by the sums, to the rows of the output, kLanes queries at a time.
  float* out = static_cast<float*>(a.out) + token * a.out_stride + of.head * dim;
  for (int64_t i = 0; i < queries; i += kLanes) {
    const Vec inverse = 1.0f / online.total[i / kLanes];
    for (int64_t d = 0; d < dim; d += kLanes) {
      write_block(out + i * a.out_stride + d, a.out_stride, s.out + d * kColumns + i, inverse,
                  queries - i, dim - d);
    }
  }
  if (!a.log_sum_exp) return;
  float* const log_sum_exp = a.log_sum_exp + of.head * a.log_sum_exp_stride + token;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t half = i / kLanes, lane = i % kLanes;
    log_sum_exp[i] = log_sum_exp_of(online.highest[half][lane], online.total[half][lane]);
  }
}

}  // namespace

const char* attention_lacks(const AttentionArguments& a) {
  if (a.cache_format.float8) return "a cache in float8_e4m3";
  return a.dropout.probability > 0 && a.pages ? "dropout over pages" : nullptr;
}

void attention(const AttentionArguments& a, const Stream&) {
  const SequenceBatch &queries = *a.queries, &keys = *a.keys;
  const int64_t tasks_each = (queries.max_seqlen() + kTaskQueries - 1) / kTaskQueries;
  const int64_t bias_floats = a.bias ? keys.max_seqlen() + 2 * kColumns : 0;
  const auto head_rows = [&](const HeadRows& rows, int64_t token, int64_t head) {
    return static_cast<const float*>(rows.data) + token * rows.stride + head * a.head_dim;
  };
  // Tasks of one head of one sequence are adjacent; those beyond the end of a short sequence return
  // at once.
  parallel_for(queries.sequences() * a.heads * tasks_each, 1, [&](int64_t task, int64_t, int) {
    const int64_t i = task / tasks_each / a.heads, head = task / tasks_each % a.heads;
    const int64_t token = queries.begin()[i], key = keys.begin()[i];
    const int64_t length = queries.begin()[i + 1] - token;
    const int64_t begin = task % tasks_each * kTaskQueries;
    if (begin >= length) return;
    const int64_t end = begin + kTaskQueries < length ? begin + kTaskQueries : length;
    const int64_t kv_head = head / (a.heads / a.kv_heads);
    const Sequence of = {head_rows(a.q, token, head),
                         head_rows(a.k, key, kv_head),
                         head_rows(a.v, key, kv_head),
                         head,
                         token,
                         length,
                         keys.begin()[i + 1] - key};
    const int64_t wide = a.head_dim * kColumns;
    float* floats = static_cast<float*>(__builtin_alloca_with_align(
        (2 * wide + kKeyTile * kColumns + bias_floats) * sizeof(float), 512));
    const Scratch scratch = {floats, floats + 2 * wide, floats + wide,
                             floats + 2 * wide + kKeyTile * kColumns};
    prefetch_head(of.q + begin * a.q.stride, a.q.stride, end - begin, a.head_dim);
    const int64_t ahead = of.keys < kPrefetchedKeys ? of.keys : kPrefetchedKeys;
    prefetch_head(of.k, a.k.stride, ahead, a.head_dim);
    prefetch_head(of.v, a.v.stride, ahead, a.head_dim);
    for (int64_t query = begin; query < end; query += kColumns) attend(a, scratch, of, query);
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
