// The embedding sum and its LayerNorm: word, position and token type rows are gathered, added and
// normalised in one pass.
#include "cuda/kernels.h"
#include "cuda/norm.h"

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

template <class T, class L>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm) embed_rows(EmbedArguments a) {
  let_next_start();
  const int cols = static_cast<int>(a.hidden);
  wait_for_inputs();
  // Word and position rows are fetched a token ahead, their indices two; the few rows of token
  // types stay in the L1 cache. No table, or no row in it, is a row of no columns.
  RowPacks<L, T> word, position;
  const auto fetch = [&](const Indices& at) {
    const bool known = valid(a, at);
    load_row<L>(word, static_cast<const T*>(a.word) + at.word * a.hidden, known ? cols : 0, NAN);
    load_row<L>(position, static_cast<const T*>(a.position) + at.position * a.hidden,
                known && a.position ? cols : 0, 0.0f);
  };
  int64_t token = L::first_row();
  Indices at = indices_of(a, token), next = indices_of(a, token + L::row_step());
  if (token < a.tokens) fetch(at);
  for (; token < a.tokens; token += L::row_step()) {
    RowPacks<L, T> type;
    load_row<L>(type, static_cast<const T*>(a.token_type) + at.type * a.hidden,
                a.token_type && valid(a, at) ? cols : 0, 0.0f);
    float v[L::kElements];
#pragma unroll
    for (int i = 0; i < L::kElements; ++i) {
      const int pack = i / L::kWidth, j = i % L::kWidth;
      v[i] =
          to_float(word[pack].at[j]) + to_float(type[pack].at[j]) + to_float(position[pack].at[j]);
      if (L::column(pack) >= cols) v[i] = 0.0f;
    }
    at = next;
    if (token + L::row_step() < a.tokens) fetch(at);
    next = indices_of(a, token + 2 * L::row_step());
    normalize<T, L>(v, cols, true, a.eps);
    Affine<T, L> affine;  // from the L1 cache but for the first row: registers are short
    affine.load(a.weight, a.bias, cols);
    affine.apply(v);
    store_row<L>(static_cast<T*>(a.out) + token * a.out_stride, v, cols);
  }
}

// Hidden sizes that no registers hold.
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
void embed_layer_norm(const EmbedArguments& a, const Stream& stream) {
  const bool vectors = a.hidden % Vector<T>::kSize == 0 && vectors_fit<T>(a.out, a.out_stride) &&
                       vectors_fit<T>(a.word, 0) && vectors_fit<T>(a.position, 0) &&
                       vectors_fit<T>(a.token_type, 0) && vectors_fit<T>(a.weight, 0) &&
                       vectors_fit<T>(a.bias, 0);
  const bool held = with_row_layout<T>(a.hidden, vectors, [&](auto layout) {
    using L = decltype(layout);
    launch(embed_rows<T, L>, L::grid(a.tokens), L::kBlock, 0, stream, a);
  });
  if (!held) launch(embed_wide_rows<T>, a.tokens, kWideBlock, 0, stream, a);
}

#define INSTANTIATE(T) template void embed_layer_norm<T>(const EmbedArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
