// Chooses the kernel of a packed attention by element type, shape and device.
#include "cuda/attention.h"
#include "cuda/element.h"
#include "cuda/kernels.h"

namespace fusewire::cuda {

// Sequences up to it are short: mma.sync's small tiles then waste less than wgmma's.
constexpr int64_t kShort = 64;

template <class T>
void attention(const AttentionArguments& a, const Stream& stream) {
  if (a.head_dim > kMaxHeadDim) {
    fail("attention: head_dim: got ", a.head_dim, ", wanted at most ", kMaxHeadDim, " on CUDA");
  }
  if constexpr (sizeof(T) == 4) {
    fp32_attention(a, stream);
  } else if (a.batch->max_seqlen() > kShort && sm90_attention_fits(a)) {
    sm90_attention<T>(a, stream);
  } else {
    flash_attention<T>(a, stream);
  }
}

#define INSTANTIATE(T) template void attention<T>(const AttentionArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
