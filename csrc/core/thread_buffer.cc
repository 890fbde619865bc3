#include "core/thread_buffer.h"

#include "core/allocator.h"

namespace fusewire {

void* thread_buffer(size_t bytes) {
  thread_local std::shared_ptr<void> memory;
  thread_local size_t held = 0;
  if (bytes > held) {
    memory.reset();
    held = 0;
    const size_t grown = bytes + bytes / 2;  // contexts grow one token at a time
    memory = default_allocator().allocate(grown, "thread buffer");
    held = grown;
  }
  return memory.get();
}

}  // namespace fusewire
