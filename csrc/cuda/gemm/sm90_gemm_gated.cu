// Hopper's matrix product of 16-bit operands with a gated unit in its epilogue.
#include "cuda/gemm/sm90_gemm.h"
#include "cuda/gemm/sm90_gemm_launch.h"

namespace fusewire::cuda {

template <class T>
void sm90_gemm_gated(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream) {
  sm90::launch_tile<T, sm90::Gated<T>>(a, c, stream);
}

template void sm90_gemm_gated<__half>(const GemmArguments&, const Sm90Configuration&,
                                      const Stream&);
template void sm90_gemm_gated<__nv_bfloat16>(const GemmArguments&, const Sm90Configuration&,
                                             const Stream&);

}  // namespace fusewire::cuda
