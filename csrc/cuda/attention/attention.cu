// Chooses the kernel of packed attention by element type, shape and device.
#include "cuda/attention/attention.h"
#include "cuda/element.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

// Returns whether the large tiles of wgmma waste less than the small ones of mma.sync. They do for
// long sequences, and where all tiles run at once anyway.
bool large_tiles_pay(const AttentionArguments& a) {
  const SequenceBatch& batch = *a.queries;
  return batch.max_seqlen() > 64 || batch.query_tiles(64) * a.heads <= multiprocessors();
}

}  // namespace

template <class T>
const char* attention_lacks(const AttentionArguments& a) {
  if (a.pages && a.dropout.probability > 0) return "dropout over pages";
  static_assert(kMaxHeadDim == 256);
  if (a.head_dim > kMaxHeadDim) return "a head_dim of more than 256";
  if (a.pages && a.log_sum_exp) return "log_sum_exp over pages";
  if (a.cache_format.float8 && sizeof(T) == 4) return "a cache in float8_e4m3 with float32";
  return nullptr;
}

template <class T>
void attention(const AttentionArguments& a, const Stream& stream) {
  if constexpr (sizeof(T) == 4) {
    fp32_attention(a, stream);
  } else if (split_attention_fits(a)) {
    split_attention<T>(a, stream);
  } else if (short_attention_fits(a)) {
    short_attention<T>(a, stream);
  } else if (large_tiles_pay(a) && sm90_attention_fits(a)) {
    sm90_attention<T>(a, stream);
  } else if (sm90_masked_attention_fits(a)) {
    sm90_masked_attention<T>(a, stream);
  } else {
    flash_attention<T>(a, stream);
  }
}

#define INSTANTIATE(T)                                                \
  template const char* attention_lacks<T>(const AttentionArguments&); \
  template void attention<T>(const AttentionArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
