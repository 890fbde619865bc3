// Chooses the kernel of paged attention by element type and shape.
#include "cuda/element.h"
#include "cuda/kernels.h"
#include "cuda/paged/paged_attention.h"
#include "cuda/paged/paged_prompts.h"
#include "cuda/paged/paged_sources.h"

namespace fusewire::cuda {

template <class T>
void paged_attention(const AttentionArguments& a, const Stream& stream) {
  if constexpr (sizeof(T) == 4) {
    paged_fp32_attention(a, stream);
  } else if (const int64_t others = sequences_before_prompts(a); others < a.pages->sequences()) {
    prompts_attention<T>(a, others, stream);
    if (others == 0) return;
    AttentionArguments rest = a;
    const PagedBatch pages = a.pages->first(others);
    rest.pages = &pages;
    rest.queries = &pages.batch();
    paged_attention<T>(rest, stream);
  } else if (paged_sources_attention<T>(a, stream)) {
    return;
  } else if (paged_short_fits(a)) {
    paged_short_attention<T>(a, stream);
  } else {
    paged_mma_attention<T>(a, stream);
  }
}

template <class T>
bool cached_attention(const AttentionArguments& a, const RotaryArguments* rotary,
                      const Stream& stream) {
  if constexpr (sizeof(T) == 4) {
    return false;
  } else {
    if (!rotary && cached_short_attention<T>(a, stream)) return true;
    return sm90_cached_attention<T>(a, rotary, stream);
  }
}

#define INSTANTIATE(T)                                                                 \
  template void paged_attention<T>(const AttentionArguments&, const Stream&);          \
  template bool cached_attention<T>(const AttentionArguments&, const RotaryArguments*, \
                                    const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
