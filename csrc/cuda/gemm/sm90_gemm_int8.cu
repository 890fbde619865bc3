// Hopper's matrix product of int8 with a scale per row of x and of the weight. Sums are exact, so
// it uses the tiles of 16-bit operands, and a row has the same bits with each of them.
#include "cuda/gemm/sm90_gemm.h"
#include "cuda/gemm/sm90_gemm_launch.h"

namespace fusewire::cuda {

template <class T>
void sm90_gemm_int8(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream) {
  using sm90::LargeShape;
  if (c.split != 0) return sm90::launch_small_tile<T, int8_t>(a, c, stream);
  const auto run = [&](auto shape) { sm90::launch_large<T, int8_t, decltype(shape)>(a, stream); };
  if (c.ping_pong) {
    if (c.tokens == 176) return run(LargeShape<176, true>{});
    if (c.tokens == 144) return run(LargeShape<144, true>{});
    return run(LargeShape<112, true>{});
  }
  if (c.tokens == 256) return run(LargeShape<256, false>{});
  if (c.tokens == 224) return run(LargeShape<224, false>{});
  if (c.tokens == 176) return run(LargeShape<176, false>{});
  if (c.tokens == 144) return run(LargeShape<144, false>{});
  return run(LargeShape<112, false>{});
}

template void sm90_gemm_int8<__half>(const GemmArguments&, const Sm90Configuration&, const Stream&);
template void sm90_gemm_int8<__nv_bfloat16>(const GemmArguments&, const Sm90Configuration&,
                                            const Stream&);

}  // namespace fusewire::cuda
