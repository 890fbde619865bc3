// Attention of beams to their source sequences (cross attention).
#pragma once

#include "core/attention.h"
#include "core/kernels.h"

namespace fusewire::cuda {

// Attention of one new token per sequence to all of its context, on tensor cores. Returns false,
// and does nothing, if it does not support the batch.
template <class T>
bool paged_sources_attention(const AttentionArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
