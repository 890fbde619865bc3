// Embedding, alone or with its LayerNorm: gathers the rows of the word, position and token type
// tables, adds and normalises them in one pass.
#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/rows/norm.h"
#include "cuda/rows/tile.h"

namespace fusewire::cuda {
namespace {

struct Indices {
  int64_t word, position, type;
};

__device__ __forceinline__ Indices indices_of(const EmbedArguments& a, int64_t token) {
  if (token >= a.tokens) return {};
  return {a.ids[token], a.position ? a.positions[token] : 0, a.token_type ? a.types[token] : 0};
}

__device__ __forceinline__ bool valid(const EmbedArguments& a, const Indices& at) {
  return at.word >= 0 && at.word < a.vocabulary &&
         (!a.position || (at.position >= 0 && at.position < a.max_positions)) &&
         (!a.token_type || (at.type >= 0 && at.type < a.type_vocabulary));
}

// Computes word * scale + position. A row with an index outside of its table becomes NaN.
template <class T, int kWidth>
__global__ void __launch_bounds__(256) embed_elements(EmbedArguments a) {
  using P = Pack<T, kWidth>;
  let_next_start();
  wait_for_inputs();
  const int64_t c = tile_access<1>(0) * kWidth;
  if (c >= a.hidden) return;
  for (int64_t token = tile_row(); token < a.tokens; token += tile_row_step()) {
    const Indices at = indices_of(a, token);
    const bool known = valid(a, at);
    P word, position;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      word.at[j] = from_float<T>(NAN);
      position.at[j] = from_float<T>(0.0f);
    }
    if (known) {
      word = *reinterpret_cast<const P*>(static_cast<const T*>(a.word) + at.word * a.hidden + c);
      if (a.position) {
        position = *reinterpret_cast<const P*>(static_cast<const T*>(a.position) +
                                               at.position * a.hidden + c);
      }
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      word.at[j] = from_float<T>(fmaf(to_float(word.at[j]), a.scale, to_float(position.at[j])));
    }
    *reinterpret_cast<P*>(static_cast<T*>(a.out) + token * a.out_stride + c) = word;
  }
}

// Registers are limited so that many rows are in flight: each row has two latencies in sequence,
// that of its indices and that of its table rows.
template <class T, class L>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm) embed_rows(EmbedArguments a) {
  constexpr bool kWeightsFirst = L::kElements <= 8;
  let_next_start();
  const int cols = static_cast<int>(a.hidden);
  Affine<T, L> affine;
  if constexpr (kWeightsFirst) affine.load(a.weight, a.bias, cols);
  wait_for_inputs();
  const int64_t token = L::row();
  if (token >= a.tokens) return;
  float v[L::kElements];
  {
    // If there is no table, or no such row in it, a row of no columns is read.
    const Indices at = indices_of(a, token);
    const int known = valid(a, at) ? cols : 0;
    RowPacks<L, T> word, position, type;
    load_row<L>(word, static_cast<const T*>(a.word) + at.word * a.hidden, known, NAN);
    load_row<L>(position, static_cast<const T*>(a.position) + at.position * a.hidden,
                a.position ? known : 0, 0.0f);
    load_row<L>(type, static_cast<const T*>(a.token_type) + at.type * a.hidden,
                a.token_type ? known : 0, 0.0f);
#pragma unroll
    for (int i = 0; i < L::kElements; ++i) {
      v[i] = element<L, T>(word, i) + element<L, T>(type, i) + element<L, T>(position, i);
      if (L::column(i / L::kWidth) >= cols) v[i] = 0.0f;
    }
  }
  normalize<T, L>(v, cols, true, a.eps);
  T* out = static_cast<T*>(a.out) + token * a.out_stride;
  if constexpr (kWeightsFirst) {
    affine.apply(v);
    store_row<L>(out, v, cols);
  } else {
    store_affine_row<T, L>(out, v, a.weight, a.bias, cols);
  }
}

// For hidden sizes that do not fit in registers.
template <class T>
__global__ void __launch_bounds__(kWideBlock) embed_wide_rows(EmbedArguments a) {
  constexpr int n = Vector<T>::kSize;
  let_next_start();
  wait_for_inputs();
  const Indices at = indices_of(a, blockIdx.x);
  const int cols = static_cast<int>(a.hidden);
  T* out = static_cast<T*>(a.out) + blockIdx.x * a.out_stride;
  if (!valid(a, at)) {
    for (int c = threadIdx.x; c < cols; c += kWideBlock) out[c] = from_float<T>(NAN);
    return;
  }
  const T* word = static_cast<const T*>(a.word) + at.word * a.hidden;
  const T* position = static_cast<const T*>(a.position) + at.position * a.hidden;
  const T* type = static_cast<const T*>(a.token_type) + at.type * a.hidden;
  normalize_wide_row(out, word, a.weight, a.bias, cols, true, a.eps, [&](float (&v)[n], int c) {
    read_part(v, word, c, cols, 0.0f);
    if (a.token_type) add_part(v, type, c, cols);
    if (a.position) add_part(v, position, c, cols);
  });
}

}  // namespace

template <class T>
void embed(const EmbedArguments& a, const Stream& stream) {
  constexpr int n = Vector<T>::kSize;
  const auto run = [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const Tiles tiles = tiles_of<1>(a.tokens, a.hidden / kWidth);
    launch(embed_elements<T, kWidth>, tiles.grid, tiles.block, 0, stream, a);
  };
  if (a.hidden % n == 0 && vectors_fit<T>(a.out, a.out_stride) && vectors_fit<T>(a.word, 0) &&
      vectors_fit<T>(a.position, 0)) {
    run(std::integral_constant<int, n>{});
  } else {
    run(std::integral_constant<int, 1>{});
  }
}

template <class T>
void embed_layer_norm(const EmbedArguments& a, const Stream& stream) {
  const bool vectors = a.hidden % Vector<T>::kSize == 0 && vectors_fit<T>(a.out, a.out_stride) &&
                       vectors_fit<T>(a.word, 0) && vectors_fit<T>(a.position, 0) &&
                       vectors_fit<T>(a.token_type, 0) && vectors_fit<T>(a.weight, 0) &&
                       vectors_fit<T>(a.bias, 0);
  const auto run = [&](auto layout) {
    using L = decltype(layout);
    launch(embed_rows<T, L>, L::grid(a.tokens), L::kBlock, 0, stream, a);
  };
  // With at most one token per multiprocessor, a row is shared by more threads than a warp.
  using Spread = RowLayout<Vector<T>::kSize, 8 / Vector<T>::kSize, 128>;
  if (vectors && a.tokens <= multiprocessors() &&
      a.hidden <= Spread::kElements * Spread::kThreads) {
    return run(Spread{});
  }
  const bool held = with_row_layout<T>(a.hidden, vectors, run);
  if (!held) launch(embed_wide_rows<T>, a.tokens, kWideBlock, 0, stream, a);
}

#define INSTANTIATE(T)                                          \
  template void embed<T>(const EmbedArguments&, const Stream&); \
  template void embed_layer_norm<T>(const EmbedArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
