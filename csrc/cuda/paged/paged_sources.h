// Attention of beams to their sources.
#pragma once

#include "core/attention.h"
#include "core/kernels.h"

namespace fusewire::cuda {

// Of one new token a sequence to all of its context, on tensor cores; false, and nothing done,
// where it is not that.
template <class T>
bool paged_sources_attention(const AttentionArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
