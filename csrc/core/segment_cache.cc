#include "core/segment_cache.h"

#include <algorithm>

#include "core/poison.h"

namespace fusewire {
namespace {

// Small blocks have segments of their own: a long-lived bias in the middle of a large segment would
// keep it from ever becoming whole again.
constexpr size_t kSmallBlock = size_t{256} << 10;
constexpr size_t kSegmentStep = size_t{2} << 20;
constexpr size_t kLargestSlab = size_t{16} << 20;

}  // namespace

SegmentCache::SegmentCache(std::shared_ptr<RawMemory> raw, size_t cap_bytes)
    : raw_(std::move(raw)), device_(raw_->device()), unit_(raw_->alignment()) {
  stats_.cap_bytes = cap_bytes;
}

SegmentCache::~SegmentCache() {
  wait_for_streams();
  // Blocks whose streams could not be waited for are freed here, too.
  waiting_.take_all([this](Block* block) { settle(block); });
  for (auto& memory : memories_) {
    for (FreeLists* lists : {&memory->small, &memory->large}) {
      lists->take_whole_segments(~uint64_t{0}, [this](Block* block) { release_segment(block); });
    }
  }
}

Block* SegmentCache::take(size_t bytes, const Stream& stream) {
  size_t size = round_up(std::max(bytes, size_t{1}), unit_);
  StreamMemory& memory = memory_of(stream);
  bool small = size <= kSmallBlock;
  FreeLists& own = small ? memory.small : memory.large;
  Block* block = hit(size, own);
  if (!block && waiting_.blocks()) {
    settle_passed();
    block = hit(size, own);
  }
  if (!block) block = adopt(size, small, memory);
  if (!block) block = new_slab(size, memory, &own);
  if (!block) block = take_under_pressure(size, small, memory);
  if (block && block->bytes > size) split(block, size);
  return block;
}

Block* SegmentCache::take_uncached(size_t bytes, const Stream& stream) {
  size_t size = round_up(std::max(bytes, size_t{1}), raw_->page());
  StreamMemory& memory = memory_of(stream);
  Block* block = new_segment(size, memory, nullptr);
  if (!block && trim()) block = new_segment(size, memory, nullptr);
  if (!block && wait_for_streams() && trim()) block = new_segment(size, memory, nullptr);
  return block;
}

void SegmentCache::give_back(Block* block) noexcept {
  block->freed_at = block->stream->new_point();
  if (block->home && block->others.empty()) return settle(block);
  StreamPoints points;
  for (StreamMemory* other : block->others) points.emplace_back(other, other->new_point());
  if (!block->home) points.emplace_back(block->stream, block->freed_at);
  block->others.clear();
  if (all_passed(points)) return settle(block);
  if (!block->home) {
    // A caller that caches large blocks itself asks for the next one at once: holding both would be
    // the peak that it wants to avoid.
    bool known = true;
    for (auto [stream, point] : points) known &= wait_for(*stream);
    if (known) return settle(block);
  }
  waiting_.add(block, std::move(points));
}

// Frees a block on which only its own stream may still be working.
void SegmentCache::settle(Block* block) noexcept {
  block->free = true;
  if (!block->home) return release_segment(block);
  poison(device_, block->data, block->bytes);
  if (block->right && block->right->free) {
    block->home->remove(block->right);
    absorb_right(block);
  }
  if (block->left && block->left->free) {
    block = block->left;
    block->home->remove(block);
    absorb_right(block);
  }
  block->home->insert(block);
}

void SegmentCache::settle_passed() noexcept {
  waiting_.take_passed([this](Block* block) { settle(block); });
}

size_t SegmentCache::trim() noexcept {
  size_t before = stats_.reserved_bytes;
  settle_passed();
  for (auto& memory : memories_) {
    memory->poll();
    for (FreeLists* lists : {&memory->small, &memory->large}) {
      lists->take_whole_segments(memory->last_passed(),
                                 [this](Block* block) { release_segment(block); });
    }
  }
  return before - stats_.reserved_bytes;
}

void SegmentCache::set_cap(size_t bytes) {
  stats_.cap_bytes = bytes;
  if (bytes && stats_.reserved_bytes > bytes) trim();
}

SegmentStats SegmentCache::stats() const {
  SegmentStats stats = stats_;
  stats.waiting_blocks = waiting_.blocks();
  stats.waiting_bytes = waiting_.bytes();
  return stats;
}

Block* SegmentCache::hit(size_t size, FreeLists& lists) {
  Block* block = lists.take(size);
  if (!block) return nullptr;
  block->free = false;
  ++stats_.cache_hits;
  return block;
}

// Segments grow with the total of their lists: device calls are few and slack stays near a
// sixteenth.
Block* SegmentCache::new_slab(size_t size, StreamMemory& memory, FreeLists* home) {
  size_t slab = std::min(home->segment_bytes / 16, kLargestSlab);
  size_t bytes = round_up(std::max(size, slab), kSegmentStep);
  if (Block* block = new_segment(bytes, memory, home)) return block;
  return new_segment(round_up(size, raw_->page()), memory, home);
}

Block* SegmentCache::new_segment(size_t bytes, StreamMemory& memory, FreeLists* home) {
  size_t cap = stats_.cap_bytes;
  if (cap && (bytes > cap || stats_.reserved_bytes > cap - bytes)) return nullptr;
  Block* block = new_record();
  block->data = static_cast<char*>(raw_->allocate(bytes));
  if (!block->data) {
    drop_record(block);
    return nullptr;
  }
  block->bytes = bytes;
  block->home = home;
  if (home) home->segment_bytes += bytes;
  block->stream = &memory;
  poison(device_, block->data, bytes);
  ++stats_.raw_allocations;
  ++stats_.segments;
  stats_.reserved_bytes += bytes;
  stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
  return block;
}

void SegmentCache::release_segment(Block* block) noexcept {
  raw_->release(block->data, block->bytes);
  ++stats_.raw_releases;
  --stats_.segments;
  stats_.reserved_bytes -= block->bytes;
  if (block->home) block->home->segment_bytes -= block->bytes;
  drop_record(block);
}

void SegmentCache::split(Block* block, size_t size) {
  Block* rest = new_record();
  rest->data = block->data + size;
  rest->bytes = block->bytes - size;
  rest->home = block->home;
  rest->stream = block->stream;
  rest->freed_at = block->freed_at;
  rest->free = true;
  rest->left = block;
  rest->right = block->right;
  if (rest->right) rest->right->left = rest;
  block->right = rest;
  block->bytes = size;
  rest->home->insert(rest);
  ++stats_.splits;
}

// Merges a block with its right neighbour. Neither may be in a list.
void SegmentCache::absorb_right(Block* block) noexcept {
  Block* right = block->right;
  block->bytes += right->bytes;
  block->freed_at = std::max(block->freed_at, right->freed_at);
  block->right = right->right;
  if (block->right) block->right->left = block;
  drop_record(right);
  ++stats_.merges;
}

Block* SegmentCache::new_record() {
  if (!spare_records_) return &records_.emplace_back();
  Block* block = spare_records_;
  spare_records_ = block->next_free;
  *block = {};
  return block;
}

void SegmentCache::drop_record(Block* block) noexcept {
  block->next_free = spare_records_;
  spare_records_ = block;
}

}  // namespace fusewire
