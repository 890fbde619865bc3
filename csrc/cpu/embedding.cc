// Embedding sums, alone or with the LayerNorm that follows. An index outside of its table is an
// error before anything is read.
#include "core/error.h"
#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/statistics.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

const float* table_row(const char* op, const char* what, const void* table, int64_t index,
                       int64_t limit, int64_t hidden) {
  if (index < 0 || index >= limit) {
    fail(op, ": ", what, ": got ", index, ", wanted 0 to ", limit - 1);
  }
  return static_cast<const float*>(table) + index * hidden;
}

const float* word_row(const EmbedArguments& a, const char* op, int64_t token) {
  return table_row(op, "id", a.word, a.ids[token], a.vocabulary, a.hidden);
}

const float* position_row(const EmbedArguments& a, const char* op, int64_t token) {
  if (!a.position) return nullptr;
  return table_row(op, "position", a.position, a.positions[token], a.max_positions, a.hidden);
}

}  // namespace

void embed(const EmbedArguments& a, const Stream&) {
  parallel_for(a.tokens, rows_of_a_task(a.hidden), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* word = word_row(a, "embed", t);
      const float* position = position_row(a, "embed", t);
      float* out = static_cast<float*>(a.out) + t * a.out_stride;
      for_columns(a.hidden, [&](int64_t c, int64_t count) {
        Vec v = read(word + c, count) * a.scale;
        if (position) v += read(position + c, count);
        write(out + c, v, count);
      });
    }
  });
}

void embed_layer_norm(const EmbedArguments& a, const Stream&) {
  parallel_for(a.tokens, rows_of_a_task(a.hidden), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* word = word_row(a, "embed_layer_norm", t);
      const float* position = position_row(a, "embed_layer_norm", t);
      const float* type = a.token_type ? table_row("embed_layer_norm", "token type", a.token_type,
                                                   a.types[t], a.type_vocabulary, a.hidden)
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
