// Chooses the kernel of an attention over paged keys and values by element type.
#include "cuda/attention.h"
#include "cuda/element.h"
#include "cuda/kernels.h"
#include "cuda/paged_attention.h"

namespace fusewire::cuda {

template <class T>
void paged_attention(const PagedAttentionArguments& a, const Stream& stream) {
  if (a.head_dim > kMaxHeadDim) {
    fail("paged_attention: head_dim: got ", a.head_dim, ", wanted at most ", kMaxHeadDim,
         " on CUDA");
  }
  if constexpr (sizeof(T) == 4) {
    paged_fp32_attention(a, stream);
  } else {
    paged_mma_attention<T>(a, stream);
  }
}

template <class T>
bool cached_attention(const PagedAttentionArguments& a, void* keys, void* values,
                      const RotaryArguments* rotary, const Stream& stream) {
  if constexpr (sizeof(T) == 4) {
    return false;
  } else {
    return sm90_cached_attention<T>(a, keys, values, rotary, stream);
  }
}

#define INSTANTIATE(T)                                                             \
  template void paged_attention<T>(const PagedAttentionArguments&, const Stream&); \
  template bool cached_attention<T>(const PagedAttentionArguments&, void*, void*,  \
                                    const RotaryArguments*, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
