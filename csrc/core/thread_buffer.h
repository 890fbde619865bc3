// Scratch memory of a thread, which its calls of kernels reuse.
#pragma once

#include <cstddef>

namespace fusewire {

// Returns at least `bytes` of uninitialised host memory, valid until this thread calls again. The
// buffer only grows, comes from the process's allocator, and is freed when the thread ends.
void* thread_buffer(size_t bytes);

}  // namespace fusewire
