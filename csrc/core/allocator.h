// CachingAllocator: all memory of a device that the process holds (weights, arenas, outputs) is
// allocated here, under a tag that says what it is for. Memory is taken from the device in
// segments, which are split into blocks; free neighbours are merged. A free block is reused at once
// by the stream that freed it, and by other streams once that stream's work has finished. A cache
// hit never calls the device.
//
// Memory that a captured graph accesses must be held as long as the graph: the allocator cannot see
// replays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/raw_memory.h"
#include "core/segment_cache.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace fusewire {

struct AllocatorStats : SegmentStats {
  size_t allocated_bytes = 0;  // in live blocks
  size_t peak_allocated_bytes = 0;
  uint64_t live_blocks = 0;
};

struct HolderStats {
  std::string tag;
  size_t bytes = 0;
  uint64_t blocks = 0;
};

class CachingAllocator {
 public:
  explicit CachingAllocator(std::shared_ptr<RawMemory> raw, size_t cap_bytes = 0);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  Device device() const;

  // Returns at least `bytes` bytes, aligned as the device requires. They are freed when the last
  // copy of the pointer is destroyed, which may be after the allocator itself. `stream` may then
  // reuse the block without waiting, so a caller that uses it on another stream must call
  // `used_by`, or synchronise before it drops the pointer. `tag` names a purpose ("weights",
  // "output"), not a request. Error if the cap or the device allows no more, even after cached
  // memory was given back; the message lists the largest holders.
  std::shared_ptr<void> allocate(size_t bytes, std::string_view tag, const Stream& stream = {});

  // As `allocate`, but in a segment of its own that returns to the device when it is freed: for
  // callers that hold large blocks for long and cache them themselves (an arena that grows leaves
  // nothing behind). Freeing waits for the streams that use the block.
  std::shared_ptr<void> allocate_uncached(size_t bytes, std::string_view tag,
                                          const Stream& stream = {});

  // Declares that `stream` uses a block that was allocated for another stream. The memory is reused
  // only when the work that was submitted to `stream` before the block was freed has finished.
  // Error for a pointer that this allocator did not return.
  void used_by(const std::shared_ptr<void>& block, const Stream& stream);

  // To be called before `stream` is destroyed, when no more work will be submitted to it: its free
  // memory goes to other streams, and a new stream with the same handle is not mistaken for it.
  // Error while it is being captured.
  void forget(const Stream& stream);

  // Waits for all work on the device. Returns false while a stream that has memory here is being
  // captured.
  bool finish();

  // Gives every free segment whose work has finished back to the device, without waiting. Returns
  // the number of bytes given back.
  size_t trim();
  // Returns the bytes that the device could still give to any process, without what is cached here.
  size_t free_bytes() const;
  void set_cap(size_t bytes);  // 0: no cap. Trims; live blocks above the cap stay
  void reset_peaks();
  AllocatorStats stats() const;
  std::vector<HolderStats> holders() const;  // live bytes by tag, largest first

 private:
  friend void forget_stream(const Stream& stream);

  struct State;  // shared with the blocks, which may outlive the allocator
  struct Everyone;
  std::shared_ptr<State> state_;
};

// Returns the process's allocator of a device, which is never destroyed.
CachingAllocator& default_allocator(Device device = {});

// Calls `forget` on every allocator of the stream's device.
void forget_stream(const Stream& stream);

// Returns a tensor that owns its block. Error for a negative dimension or a size that overflows.
Tensor allocate_tensor(CachingAllocator& allocator, const Shape& shape, DType dtype,
                       std::string_view tag, const Stream& stream = {});

// Returns the bytes of a dense tensor, with the same errors.
size_t checked_bytes(const Shape& shape, DType dtype);

// Returns a size as text, such as "1.5 GiB (1610612736 bytes)".
std::string bytes_text(size_t bytes);

}  // namespace fusewire
