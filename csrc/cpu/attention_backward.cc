// The backward pass of packed attention (core/attention_backward.h).
//
// A task is a sequence and a kv head. It iterates over the keys in tiles of kKeyTile and, for each
// tile, over the blocks of kColumns queries of every head that reads it. Weights are recomputed,
// with queries along the lanes as in the forward pass, and the micro-kernel computes the five
// products of a tile and a block. Tasks write disjoint outputs, so bits do not depend on the number
// of threads.
#include "core/attention_backward.h"

#include "core/kernels.h"
#include "core/thread_buffer.h"
#include "core/threads.h"
#include "cpu/attention_score.h"
#include "cpu/columns.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kDistances = kKeyTile + kColumns - 1;  // between a tile and a block

int64_t least_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

void clear(float* floats, int64_t count) {
  for (int64_t i = 0; i < count; ++i) floats[i] = 0.0f;
}

int64_t whole_columns(int64_t head_dim) {
  return (head_dim + kColumns - 1) / kColumns * kColumns;
}

// Scratch of a task, on its stack. `width` is head_dim rounded up to kColumns; columns from
// head_dim on are zeros.
struct Scratch {
  Scratch(float* floats, int64_t head_dim) {
    const int64_t width = whole_columns(head_dim);
    const auto take = [&](float*& to, int64_t count) {
      to = floats;
      floats += count;
    };
    for (float** each : {&query, &dout, &dquery}) take(*each, head_dim * kColumns);
    for (float** each : {&query_rows, &dout_rows}) take(*each, kColumns * width);
    for (float** each : {&weights, &dscores}) take(*each, kKeyTile * kColumns);
    for (float** each : {&dk, &dv}) take(*each, kKeyTile * width);
    for (float** each : {&log_sum_exp, &dots}) take(*each, kColumns);
    for (float** each : {&bias, &dbias}) take(*each, kDistances + 1);
    if (width > head_dim) clear(query_rows, 2 * kColumns * width);
  }

  static size_t bytes(int64_t head_dim) {
    return sizeof(float) *
           static_cast<size_t>(3 * head_dim * kColumns +
                               2 * (kColumns + kKeyTile) * whole_columns(head_dim) +
                               2 * (kKeyTile + 1) * kColumns + 2 * (kDistances + 1));
  }

  float *query, *dout, *dquery;   // q^T, scaled for scores; dout^T; dq^T [head_dim][kColumns]
  float *query_rows, *dout_rows;  // [kColumns][width]
  float *weights, *dscores;       // scores^T, then weights^T after dropout; dout v^T, then
                                  // the gradient of scores^T [kKeyTile][kColumns]
  float *dk, *dv;                 // gradients of the tile's k and v [kKeyTile][width]
  float *log_sum_exp, *dots;      // of the block, the former in units of log2 [kColumns]
  float *bias, *dbias;            // of the tile and the block, by distance, reversed
};

// A block of queries of one head.
struct Block {
  int64_t head, token;        // the head; the packed index of its first query
  int64_t queries, position;  // number of queries; position of the first
};

const float* row_of(const HeadRows& rows, int64_t row, int64_t head, int64_t head_dim) {
  return static_cast<const float*>(rows.data) + row * rows.stride + head * head_dim;
}

// Prefetches what load_block reads.
void prefetch_block(const AttentionBackwardArguments& g, const Block& block) {
  const AttentionArguments& a = g.forward;
  for (const HeadRows& rows : {a.q, g.dout, HeadRows{a.out, a.out_stride}}) {
    prefetch_head(row_of(rows, block.token, block.head, a.head_dim), rows.stride, block.queries,
                  a.head_dim);
  }
}

// Loads what the products of a block read.
void load_block(const AttentionBackwardArguments& g, const Block& block, const Scratch& s) {
  const AttentionArguments& a = g.forward;
  const int64_t dim = a.head_dim, width = whole_columns(dim);
  const float* q = row_of(a.q, block.token, block.head, dim);
  const float* dout = row_of(g.dout, block.token, block.head, dim);
  const float* out = row_of({a.out, a.out_stride}, block.token, block.head, dim);
  transpose_queries(s.query, q, a.q.stride, block.queries, dim, query_scale(a));
  transpose_queries(s.dout, dout, g.dout.stride, block.queries, dim, 1.0f);
  const float* sums = a.log_sum_exp + block.head * a.log_sum_exp_stride + block.token;
  for (int64_t i = 0; i < kColumns; ++i) {
    const bool real = i < block.queries;
    s.log_sum_exp[i] = real ? sums[i] * kLog2e : -kMasked;  // weights beyond the last query are 0
    s.dots[i] = 0.0f;
    if (!real) continue;
    const float *from = q + i * a.q.stride, *gradients = dout + i * g.dout.stride;
    const float* results = out + i * a.out_stride;
    float *query_row = s.query_rows + i * width, *dout_row = s.dout_rows + i * width;
    Vec dot = {};
    for_columns(dim, [&](int64_t d, int64_t count) {
      const Vec gradient = read(gradients + d, count);
      write(query_row + d, read(from + d, count), count);
      write(dout_row + d, gradient, count);
      dot += gradient * read(results + d, count);
    });
    s.dots[i] = reduce_add(dot);
  }
}

// Turns scores into weights, and gradients of weights into those of scores, for `keys` keys from
// first_key on.
void differentiate(const AttentionBackwardArguments& g, const Block& block, const Scratch& s,
                   int64_t first_key, int64_t keys) {
  const AttentionArguments& a = g.forward;
  const bool hidden = block.position + block.queries - 1 - first_key > a.mask.left ||
                      first_key + keys - 1 - block.position > a.mask.right;
  const Vec left = broadcast(static_cast<float>(-a.mask.left));
  const Vec right = broadcast(static_cast<float>(a.mask.right)), masked = broadcast(kMasked);
  for (int64_t i = 0; i < kColumns; i += kLanes) {
    const Vec sums = load(s.log_sum_exp + i), dots = load(s.dots + i);
    const Vec nearest = static_cast<float>(first_key - block.position - i) - lane_numbers();
    const auto element = [&](int64_t j, Vec factor) {
      float *weight = s.weights + j * kColumns + i, *dscore = s.dscores + j * kColumns + i;
      Vec score = load(weight), slope = broadcast(1.0f);
      if (a.soft_cap > 0) {
        const Vec of_cap = tanh(score / a.soft_cap);
        slope = 1.0f - of_cap * of_cap;
        score = of_cap * (a.soft_cap * kLog2e);
      }
      if (a.bias) score += load(s.bias + keys - 1 - j + i);
      if (hidden) {
        const Vec distance = nearest + static_cast<float>(j);
        score = distance < left ? masked : distance > right ? masked : score;
      }
      const Vec p = exp2(score - sums), kept = p * factor;
      Vec ds = kept * load(dscore) - p * dots;
      if (g.dbias) {
        float* sum = s.dbias + keys - 1 - j + i;
        store(sum, load(sum) + ds);
      }
      if (a.soft_cap > 0) ds *= slope;
      store(weight, kept);
      store(dscore, ds);
    };
    if (a.dropout.probability > 0) {
      for_dropout_columns(a.dropout, dropout_rows(a, block.token + i, block.head), first_key, keys,
                          element);
    } else {
      for (int64_t j = 0; j < keys; ++j) element(j, broadcast(1.0f));
    }
  }
}

template <int kRows>
__attribute__((noinline)) void add_rows(const Product& product, float* out, int64_t out_stride) {
  Vec sum[kRows][2] = {};
  multiply<kRows>(product, sum);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* row = out + r * out_stride;
    store(row, load(row) + sum[r][0]);
    store(row + kLanes, load(row + kLanes) + sum[r][1]);
  }
}

// out[keys][width] += tile[keys][kColumns] . rows[queries][width]
void add_queries(const float* tile, int64_t keys, const float* rows, int64_t queries, int64_t width,
                 float* out) {
  for_row_blocks(keys, [&](auto count, int64_t from) {
    for (int64_t c = 0; c < width; c += kColumns) {
      const Product product = {tile + from * kColumns, kColumns, 1, rows + c, width, queries};
      add_rows<decltype(count)::value>(product, out + from * width + c, width);
    }
  });
}

template <bool kAdd>
void write_dq(const AttentionBackwardArguments& g, const Block& block, const float* dquery) {
  const int64_t dim = g.forward.head_dim, stride = g.dq_stride;
  float* dq = static_cast<float*>(g.dq) + block.token * stride + block.head * dim;
  for (int64_t i = 0; i < block.queries; i += kLanes) {
    for (int64_t d = 0; d < dim; d += kLanes) {
      write_block<kAdd>(dq + i * stride + d, stride, dquery + d * kColumns + i,
                        broadcast(g.forward.scale), block.queries - i, dim - d);
    }
  }
}

// Adds the gradients of a tile of keys, whose first rows are k and v, and a block that attends to
// some of it.
void attend_backward(const AttentionBackwardArguments& g, const Block& block, const Scratch& s,
                     const float* k, const float* v, int64_t tile, int64_t keys, float* dbias) {
  const AttentionArguments& a = g.forward;
  const int64_t dim = a.head_dim, width = whole_columns(dim);
  load_block(g, block, s);
  score(k, a.k.stride, s.query, keys, dim, s.weights);
  score(v, a.v.stride, s.dout, keys, dim, s.dscores);
  const int64_t farthest = tile + keys - 1 - block.position, distances = keys + kColumns - 1;
  if (a.bias) reversed_biases(a, block.head, farthest, distances, s.bias);
  if (dbias) clear(s.dbias, distances);
  differentiate(g, block, s, tile, keys);
  if (dbias) {
    float* sums = dbias + block.head * a.bias_width();
    for (int64_t u = 0; u < distances; ++u) sums[bias_column(a, farthest - u)] += s.dbias[u];
  }
  add_queries(s.weights, keys, s.dout_rows, block.queries, width, s.dv);
  add_queries(s.dscores, keys, s.query_rows, block.queries, width, s.dk);
  clear(s.dquery, dim * kColumns);
  const Vec once[2] = {broadcast(1.0f), broadcast(1.0f)};
  add_values(k, a.k.stride, s.dscores, keys, once, s.dquery, dim);
  const bool first = tile == first_visible(a, block.position) / kKeyTile * kKeyTile;
  first ? write_dq<false>(g, block, s.dquery) : write_dq<true>(g, block, s.dquery);
}

void write_keys(void* to, int64_t stride, const float* from, int64_t keys, int64_t dim,
                float scale) {
  for (int64_t j = 0; j < keys; ++j) {
    float* row = static_cast<float*>(to) + j * stride;
    const float* sums = from + j * whole_columns(dim);
    for (int64_t d = 0; d < dim; ++d) row[d] = sums[d] * scale;
  }
}

// Computes the gradients of one kv head of one sequence; dbias [heads, 2 * bias_span - 1] is the
// sequence's own.
void backward_of_head(const AttentionBackwardArguments& g, const Scratch& s, int64_t sequence,
                      int64_t kv_head, float* dbias) {
  const AttentionArguments& a = g.forward;
  const int64_t token = a.queries->begin()[sequence], key = a.keys->begin()[sequence];
  const int64_t queries = a.queries->begin()[sequence + 1] - token;
  const int64_t all_keys = a.keys->begin()[sequence + 1] - key;
  const int64_t dim = a.head_dim, width = whole_columns(dim), group = a.heads / a.kv_heads;
  for (int64_t tile = 0; tile < all_keys; tile += kKeyTile) {
    const int64_t tile_keys = least_of(kKeyTile, all_keys - tile);
    clear(s.dk, tile_keys * width);
    clear(s.dv, tile_keys * width);
    const float* k = row_of(a.k, key + tile, kv_head, dim);
    const float* v = row_of(a.v, key + tile, kv_head, dim);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t query = 0; query < queries; query += kColumns) {
        const auto block_at = [&](int64_t begin) {
          return Block{head, token + begin, least_of(kColumns, queries - begin),
                       all_keys - queries + begin};
        };
        const Block block = block_at(query);
        const int64_t reach = block.position + block.queries + a.mask.right;
        const int64_t keys = least_of(tile_keys, reach - tile);
        if (keys <= 0 || tile + tile_keys <= first_visible(a, block.position)) continue;
        if (query + kColumns < queries) prefetch_block(g, block_at(query + kColumns));
        attend_backward(g, block, s, k, v, tile, keys, dbias);
      }
    }
    const int64_t at = kv_head * dim;
    float* dk = static_cast<float*>(g.dk) + (key + tile) * g.dk_stride + at;
    float* dv = static_cast<float*>(g.dv) + (key + tile) * g.dv_stride + at;
    write_keys(dk, g.dk_stride, s.dk, tile_keys, dim, a.scale);
    write_keys(dv, g.dv_stride, s.dv, tile_keys, dim, 1.0f);
  }
}

}  // namespace

void attention_backward(const AttentionBackwardArguments& g, const Stream&) {
  const AttentionArguments& a = g.forward;
  const int64_t sequences = a.queries->sequences();
  // Gradients of the biases from each sequence, which are added up in the order of sequences.
  const int64_t biases = g.dbias ? a.heads * a.bias_width() : 0;
  const size_t bytes = sizeof(float) * static_cast<size_t>(sequences * biases);
  float* const dbias = g.dbias ? static_cast<float*>(thread_buffer(bytes)) : nullptr;
  parallel_for(sequences * a.kv_heads, 1, [&](int64_t task, int64_t, int) {
    const int64_t sequence = task / a.kv_heads, kv_head = task % a.kv_heads;
    float* own = nullptr;
    if (dbias) {
      own = dbias + sequence * biases;
      const int64_t each = biases / a.kv_heads;
      clear(own + kv_head * each, each);
    }
    float* floats =
        static_cast<float*>(__builtin_alloca_with_align(Scratch::bytes(a.head_dim), 512));
    backward_of_head(g, Scratch(floats, a.head_dim), sequence, kv_head, own);
  });
  parallel_for(biases, 1 << 12, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float sum = 0.0f;
      for (int64_t sequence = 0; sequence < sequences; ++sequence) {
        sum += dbias[sequence * biases + i];
      }
      g.dbias[i] = sum;
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
