// Scratch memory of the backward pass of attention.
#pragma once

#include <cstdint>

#include "core/stream.h"

namespace fusewire::cuda {

// `count` floats of the stream's own, for its work is serial: the sums of dout * out of a batch.
// A larger count gets a larger block, at least twice the last one; all are kept for ever, for
// graphs hold their addresses.
float* attention_dots(int64_t count, const Stream& stream);

}  // namespace fusewire::cuda
