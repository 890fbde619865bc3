// Dropout, the residual that is added to it, and the LayerNorm of their sum, in one pass over rows
// that registers hold: what is summed is kept for the backward pass, and is normed as it is kept.
#include "cuda/kernels.h"
#include "cuda/rows/norm.h"
#include "cuda/training/dropout.h"

namespace fusewire::cuda {
namespace {

template <class T, class L>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm)
    drop_and_norm_rows(DropoutNormArguments a) {
  using P = Pack<T, L::kWidth>;
  let_next_start();
  wait_for_inputs();
  const int64_t row = L::row();
  if (row >= a.rows) return;
  const int cols = static_cast<int>(a.cols);
  RowPacks<L, T> x, residual;
  load_row<L>(x, static_cast<const T*>(a.x) + row * a.x_stride, cols, 0.0f);
  load_row<L>(residual, static_cast<const T*>(a.residual) + row * a.residual_stride, cols, 0.0f);
  const RowDropout dropout(a.dropout);
  T* const sums = static_cast<T*>(a.sum) + row * a.sum_stride;
  float v[L::kElements];
#pragma unroll
  for (int i = 0; i < L::kCount; ++i) {
    float part[L::kWidth];
#pragma unroll
    for (int j = 0; j < L::kWidth; ++j) part[j] = element<L, T>(x, i * L::kWidth + j);
    dropout.apply(part, row, L::column(i));
    P sum;
#pragma unroll
    for (int j = 0; j < L::kWidth; ++j) {
      sum.at[j] = from_float<T>(part[j] + element<L, T>(residual, i * L::kWidth + j));
      v[i * L::kWidth + j] = to_float(sum.at[j]);
    }
    if (L::column(i) < cols) *reinterpret_cast<P*>(sums + L::column(i)) = sum;
  }
  normalize<T, L>(v, cols, true, a.eps);
  store_affine_row<T, L>(static_cast<T*>(a.out) + row * a.out_stride, v, a.weight, a.bias, cols);
}

// False for rows that are not read as vectors, whose elements share a counter, and for those that
// no registers hold.
template <class T>
bool fused(const DropoutNormArguments& a, const Stream& stream) {
  const bool vectors = a.cols % Vector<T>::kSize == 0 && vectors_fit<T>(a.x, a.x_stride) &&
                       vectors_fit<T>(a.residual, a.residual_stride) &&
                       vectors_fit<T>(a.sum, a.sum_stride) && vectors_fit<T>(a.out, a.out_stride) &&
                       vectors_fit<T>(a.weight, 0) && vectors_fit<T>(a.bias, 0);
  return vectors && with_vector_layout<T>(a.cols, [&](auto layout) {
           using L = decltype(layout);
           launch(drop_and_norm_rows<T, L>, L::grid(a.rows), L::kBlock, 0, stream, a);
         });
}

}  // namespace

template <class T>
void dropout_add_layer_norm(const DropoutNormArguments& a, const Stream& stream) {
  if (fused<T>(a, stream)) return;
  dropout_add<T>(a.sum, a.sum_stride, nullptr, a.x, a.x_stride, a.residual, a.residual_stride,
                 a.rows, a.cols, a.dropout, false, stream);
  layer_norm<T>({a.out, a.sum, nullptr, a.weight, a.bias, a.out_stride, a.sum_stride, 0, a.rows,
                 a.cols, a.eps},
                stream);
}

#define INSTANTIATE(T) \
  template void dropout_add_layer_norm<T>(const DropoutNormArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
