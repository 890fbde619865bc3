// Chooses the kernels of the backward pass of attention by element type and shape.
#include "core/training_kernels.h"
#include "cuda/attention/attention_backward.h"

namespace fusewire::cuda {

template <class T>
void attention_backward(const AttentionBackwardArguments& g, const Stream& stream) {
  if constexpr (sizeof(T) == 2) {
    if (short_attention_backward_fits(g)) return short_attention_backward<T>(g, stream);
    if (sm90_attention_backward_fits(g)) return sm90_attention_backward<T>(g, stream);
    if (flash_attention_backward_fits(g)) return flash_attention_backward<T>(g, stream);
  }
  plain_attention_backward<T>(g, stream);
}

#define INSTANTIATE(T) \
  template void attention_backward<T>(const AttentionBackwardArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
