// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), optionally with a residual that
// is added to the result, and RMSNorm per head.
#include "cuda/kernels.h"
#include "cuda/rows/norm.h"

namespace fusewire::cuda {
namespace {

// Every row has its own threads. The latency of a row is hidden by the other rows on the
// multiprocessor; a loop that prefetches the next row leaves room for fewer of them, and was slower
// at every size.
template <class T, class L, bool kResidual>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm)
    norm_rows(NormArguments a, bool centered) {
  let_next_start();
  const int cols = static_cast<int>(a.cols);
  Affine<T, L> affine;
  affine.load(a.weight, kResidual ? nullptr : a.bias, cols);
  const int64_t row = L::row();
  wait_for_inputs();
  if (row >= a.rows) return;
  RowPacks<L, T> x;
  load_row<L>(x, static_cast<const T*>(a.x) + row * a.x_stride, cols, 0.0f);
  if constexpr (kResidual) {  // the residual takes the place of the bias
    load_row<L>(affine.bias, static_cast<const T*>(a.residual) + row * a.residual_stride, cols,
                0.0f);
  }
  float v[L::kElements];
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) v[i] = element<L, T>(x, i);
  normalize<T, L>(v, cols, centered, a.eps);
  affine.stay_packed();
  affine.apply(v);
  store_row<L>(static_cast<T*>(a.out) + row * a.out_stride, v, cols);
}

template <class T>
__global__ void __launch_bounds__(kWideBlock) norm_wide_rows(NormArguments a, bool centered) {
  let_next_start();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const int cols = static_cast<int>(a.cols);
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
  const T* residual = static_cast<const T*>(a.residual) + row * a.residual_stride;
  T* out = static_cast<T*>(a.out) + row * a.out_stride;
  normalize_wide_row(out, x, a.weight, a.residual ? residual : a.bias, cols, centered, a.eps,
                     [&](float (&v)[Vector<T>::kSize], int c) { read_part(v, x, c, cols, 0.0f); });
}

// Normalises in place; row r is head r % heads of token r / heads.
template <class T, class L>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm)
    norm_heads(T* x, int64_t x_stride, const T* weight, int64_t rows, int heads, int head_dim,
               float eps) {
  let_next_start();
  RowPacks<L, T> weights, packs;
  load_row<L>(weights, weight, head_dim, 0.0f);
  const int64_t row = L::row();
  wait_for_inputs();
  if (row >= rows) return;
  T* const head = x + row / heads * x_stride + row % heads * head_dim;
  load_row<L>(packs, static_cast<const T*>(head), head_dim, 0.0f);
  float v[L::kElements];
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) v[i] = element<L, T>(packs, i);
  normalize<T, L>(v, head_dim, false, eps);
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) v[i] *= element<L, T>(weights, i);
  store_row<L>(head, v, head_dim);
}

template <class T>
void norm(const NormArguments& a, bool centered, const Stream& stream) {
  const bool vectors = a.cols % Vector<T>::kSize == 0 && vectors_fit<T>(a.x, a.x_stride) &&
                       vectors_fit<T>(a.out, a.out_stride) && vectors_fit<T>(a.weight, 0) &&
                       vectors_fit<T>(a.bias, 0) && vectors_fit<T>(a.residual, a.residual_stride);
  const bool held = with_row_layout<T>(a.cols, vectors, [&](auto layout) {
    using L = decltype(layout);
    const auto kernel = a.residual ? norm_rows<T, L, true> : norm_rows<T, L, false>;
    launch(kernel, L::grid(a.rows), L::kBlock, 0, stream, a, centered);
  });
  if (!held) launch(norm_wide_rows<T>, a.rows, kWideBlock, 0, stream, a, centered);
}

}  // namespace

template <class T>
void layer_norm(const NormArguments& a, const Stream& stream) {
  norm<T>(a, true, stream);
}

template <class T>
void rms_norm(const NormArguments& a, const Stream& stream) {
  norm<T>(a, false, stream);
}

template <class T>
void rms_norm_add(const NormArguments& a, const Stream& stream) {
  norm<T>(a, false, stream);
}

// There is no kernel for wide heads: head_dim is at most 4096, for which a layout exists.
template <class T>
void rms_norm_heads(void* x, int64_t x_stride, const void* weight, int64_t tokens, int64_t heads,
                    int64_t head_dim, float eps, const Stream& stream) {
  const bool vectors =
      head_dim % Vector<T>::kSize == 0 && vectors_fit<T>(x, x_stride) && vectors_fit<T>(weight, 0);
  const bool held = with_row_layout<T>(head_dim, vectors, [&](auto layout) {
    using L = decltype(layout);
    launch(norm_heads<T, L>, L::grid(tokens * heads), L::kBlock, 0, stream, static_cast<T*>(x),
           x_stride, static_cast<const T*>(weight), tokens * heads, static_cast<int>(heads),
           static_cast<int>(head_dim), eps);
  });
  if (!held) fail("rms_norm_heads: head_dim: got ", head_dim, ", wanted at most 4096 on CUDA");
}

#define INSTANTIATE(T)                                                                           \
  template void layer_norm<T>(const NormArguments&, const Stream&);                              \
  template void rms_norm<T>(const NormArguments&, const Stream&);                                \
  template void rms_norm_add<T>(const NormArguments&, const Stream&);                            \
  template void rms_norm_heads<T>(void*, int64_t, const void*, int64_t, int64_t, int64_t, float, \
                                  const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
