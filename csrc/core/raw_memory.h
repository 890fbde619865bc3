// Where the caching allocator's segments come from: the operating system on the CPU, the driver on
// a GPU. A device adds one RawMemory and registers it; nothing above asks which one it has.
#pragma once

#include <cstddef>
#include <memory>

#include "core/device.h"
#include "core/stream.h"

namespace fusewire {

// Whether the work that a stream had been given by some point is finished. Unknown: the device
// cannot tell now (the stream is being captured into a graph); ask again later.
enum class Progress { kDone, kPending, kUnknown };

class RawMemory {
 public:
  virtual ~RawMemory() = default;

  virtual Device device() const = 0;
  virtual size_t alignment() const = 0;  // of every block carved from a segment; a power of two
  virtual size_t page() const = 0;       // bytes; segments are whole pages, `alignment` divides it

  // What the device could still give, to anybody; 0 where it cannot tell.
  virtual size_t free_bytes() { return 0; }

  // Whole pages, or null when the device has no more.
  virtual void* allocate(size_t bytes) = 0;
  // Returns what `allocate` gave, after the device's pending work on it has finished.
  virtual void release(void* data, size_t bytes) noexcept = 0;

  // How far a stream has come. Memory that one stream used goes to another only once the first has
  // passed a mark set after its use. The defaults are those of a device whose work is finished when
  // a call returns. One thread at a time.
  //
  // kPending: `*mark` is the end of what the stream was given so far; drop it in the end.
  virtual Progress set_mark(const Stream& /*stream*/, void** /*mark*/) noexcept {
    return Progress::kDone;
  }
  virtual bool passed(void* /*mark*/) noexcept { return true; }
  virtual bool wait(void* /*mark*/) noexcept { return true; }  // false: it cannot be waited for
  virtual void drop(void* /*mark*/) noexcept {}
  // Waits for everything the device was given, on any stream; false when that fails. Breaks a
  // capture that is under way.
  virtual bool finish() noexcept { return true; }
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
