#include "cuda/attention/attention.h"
#include "cuda/paged/paged_prompts.h"

namespace fusewire::cuda {
namespace {

// The longest prompt must exceed the 64 queries of a block of packed attention.
constexpr int64_t kLeastTokens = 65;

AttentionArguments packed(const AttentionArguments& a, const SequenceBatch& prompts) {
  AttentionArguments found = a;
  found.queries = found.keys = &prompts;
  found.pages = nullptr;
  return found;
}

}  // namespace

int64_t sequences_before_prompts(const AttentionArguments& a) {
  const SequenceBatch& batch = *a.queries;
  const int64_t all = batch.sequences();
  if (!a.k.data || !batch.begin() || a.cache_format.float8) return all;
  const int32_t* const offsets = batch.begin();
  int64_t first = all;
  while (first > 0 &&
         offsets[first] - offsets[first - 1] == a.pages->context_lengths()[first - 1]) {
    --first;
  }
  if (first == all) return all;
  const SequenceBatch prompts = batch.section(first, all);
  const bool fits =
      prompts.max_seqlen() >= kLeastTokens && sm90_masked_attention_fits(packed(a, prompts));
  return fits ? first : all;
}

template <class T>
void prompts_attention(const AttentionArguments& a, int64_t first, const Stream& stream) {
  const SequenceBatch prompts = a.queries->section(first, a.queries->sequences());
  sm90_masked_attention<T>(packed(a, prompts), stream);
}

#define INSTANTIATE(T) \
  template void prompts_attention<T>(const AttentionArguments&, int64_t, const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
