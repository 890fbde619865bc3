// The caching policy of the allocator; not thread-safe. Takes segments from the device, never more
// than the cap, splits them into blocks, merges free neighbours, and keeps free blocks for the
// stream that freed them.
//
// A stream gets memory from, in this order: what it freed itself; whole segments of other streams
// whose work on them has finished; the device; and when the device has no more, after waiting for
// every stream, any free block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/free_lists.h"
#include "core/raw_memory.h"
#include "core/stream.h"
#include "core/stream_memory.h"
#include "core/waiting_blocks.h"

namespace fusewire {

struct SegmentStats {
  size_t reserved_bytes = 0;  // in segments held from the device
  size_t peak_reserved_bytes = 0;
  size_t cap_bytes = 0;  // limit of reserved bytes; 0: none
  uint64_t segments = 0;
  uint64_t raw_allocations = 0;  // calls to the device, since the beginning
  uint64_t raw_releases = 0;
  uint64_t cache_hits = 0;
  uint64_t splits = 0;
  uint64_t merges = 0;
  // Streams: segments that moved from one to another, blocks lent by one to another under memory
  // pressure, times the host waited for a stream, and freed blocks that another stream may still
  // use.
  uint64_t segments_adopted = 0;
  uint64_t blocks_lent = 0;
  uint64_t stream_waits = 0;
  uint64_t waiting_blocks = 0;
  size_t waiting_bytes = 0;
};

class SegmentCache {
 public:
  SegmentCache(std::shared_ptr<RawMemory> raw, size_t cap_bytes);
  ~SegmentCache();
  SegmentCache(const SegmentCache&) = delete;
  SegmentCache& operator=(const SegmentCache&) = delete;

  // Returns a block of at least `bytes`, or null if neither the cache nor the device has one within
  // the cap. Host memory outside of blocks is poisoned (core/poison.h).
  Block* take(size_t bytes, const Stream& stream);
  // As `take`, but in a segment of its own, which `give_back` returns to the device.
  Block* take_uncached(size_t bytes, const Stream& stream);
  // Frees a block, while work submitted to its streams before may still run. Waits for that work if
  // the block is uncached.
  void give_back(Block* block) noexcept;

  // Declares that `stream` uses a block that was taken for another stream.
  void used_by(Block* block, const Stream& stream);
  // To be called when `stream` is about to be destroyed.
  void forget(const Stream& stream);

  // Gives every free segment whose work has finished back to the device; returns the number of
  // bytes.
  size_t trim() noexcept;
  void set_cap(size_t bytes);
  void reset_peaks() { stats_.peak_reserved_bytes = stats_.reserved_bytes; }
  SegmentStats stats() const;
  Device device() const { return device_; }
  size_t device_free_bytes() const { return raw_->free_bytes(); }
  // Waits for all work on the device. Returns false while a stream is being captured.
  bool finish() noexcept;

 private:
  StreamMemory& memory_of(const Stream& stream);
  Block* hit(size_t size, FreeLists& lists);
  Block* adopt(size_t size, bool small, StreamMemory& memory);
  Block* lend(size_t size, StreamMemory& memory);
  Block* take_under_pressure(size_t size, bool small, StreamMemory& memory);
  bool wait_for(StreamMemory& memory) noexcept;
  bool wait_for_streams() noexcept;
  void settle(Block* block) noexcept;
  void settle_passed() noexcept;

  Block* new_slab(size_t size, StreamMemory& memory, FreeLists* home);
  Block* new_segment(size_t bytes, StreamMemory& memory, FreeLists* home);
  void release_segment(Block* block) noexcept;
  void split(Block* block, size_t size);
  void absorb_right(Block* block) noexcept;
  Block* new_record();
  void drop_record(Block* block) noexcept;

  std::shared_ptr<RawMemory> raw_;
  const Device device_;
  const size_t unit_;
  SegmentStats stats_;
  std::vector<std::unique_ptr<StreamMemory>> memories_;
  WaitingBlocks waiting_;
  std::deque<Block> records_;
  Block* spare_records_ = nullptr;  // linked by next_free
};

}  // namespace fusewire
