// The functions of SegmentCache that concern several streams.
#include <algorithm>
#include <utility>

#include "core/segment_cache.h"

namespace fusewire {

StreamMemory& SegmentCache::memory_of(const Stream& stream) {
  for (auto& memory : memories_) {
    if (memory->belongs_to(stream)) return *memory;
  }
  for (auto& memory : memories_) {
    if (!memory->orphaned()) continue;
    memory->revive(stream);
    return *memory;
  }
  memories_.push_back(std::make_unique<StreamMemory>(*raw_, stream));
  return *memories_.back();
}

void SegmentCache::used_by(Block* block, const Stream& stream) {
  StreamMemory* memory = &memory_of(stream);
  auto& others = block->others;
  if (memory == block->stream) return;
  if (std::find(others.begin(), others.end(), memory) == others.end()) others.push_back(memory);
}

void SegmentCache::forget(const Stream& stream) {
  for (auto& memory : memories_) {
    if (memory->belongs_to(stream)) return memory->retire();
  }
}

// Called when the device has no more memory. A small block may then come from a large segment;
// whole segments return to the device; and finally every stream is waited for.
Block* SegmentCache::take_under_pressure(size_t size, bool small, StreamMemory& memory) {
  FreeLists& own = small ? memory.small : memory.large;
  Block* block = small ? hit(size, memory.large) : nullptr;
  if (!block && trim()) block = new_slab(size, memory, &own);
  if (block) return block;
  wait_for_streams();
  block = hit(size, own);
  if (!block && small) block = hit(size, memory.large);
  if (!block) block = adopt(size, small, memory);
  if (!block && trim()) block = new_slab(size, memory, &own);
  return block ? block : lend(size, memory);
}

bool SegmentCache::wait_for(StreamMemory& memory) noexcept {
  if (memory.poll()) return true;
  if (!memory.wait()) return false;
  ++stats_.stream_waits;
  return true;
}

// Returns true if it had to wait. Runs under the allocator's lock: other threads would only find
// the same lack of memory.
bool SegmentCache::wait_for_streams() noexcept {
  const uint64_t before = stats_.stream_waits;
  for (auto& memory : memories_) wait_for(*memory);
  settle_passed();
  return stats_.stream_waits != before;
}

bool SegmentCache::finish() noexcept {
  for (auto& memory : memories_) {
    memory->new_point();
    if (!wait_for(*memory)) return false;
  }
  return raw_->finish();
}

// Takes a whole segment of another stream, so that all blocks of a segment have one owner and can
// be merged.
Block* SegmentCache::adopt(size_t size, bool small, StreamMemory& memory) {
  for (auto& other : memories_) {
    if (other.get() == &memory) continue;
    FreeLists& lists = small ? other->small : other->large;
    bool asked = false;
    Block* block = lists.take_if(size, [&](const Block& candidate) {
      if (!candidate.whole_segment()) return false;
      if (!other->passed(candidate.freed_at) && !std::exchange(asked, true)) other->poll();
      return other->passed(candidate.freed_at);
    });
    if (!block) continue;
    block->free = false;
    lists.segment_bytes -= block->bytes;
    block->home = small ? &memory.small : &memory.large;
    block->home->segment_bytes += block->bytes;
    block->stream = &memory;
    block->freed_at = 0;  // `memory` has not used it yet
    ++stats_.segments_adopted;
    return block;
  }
  return nullptr;
}

// Lends a part of another stream's segment, which returns there when this stream has finished with
// it.
Block* SegmentCache::lend(size_t size, StreamMemory& memory) {
  for (auto& other : memories_) {
    if (other.get() == &memory) continue;
    for (FreeLists* lists : {&other->small, &other->large}) {
      Block* block = lists->take_if(
          size, [&](const Block& candidate) { return other->passed(candidate.freed_at); });
      if (!block) continue;
      block->free = false;
      block->others.push_back(&memory);
      ++stats_.blocks_lent;
      return block;
    }
  }
  return nullptr;
}

}  // namespace fusewire
