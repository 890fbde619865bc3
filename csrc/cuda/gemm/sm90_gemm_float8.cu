// Hopper's matrix product of e4m3 with a scale per row of x and of the weight.
#include "cuda/gemm/sm90_gemm.h"
#include "cuda/gemm/sm90_gemm_launch.h"

namespace fusewire::cuda {

template <class T>
void sm90_gemm_float8(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream) {
  using sm90::LargeShape;
  if (c.split != 0) return sm90::launch_small_tile<T, __nv_fp8_e4m3>(a, c, stream);
  if (c.tokens == 152) {
    return sm90::launch_large<T, __nv_fp8_e4m3, LargeShape<152, false>>(a, stream);
  }
  return sm90::launch_large<T, __nv_fp8_e4m3, LargeShape<120, false>>(a, stream);
}

template void sm90_gemm_float8<__half>(const GemmArguments&, const Sm90Configuration&,
                                       const Stream&);
template void sm90_gemm_float8<__nv_bfloat16>(const GemmArguments&, const Sm90Configuration&,
                                              const Stream&);

}  // namespace fusewire::cuda
