// Hopper's matrix product of e4m3 with a scale a row of x and of the weight.
#include "cuda/gemm/sm90_gemm.h"
#include "cuda/gemm/sm90_gemm_launch.h"

namespace fusewire::cuda {

template <class T>
void sm90_gemm_float8(const GemmArguments& a, int channels, int tokens, int split,
                      const Stream& stream) {
  using Element = __nv_fp8_e4m3;
  using sm90::LargeShape;
  using sm90::SmallShape;
  if (split == 0) {
    if (tokens == 152) return sm90::launch_large<T, Element, LargeShape<152, false>>(a, stream);
    return sm90::launch_large<T, Element, LargeShape<120, false>>(a, stream);
  }
  const auto run = [&](auto shape) {
    sm90::launch_small<T, Element, decltype(shape)>(a, split, stream);
  };
  if (channels == 64) {
    if (tokens == 16) return run(SmallShape<1, 16>{});
    if (tokens == 32) return run(SmallShape<1, 32>{});
    if (tokens == 64) return run(SmallShape<1, 64>{});
    return run(SmallShape<1, 128>{});
  }
  if (tokens == 32) return run(SmallShape<2, 32>{});
  if (tokens == 64) return run(SmallShape<2, 64>{});
  return run(SmallShape<2, 128>{});
}

template void sm90_gemm_float8<__half>(const GemmArguments&, int, int, int, const Stream&);
template void sm90_gemm_float8<__nv_bfloat16>(const GemmArguments&, int, int, int, const Stream&);

}  // namespace fusewire::cuda
