// LayerNorm and RMSNorm that quantise the rows they produce.
#include "cuda/gemm/quantize_row.h"
#include "cuda/kernels.h"
#include "cuda/rows/norm.h"

namespace fusewire::cuda {
namespace {

// As norm_rows, followed by quantisation of the output after it was rounded to T.
template <class T, class Code, class L>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm)
    quantize_norm_kernel(NormArguments a, QuantizeArguments q, bool centered) {
  let_next_start();
  const int cols = static_cast<int>(a.cols);
  Affine<T, L> affine;
  affine.load(a.weight, a.bias, cols);
  const int64_t row = L::row();
  wait_for_inputs();
  if (row >= a.rows) return;
  RowPacks<L, T> x;
  load_row<L>(x, static_cast<const T*>(a.x) + row * a.x_stride, cols, 0.0f);
  float v[L::kElements];
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) v[i] = element<L, T>(x, i);
  normalize<T, L>(v, cols, centered, a.eps);
  affine.stay_packed();
  affine.apply(v);
  T* out = static_cast<T*>(a.out) + row * a.out_stride;
#pragma unroll
  for (int i = 0; i < L::kCount; ++i) {
    Pack<T, L::kWidth> pack;
#pragma unroll
    for (int j = 0; j < L::kWidth; ++j) pack.at[j] = from_float<T>(v[i * L::kWidth + j]);
    x[i] = pack;
    if (L::column(i) < cols) *reinterpret_cast<Pack<T, L::kWidth>*>(out + L::column(i)) = pack;
  }
  quantize_row<Code, L, T>(q, x, row);
}

}  // namespace

template <class T, class Code>
void quantize_norm(const QuantizeArguments& q, const NormArguments& a, bool centered,
                   const Stream& stream) {
  const bool vectors = vectors_fit<T>(a.x, a.x_stride) && vectors_fit<T>(a.out, a.out_stride) &&
                       vectors_fit<T>(a.weight, 0) && vectors_fit<T>(a.bias, 0);
  const bool held = with_quantized_layout<T>(q, vectors, [&](auto layout) {
    using L = decltype(layout);
    launch(quantize_norm_kernel<T, Code, L>, L::grid(a.rows), L::kBlock, 0, stream, a, q, centered);
  });
  if (held) return;
  centered ? layer_norm<T>(a, stream) : rms_norm<T>(a, stream);
  quantize_rows<T, Code>(q, stream);
}

#define INSTANTIATE(T, Code)                                                                 \
  template void quantize_norm<T, Code>(const QuantizeArguments&, const NormArguments&, bool, \
                                       const Stream&);
INSTANTIATE(__half, __nv_fp8_e4m3)
INSTANTIATE(__nv_bfloat16, __nv_fp8_e4m3)
INSTANTIATE(__half, Float8Block)
INSTANTIATE(__nv_bfloat16, Float8Block)
INSTANTIATE(__half, int8_t)
INSTANTIATE(__nv_bfloat16, int8_t)
#undef INSTANTIATE

}  // namespace fusewire::cuda
