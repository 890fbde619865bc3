// Embedding sums, alone or with the LayerNorm that follows. An index outside of its table is an
// error, before its row is read.
#include "core/error.h"
#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/gemm_int8.h"
#include "cpu/statistics.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

void check_index(const char* op, const char* what, int64_t index, int64_t limit) {
  if (index < 0 || index >= limit) {
    fail(op, ": ", what, ": got ", index, ", wanted 0 to ", limit - 1);
  }
}

const float* table_row(const char* op, const char* what, const void* table, int64_t index,
                       int64_t limit, int64_t hidden) {
  check_index(op, what, index, limit);
  return static_cast<const float*>(table) + index * hidden;
}

const float* position_row(const EmbedArguments& a, const char* op, int64_t token) {
  if (!a.position) return nullptr;
  return table_row(op, "position", a.position, a.positions[token], a.max_positions, a.hidden);
}

// A token's row of the token embedding, read by columns.
struct MatrixRow {
  const float* row;

  MatrixRow(const EmbedArguments& a, int64_t id)
      : row(static_cast<const float*>(a.word) + id * a.hidden) {}
  FUSEWIRE_INLINE Vec at(int64_t c, int64_t count) const { return read(row + c, count); }
};
struct Int8Row {
  const uint8_t* row;
  float scale;

  Int8Row(const EmbedArguments& a, int64_t id)
      : row(packed_row(static_cast<const uint8_t*>(a.word), id, a.hidden)),
        scale(a.word_scales[id]) {}
  FUSEWIRE_INLINE Vec at(int64_t c, int64_t count) const {
    typedef uint8_t Numbers __attribute__((vector_size(kLanes)));
    Numbers numbers = kZeroByte - Numbers{};
    for (int64_t lane = 0; lane < count; lane += kGroup) {
      __builtin_memcpy(reinterpret_cast<uint8_t*>(&numbers) + lane,
                       row + (c + lane) / kGroup * kPanelStep, kGroup);
    }
    const IntVec integers = __builtin_convertvector(numbers, IntVec) - kZeroByte;
    return opaque(__builtin_convertvector(integers, Vec) * scale);  // rounded, as in a matrix
  }
};

template <class Word>
void embed_rows(const EmbedArguments& a) {
  parallel_for(a.tokens, rows_of_a_task(a.hidden), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      check_index("embed", "id", a.ids[t], a.vocabulary);
      const Word word(a, a.ids[t]);
      const float* position = position_row(a, "embed", t);
      float* out = static_cast<float*>(a.out) + t * a.out_stride;
      for_columns(a.hidden, [&](int64_t c, int64_t count) {
        Vec v = word.at(c, count) * a.scale;
        if (position) v += read(position + c, count);
        write(out + c, v, count);
      });
    }
  });
}

template <class Word>
void embed_and_norm_rows(const EmbedArguments& a) {
  parallel_for(a.tokens, rows_of_a_task(a.hidden), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      check_index("embed_layer_norm", "id", a.ids[t], a.vocabulary);
      const Word word(a, a.ids[t]);
      const float* position = position_row(a, "embed_layer_norm", t);
      const float* type = a.token_type ? table_row("embed_layer_norm", "token type", a.token_type,
                                                   a.types[t], a.type_vocabulary, a.hidden)
                                       : nullptr;
      float* out = static_cast<float*>(a.out) + t * a.out_stride;
      const auto sum = [&](int, int64_t c, int64_t count) {
        Vec v = word.at(c, count);
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

}  // namespace

void embed(const EmbedArguments& a, const Stream&) {
  a.word_scales ? embed_rows<Int8Row>(a) : embed_rows<MatrixRow>(a);
}

void embed_layer_norm(const EmbedArguments& a, const Stream&) {
  a.word_scales ? embed_and_norm_rows<Int8Row>(a) : embed_and_norm_rows<MatrixRow>(a);
}

}  // namespace fusewire::FUSEWIRE_TARGET
