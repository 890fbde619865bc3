// Hopper's matrix product of 16-bit activations and int4 weights.
#include "cuda/gemm/sm90_gemm_launch.h"
#include "cuda/gemm/sm90_int4.h"

namespace fusewire::cuda {

namespace {

using sm90::Int4;
using sm90::LargeShape;
using sm90::SmallShape;

constexpr int kChannelBytes = sm90::WeightFeed<Int4<__half, true>>::kChannelBytes;

template <int kTokens>
using Large = LargeShape<kTokens, false, kChannelBytes>;
template <int kTokens>
using Small = SmallShape<2, kTokens, kChannelBytes>;

template <class T, bool kFine>
void run(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream) {
  using Element = Int4<T, kFine>;
  if (c.split == 0) {
    const auto go = [&](auto shape) { sm90::launch_large<T, Element, decltype(shape)>(a, stream); };
    if (c.tokens == 256) return go(Large<256>{});
    if (c.tokens == 224) return go(Large<224>{});
    if (c.tokens == 192) return go(Large<192>{});
    if (c.tokens == 160) return go(Large<160>{});
    if (c.tokens == 128) return go(Large<128>{});
    return go(Large<96>{});
  }
  const auto go = [&](auto shape) {
    sm90::launch_small<T, Element, decltype(shape)>(a, c.split, stream);
  };
  c.tokens == 128 ? go(Small<128>{}) : go(Small<64>{});
}

}  // namespace

template <class T>
void sm90_int4(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream) {
  a.weight.group == nibbles::kFineGroup ? run<T, true>(a, c, stream) : run<T, false>(a, c, stream);
}

template void sm90_int4<__half>(const GemmArguments&, const Sm90Configuration&, const Stream&);
template void sm90_int4<__nv_bfloat16>(const GemmArguments&, const Sm90Configuration&,
                                       const Stream&);

}  // namespace fusewire::cuda
