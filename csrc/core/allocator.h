// CachingAllocator: every byte of a device that the process holds (weights, arenas, outputs) comes
// from here, under a tag that says what it is for. Memory is taken from the device in segments,
// split into blocks, merged again when neighbours are free, and reused at once by the stream that
// freed it, by others when that stream's work is finished. A hit never calls the device.
//
// What a captured graph touches must be held as long as the graph: the allocator cannot see
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

  // At least `bytes`, aligned as the device wants; freed when the last copy of the pointer goes,
  // which may be after the allocator itself. The block may be reused by `stream` without waiting,
  // so whoever uses it on another stream says so (`used_by`) or synchronises before letting go.
  // `tag` names a purpose
  // ("weights", "output"), not a request. Error when the cap or the device allows no more, after
  // what is cached was given back; the message lists the largest holders.
  std::shared_ptr<void> allocate(size_t bytes, std::string_view tag, const Stream& stream = {});

  // The same in a segment of its own that returns to the device when freed: for those who keep
  // large blocks for long and cache by themselves (an arena that grows leaves nothing behind).
  // Letting go waits for the streams that use it.
  std::shared_ptr<void> allocate_uncached(size_t bytes, std::string_view tag,
                                          const Stream& stream = {});

  // `stream` works on a block that was allocated for another: its memory is reused only when the
  // work that `stream` was given before the block was let go is finished. Error for a pointer that
  // this allocator did not give.
  void used_by(const std::shared_ptr<void>& block, const Stream& stream);

  // Before `stream` is destroyed, when everything was submitted that it will ever do: what is free
  // for it goes to others, and a new stream at the same address is not taken for it. Error while it
  // is being captured.
  void forget(const Stream& stream);

  // Waits for all work on the device; false while a stream that has memory here is being captured.
  bool finish();

  // Returns every free segment whose work is finished to the device, without waiting; bytes given
  // back.
  size_t trim();
  // What the device could still give, to anybody; not counted: what is cached here.
  size_t free_bytes() const;
  void set_cap(size_t bytes);  // 0: none. Trims; blocks that are live above the cap stay
  void reset_peaks();
  AllocatorStats stats() const;
  std::vector<HolderStats> holders() const;  // live bytes by tag, largest first

 private:
  friend void forget_stream(const Stream& stream);

  struct State;  // shared with the blocks, which may live longer
  struct Everyone;
  std::shared_ptr<State> state_;
};

// The process's allocator of a device; never destroyed.
CachingAllocator& default_allocator(Device device = {});

// `forget` in every allocator of the stream's device.
void forget_stream(const Stream& stream);

// A tensor that owns its block. Error for a negative dimension or a size that overflows.
Tensor allocate_tensor(CachingAllocator& allocator, const Shape& shape, DType dtype,
                       std::string_view tag, const Stream& stream = {});

// Bytes of a dense tensor; the same error.
size_t checked_bytes(const Shape& shape, DType dtype);

// "1.5 GiB (1610612736 bytes)"
std::string bytes_text(size_t bytes);

}  // namespace fusewire
