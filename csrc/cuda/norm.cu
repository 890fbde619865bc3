// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), with the residual fused in front.
#include "cuda/kernels.h"
#include "cuda/norm.h"

namespace fusewire::cuda {
namespace {

// Every row has threads of its own. What hides a row's latency are the others that a multiprocessor
// has room for; a loop that fetches the next row leaves room for fewer, and was slower at any size.
template <class T, class L, bool kResidual>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm)
    norm_rows(NormArguments a, bool centered) {
  let_next_start();
  const int cols = static_cast<int>(a.cols);
  Affine<T, L> affine;
  affine.load(a.weight, a.bias, cols);
  const int64_t row = L::row();
  wait_for_inputs();
  if (row >= a.rows) return;
  RowPacks<L, T> x, residual;
  load_row<L>(x, static_cast<const T*>(a.x) + row * a.x_stride, cols, 0.0f);
  if constexpr (kResidual) {
    load_row<L>(residual, static_cast<const T*>(a.residual) + row * a.residual_stride, cols, 0.0f);
  }
  float v[L::kElements];
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) {
    v[i] = element<L, T>(x, i);
    if constexpr (kResidual) v[i] += element<L, T>(residual, i);
  }
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
  normalize_wide_row(out, x, a.weight, a.bias, cols, centered, a.eps,
                     [&](float (&v)[Vector<T>::kSize], int c) {
                       read_part(v, x, c, cols, 0.0f);
                       if (a.residual) add_part(v, residual, c, cols);
                     });
}

template <class T>
void norm(const NormArguments& a, bool centered, const Stream& stream) {
  const bool vectors = a.cols % Vector<T>::kSize == 0 && vectors_fit<T>(a.x, a.x_stride) &&
                       vectors_fit<T>(a.out, a.out_stride) && vectors_fit<T>(a.weight, 0) &&
                       vectors_fit<T>(a.bias, 0) && vectors_fit<T>(a.residual, a.residual_stride);
  const bool held = with_row_layout<T>(a.cols, vectors, [&](auto layout) {
    using L = decltype(layout);
    launch(a.residual ? norm_rows<T, L, true> : norm_rows<T, L, false>, L::grid(a.rows), L::kBlock,
           0, stream, a, centered);
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

#define INSTANTIATE(T)                                              \
  template void layer_norm<T>(const NormArguments&, const Stream&); \
  template void rms_norm<T>(const NormArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
