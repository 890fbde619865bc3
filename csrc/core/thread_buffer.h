// Scratch of the calling thread between its calls of kernels.
#pragma once

#include <cstddef>

namespace fusewire {

// At least `bytes` of the host's memory, which nobody else uses and nobody has initialised, until
// this thread asks again. It only grows, from the process's allocator, and goes with the thread.
void* thread_buffer(size_t bytes);

}  // namespace fusewire
