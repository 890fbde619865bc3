// A block that Python holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/error.h"

namespace fusewire {

struct Buffer {
  std::shared_ptr<void> block;
  size_t bytes;

  uintptr_t data() const {
    if (!block) fail("buffer: got a freed one, wanted its address; allocate again");
    return reinterpret_cast<uintptr_t>(block.get());
  }
};

}  // namespace fusewire
