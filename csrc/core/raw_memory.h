// Where the caching allocator's segments come from: the operating system on the CPU, the driver on
// a GPU. A device adds one RawMemory and registers it; nothing above asks which one it has.
#pragma once

#include <cstddef>
#include <memory>

#include "core/device.h"

namespace fusewire {

class RawMemory {
 public:
  virtual ~RawMemory() = default;

  virtual Device device() const = 0;
  virtual size_t alignment() const = 0;  // of every block carved from a segment; a power of two
  virtual size_t page() const = 0;       // bytes; segments are whole pages, `alignment` divides it

  // Whole pages, or null when the device has no more.
  virtual void* allocate(size_t bytes) = 0;
  // Returns what `allocate` gave, after the device's pending work on it has finished.
  virtual void release(void* data, size_t bytes) noexcept = 0;
};

using RawMemoryFactory = std::shared_ptr<RawMemory> (*)(int index);

// Called once by each device's own file; the CPU is always there.
void register_raw_memory(DeviceType type, RawMemoryFactory factory);

// Error when this build has no memory for such a device.
std::shared_ptr<RawMemory> raw_memory(Device device);

constexpr size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace fusewire
