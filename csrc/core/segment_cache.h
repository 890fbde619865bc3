// The caching policy of the allocator, for one thread at a time: segments from the device, split
// into blocks, merged when neighbours are free, kept for the stream that freed them, never more
// than the cap.
//
// A stream finds memory, in this order: what it freed itself; whole segments of other streams whose
// work on them is finished; the device; and when the device has no more, after waiting for every
// stream, anything that is free.
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
  size_t cap_bytes = 0;  // of reserved bytes; 0: none
  uint64_t segments = 0;
  uint64_t raw_allocations = 0;  // calls to the device, since the beginning
  uint64_t raw_releases = 0;
  uint64_t cache_hits = 0;
  uint64_t splits = 0;
  uint64_t merges = 0;
  // Streams: segments that went from one to another, blocks lent by one to another under pressure,
  // times the host waited for one, and blocks let go that another stream may still use.
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

  // A block of at least `bytes`, or null when neither the cache nor the device has one within the
  // cap. Memory of the host is poisoned (core/poison.h) outside blocks.
  Block* take(size_t bytes, const Stream& stream);
  // The same as a segment of its own, which `give_back` returns to the device.
  Block* take_uncached(size_t bytes, const Stream& stream);
  // What was given to the block's streams before this call may still run. An uncached block waits.
  void give_back(Block* block) noexcept;

  // `stream` works on a block that was taken for another.
  void used_by(Block* block, const Stream& stream);
  // `stream` is about to be destroyed.
  void forget(const Stream& stream);

  // Returns every free segment whose work is finished to the device; bytes given back.
  size_t trim() noexcept;
  void set_cap(size_t bytes);
  void reset_peaks() { stats_.peak_reserved_bytes = stats_.reserved_bytes; }
  SegmentStats stats() const;
  Device device() const { return device_; }
  size_t device_free_bytes() const { return raw_->free_bytes(); }
  // Waits for all work on the device; false, having done nothing, while a stream is captured.
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
