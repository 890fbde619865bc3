// Scratch memory for results that one kernel of an op passes to the next.
#pragma once

#include <cstddef>

#include "core/stream.h"

namespace fusewire::cuda {

// Returns scratch memory of at least `bytes`. Each stream has its own, since its kernels run one
// after another; the next op that calls it receives the same memory. It is never freed, nor is a
// smaller block that it has outgrown, because graphs hold addresses: a graph that was captured on a
// stream is replayed on that stream or ordered with it.
void* kept_memory(const Stream& stream, size_t bytes);

}  // namespace fusewire::cuda
