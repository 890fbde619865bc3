// The source of the caching allocator's segments: the operating system on the CPU, the driver on a
// GPU. Each device registers one RawMemory; the code above does not depend on which it is.
#pragma once

#include <cstddef>
#include <memory>

#include "core/device.h"
#include "core/stream.h"

namespace fusewire {

// Whether the work that was submitted to a stream up to some point has finished. kUnknown: the
// device cannot tell now (the stream is being captured into a graph); ask again later.
enum class Progress { kDone, kPending, kUnknown };

class RawMemory {
 public:
  virtual ~RawMemory() = default;

  virtual Device device() const = 0;
  virtual size_t alignment() const = 0;  // of every block in a segment; a power of two
  virtual size_t page() const = 0;       // bytes; segments are pages; a multiple of alignment()

  // Returns the bytes that the device could still give to any process; 0 if it cannot tell.
  virtual size_t free_bytes() { return 0; }

  // Returns whole pages, or null if the device has no more.
  virtual void* allocate(size_t bytes) = 0;
  // Releases what `allocate` returned, after the device's pending work on it has finished.
  virtual void release(void* data, size_t bytes) noexcept = 0;

  // Progress of streams. Memory that one stream used goes to another only once the first has passed
  // a mark that was set after the use. The defaults are for a device whose work has finished when a
  // call returns. Not thread-safe.
  //
  // On kPending, `*mark` is the end of the work submitted to the stream so far; the caller must
  // `drop` it.
  virtual Progress set_mark(const Stream& /*stream*/, void** /*mark*/) noexcept {
    return Progress::kDone;
  }
  virtual bool passed(void* /*mark*/) noexcept { return true; }
  virtual bool wait(void* /*mark*/) noexcept { return true; }  // false: it cannot wait
  virtual void drop(void* /*mark*/) noexcept {}
  // Waits for all work submitted to the device, on any stream; returns false if that fails. Breaks
  // a capture in progress.
  virtual bool finish() noexcept { return true; }
};

using RawMemoryFactory = std::shared_ptr<RawMemory> (*)(int index);

// Called once by each device's own file; the CPU is registered from the start.
void register_raw_memory(DeviceType type, RawMemoryFactory factory);

// Returns the memory of a device. Error if this build has none for it.
std::shared_ptr<RawMemory> raw_memory(Device device);

constexpr size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace fusewire
