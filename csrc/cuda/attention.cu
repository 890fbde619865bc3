// Chooses the kernel of a packed attention by element type, shape and device.
#include "cuda/attention.h"
#include "cuda/element.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

// Whether wgmma's large tiles waste less than mma.sync's small ones: on long sequences, and where
// all tiles run at once in either case.
bool large_tiles_pay(const AttentionArguments& a) {
  return a.batch->max_seqlen() > 64 || a.batch->query_tiles(64) * a.heads <= multiprocessors();
}

}  // namespace

template <class T>
void attention(const AttentionArguments& a, const Stream& stream) {
  if (a.head_dim > kMaxHeadDim) {
    fail("attention: head_dim: got ", a.head_dim, ", wanted at most ", kMaxHeadDim, " on CUDA");
  }
  if constexpr (sizeof(T) == 4) {
    fp32_attention(a, stream);
  } else if (split_attention_fits(a)) {
    split_attention<T>(a, stream);
  } else if (large_tiles_pay(a) && sm90_attention_fits(a)) {
    sm90_attention<T>(a, stream);
  } else {
    flash_attention<T>(a, stream);
  }
}

#define INSTANTIATE(T) template void attention<T>(const AttentionArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
