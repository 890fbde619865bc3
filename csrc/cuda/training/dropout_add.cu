// Dropout with the residual that follows it.
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/rows/tile.h"
#include "cuda/training/dropout.h"

namespace fusewire::cuda {
namespace {

struct DropoutArguments {
  void* out;
  const void *x, *residual;
  int64_t out_stride, x_stride, residual_stride, rows, cols;
  Dropout dropout;
};

// kDropoutGroup neighbouring columns to a thread, which share a counter, as packs of kWidth
// elements.
template <class T, int kWidth>
__global__ void __launch_bounds__(256) dropout_elements(DropoutArguments a) {
  constexpr int n = kDropoutGroup / kWidth;
  using P = Pack<T, kWidth>;
  let_next_start();
  wait_for_inputs();
  const int64_t first = tile_access<1>(0) * kDropoutGroup;
  if (first >= a.cols) return;
  const RowDropout dropout(a.dropout);
  for (int64_t row = tile_row(); row < a.rows; row += tile_row_step()) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride + first;
    const T* residual = static_cast<const T*>(a.residual) + row * a.residual_stride + first;
    T* out = static_cast<T*>(a.out) + row * a.out_stride + first;
    P packs[n] = {}, more[n] = {};
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (first + i * kWidth >= a.cols) continue;
      packs[i] = *reinterpret_cast<const P*>(x + i * kWidth);
      if (a.residual) more[i] = *reinterpret_cast<const P*>(residual + i * kWidth);
    }
    float v[kDropoutGroup];
#pragma unroll
    for (int i = 0; i < kDropoutGroup; ++i) v[i] = to_float(packs[i / kWidth].at[i % kWidth]);
    dropout.apply(v, row, first);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (first + i * kWidth >= a.cols) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        float y = v[i * kWidth + j];
        if (a.residual) y += to_float(more[i].at[j]);
        packs[i].at[j] = from_float<T>(y);
      }
      *reinterpret_cast<P*>(out + i * kWidth) = packs[i];
    }
  }
}

}  // namespace

template <class T>
void dropout_add(void* out, int64_t out_stride, const void* x, int64_t x_stride,
                 const void* residual, int64_t residual_stride, int64_t rows, int64_t cols,
                 const Dropout& dropout, const Stream& stream) {
  const DropoutArguments a = {out,  x,    residual, out_stride, x_stride, residual_stride,
                              rows, cols, dropout};
  const bool vectors = cols % Vector<T>::kSize == 0 && vectors_fit<T>(x, x_stride) &&
                       vectors_fit<T>(out, out_stride) && vectors_fit<T>(residual, residual_stride);
  const Tiles tiles = tiles_of<1>(rows, (cols + kDropoutGroup - 1) / kDropoutGroup);
  launch(vectors ? dropout_elements<T, Vector<T>::kSize> : dropout_elements<T, 1>, tiles.grid,
         tiles.block, 0, stream, a);
}

#define INSTANTIATE(T)                                                                     \
  template void dropout_add<T>(void*, int64_t, const void*, int64_t, const void*, int64_t, \
                               int64_t, int64_t, const Dropout&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
