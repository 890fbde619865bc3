// Dropout with the residual that follows it, and in a backward pass the sums of the columns of what
// it gives.
#include "cuda/kernels.h"
#include "cuda/rows/row.h"
#include "cuda/training/column_strips.h"
#include "cuda/training/dropout.h"

namespace fusewire::cuda {
namespace {

struct DropoutArguments {
  void* out;
  const void *x, *residual;
  int64_t out_stride, x_stride, residual_stride, cols;
  Dropout dropout;
};

// kDropoutGroup columns of a row, which share a counter, as packs of kWidth elements. Packs beyond
// the last column are neither read nor written.
template <class T, int kWidth>
struct Group {
  Pack<T, kWidth> packs[kDropoutGroup / kWidth];

  template <class Body>  // body(pack, offset)
  __device__ __forceinline__ void for_each(int columns, Body&& body) {
#pragma unroll
    for (int i = 0; i < kDropoutGroup / kWidth; ++i) {
      if (i * kWidth < columns) body(packs[i], i * kWidth);
    }
  }
  __device__ __forceinline__ void load(const T* from, int columns) {
    for_each(columns, [&](Pack<T, kWidth>& pack, int at) {
      pack = *reinterpret_cast<const Pack<T, kWidth>*>(from + at);
    });
  }
  __device__ __forceinline__ void store(T* to, int columns) {
    for_each(columns, [&](const Pack<T, kWidth>& pack, int at) {
      *reinterpret_cast<Pack<T, kWidth>*>(to + at) = pack;
    });
  }
};

// As many loads of a thread are in flight as leave it 64 registers.
template <class T, int kWidth, bool kResidual>
__global__ void __launch_bounds__(kStripBlock, kStripBlocksPerSm)
    dropout_elements(ColumnStrips strips, DropoutArguments a) {
  struct Inputs {
    Group<T, kWidth> x, residual;
  };
  let_next_start();
  wait_for_inputs();
  const int cols = static_cast<int>(a.cols);
  const RowDropout dropout(a.dropout);
  sum_strip<kDropoutGroup, kResidual ? 1 : 2>(
      strips,
      [&](int r, int c) {
        Inputs in = {};
        in.x.load(static_cast<const T*>(a.x) + r * a.x_stride + c, cols - c);
        if constexpr (kResidual) {
          in.residual.load(static_cast<const T*>(a.residual) + r * a.residual_stride + c, cols - c);
        }
        return in;
      },
      [&](const Inputs& in, int r, int c, float (&v)[kDropoutGroup]) {
#pragma unroll
        for (int j = 0; j < kDropoutGroup; ++j)
          v[j] = to_float(in.x.packs[j / kWidth].at[j % kWidth]);
        dropout.apply(v, r, c);
        Group<T, kWidth> out;
#pragma unroll
        for (int j = 0; j < kDropoutGroup; ++j) {
          if constexpr (kResidual) v[j] += to_float(in.residual.packs[j / kWidth].at[j % kWidth]);
          T& rounded = out.packs[j / kWidth].at[j % kWidth];
          rounded = from_float<T>(v[j]);
          v[j] = to_float(rounded);
        }
        out.store(static_cast<T*>(a.out) + r * a.out_stride + c, cols - c);
      });
}

template <class T, int kWidth>
auto kernel_of(const DropoutArguments& a) {
  return a.residual ? dropout_elements<T, kWidth, true> : dropout_elements<T, kWidth, false>;
}

}  // namespace

template <class T>
void dropout_add(void* out, int64_t out_stride, float* sums, const void* x, int64_t x_stride,
                 const void* residual, int64_t residual_stride, int64_t rows, int64_t cols,
                 const Dropout& dropout, bool accumulate, const Stream& stream) {
  const DropoutArguments a = {out,  x,      residual, out_stride, x_stride, residual_stride,
                              cols, dropout};
  constexpr int n = std::min(Vector<T>::kSize, kDropoutGroup);
  const bool vectors = cols % n == 0 && vectors_fit<T>(x, x_stride) &&
                       vectors_fit<T>(out, out_stride) && vectors_fit<T>(residual, residual_stride);
  launch_strips<kDropoutGroup>(vectors ? kernel_of<T, n>(a) : kernel_of<T, 1>(a), sums, rows, cols,
                               accumulate, stream, a);
}

#define INSTANTIATE(T)                                                                             \
  template void dropout_add<T>(void*, int64_t, float*, const void*, int64_t, const void*, int64_t, \
                               int64_t, int64_t, const Dropout&, bool, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
