// Scratch memory of the backward pass of attention.
#pragma once

#include <cstdint>

#include "core/stream.h"

namespace fusewire::cuda {

// Returns scratch memory of `count` floats for the sums of dout * out of a batch. Each stream has
// its own, since its kernels run one after another. A larger count allocates a larger block, at
// least twice as large as the last one. No block is ever freed, because CUDA graphs hold their
// addresses.
float* attention_dots(int64_t count, const Stream& stream);

}  // namespace fusewire::cuda
