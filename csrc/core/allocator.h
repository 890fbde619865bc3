// CachingAllocator: every byte of a device that the process holds (weights, arenas, outputs) comes
// from here, under a tag that says what it is for. Memory is taken from the device in segments,
// split into blocks, merged again when neighbours are free, and reused at once by the stream that
// freed it. A hit never calls the device.
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

  // At least `bytes`, aligned as the device wants; freed when the last copy of the pointer goes,
  // which may be after the allocator itself. The block may be reused by `stream` without waiting,
  // so whoever used it on another stream synchronises before letting go. `tag` names a purpose
  // ("weights", "output"), not a request. Error when the cap or the device allows no more, after
  // what is cached was given back; the message lists the largest holders.
  std::shared_ptr<void> allocate(size_t bytes, std::string_view tag, const Stream& stream = {});

  // The same in a segment of its own that returns to the device when freed: for those who keep
  // large blocks for long and cache by themselves (an arena that grows leaves nothing behind).
  std::shared_ptr<void> allocate_uncached(size_t bytes, std::string_view tag,
                                          const Stream& stream = {});

  size_t trim();               // returns every free segment to the device; bytes given back
  void set_cap(size_t bytes);  // 0: none. Trims; blocks that are live above the cap stay
  void reset_peaks();
  AllocatorStats stats() const;
  std::vector<HolderStats> holders() const;  // live bytes by tag, largest first

 private:
  struct State;  // shared with the blocks, which may live longer
  std::shared_ptr<State> state_;
};

// The process's allocator of a device; never destroyed.
CachingAllocator& default_allocator(Device device = {});

// A tensor that owns its block. Error for a negative dimension or a size that overflows.
Tensor allocate_tensor(CachingAllocator& allocator, const Shape& shape, DType dtype,
                       std::string_view tag, const Stream& stream = {});

// Bytes of a dense tensor; the same error.
size_t checked_bytes(const Shape& shape, DType dtype);

// "1.5 GiB (1610612736 bytes)"
std::string bytes_text(size_t bytes);

}  // namespace fusewire
