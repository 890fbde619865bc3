// What a kernel leaves for the next one of the same op.
#pragma once

#include <cstddef>

#include "core/stream.h"

namespace fusewire::cuda {

// At least `bytes` of the stream's own, for its work is serial; the next op that asks has the same
// memory. It is kept for ever, and so is a smaller one that it outgrew, for graphs hold addresses:
// a graph that was captured on a stream is replayed on it, or in its order.
void* kept_memory(const Stream& stream, size_t bytes);

}  // namespace fusewire::cuda
