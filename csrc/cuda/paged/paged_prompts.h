// Attention of prompts of which the cache had nothing.
#pragma once

#include "core/attention.h"
#include "core/stream.h"

namespace fusewire::cuda {

// The keys and values of such prompts are rows beside their queries, too, where Hopper's packed
// attention reads them faster than any kernel reads pages. How many sequences there are in front of
// those that end a batch: all, where there are none, or another kernel computes them.
int64_t sequences_before_prompts(const AttentionArguments& a);

// Of the sequences from `first` on, which are such prompts (T is __half or __nv_bfloat16).
template <class T>
void prompts_attention(const AttentionArguments& a, int64_t first, const Stream& stream);

}  // namespace fusewire::cuda
