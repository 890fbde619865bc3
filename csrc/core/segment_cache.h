// The caching policy of the allocator, for one thread at a time: segments from the device, split
// into blocks, merged when neighbours are free, kept for the stream that freed them, never more
// than the cap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/free_lists.h"
#include "core/raw_memory.h"
#include "core/stream.h"

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
  Block* take_uncached(size_t bytes);
  void give_back(Block* block) noexcept;

  size_t trim() noexcept;  // returns every free segment to the device; bytes given back
  void set_cap(size_t bytes);
  void reset_peaks() { stats_.peak_reserved_bytes = stats_.reserved_bytes; }
  const SegmentStats& stats() const { return stats_; }
  Device device() const { return device_; }

 private:
  struct StreamLists {
    void* stream;
    FreeLists small;
    FreeLists large;
  };

  StreamLists& lists_of(const Stream& stream);
  Block* hit(size_t size, FreeLists& lists);
  Block* new_slab(size_t size, FreeLists* home);
  Block* new_segment(size_t bytes, FreeLists* home);
  void release_segment(Block* block) noexcept;
  void split(Block* block, size_t size);
  void absorb_right(Block* block) noexcept;
  Block* new_record();
  void drop_record(Block* block) noexcept;

  std::shared_ptr<RawMemory> raw_;
  const Device device_;
  const size_t unit_;
  SegmentStats stats_;
  std::vector<std::unique_ptr<StreamLists>> lists_;
  std::deque<Block> records_;
  Block* spare_records_ = nullptr;  // linked by next_free
};

}  // namespace fusewire
