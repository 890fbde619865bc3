// Hopper's matrix product of e4m3 with a scale per 128 elements of a row of x, and per 128 x 128
// elements of the weight (DeepSeek-V3, arXiv 2412.19437, section 3.3).
#include "cuda/gemm/sm90_gemm.h"
#include "cuda/gemm/sm90_gemm_launch.h"

namespace fusewire::cuda {

template <class T>
void sm90_gemm_float8_blocks(const GemmArguments& a, const Sm90Configuration& c,
                             const Stream& stream) {
  using sm90::LargeShape;
  if (c.split != 0) return sm90::launch_small_tile<T, Float8Block>(a, c, stream);
  if (c.tokens == 144) {
    return sm90::launch_large<T, Float8Block, LargeShape<144, false, 128, true>>(a, stream);
  }
  return sm90::launch_large<T, Float8Block, LargeShape<112, false, 128, true>>(a, stream);
}

template void sm90_gemm_float8_blocks<__half>(const GemmArguments&, const Sm90Configuration&,
                                              const Stream&);
template void sm90_gemm_float8_blocks<__nv_bfloat16>(const GemmArguments&, const Sm90Configuration&,
                                                     const Stream&);

}  // namespace fusewire::cuda
