// Attention of prompts whose context is not in the cache before this step.
#pragma once

#include "core/attention.h"
#include "core/stream.h"

namespace fusewire::cuda {

// The keys and values of such prompts are also rows beside their queries, where packed attention on
// Hopper reads them faster than any kernel reads pages. Returns the number of sequences before the
// prompts at the end of a batch that it computes: all of them, if there are no such prompts or it
// cannot compute them.
int64_t sequences_before_prompts(const AttentionArguments& a);

// Computes the attention of the sequences from `first` on, which are such prompts (T is __half or
// __nv_bfloat16).
template <class T>
void prompts_attention(const AttentionArguments& a, int64_t first, const Stream& stream);

}  // namespace fusewire::cuda
