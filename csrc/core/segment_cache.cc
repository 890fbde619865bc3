#include "core/segment_cache.h"

#include <algorithm>

#include "core/poison.h"

namespace fusewire {
namespace {

// Small blocks keep to segments of their own: a long-lived bias in the middle of a large segment
// would keep it from ever being whole again.
constexpr size_t kSmallBlock = size_t{256} << 10;
constexpr size_t kSegmentStep = size_t{2} << 20;
constexpr size_t kLargestSlab = size_t{32} << 20;

}  // namespace

SegmentCache::SegmentCache(std::shared_ptr<RawMemory> raw, size_t cap_bytes)
    : raw_(std::move(raw)), device_(raw_->device()), unit_(raw_->alignment()) {
  stats_.cap_bytes = cap_bytes;
}

SegmentCache::~SegmentCache() {
  trim();
}

Block* SegmentCache::take(size_t bytes, const Stream& stream) {
  size_t size = round_up(std::max(bytes, size_t{1}), unit_);
  StreamLists& lists = lists_of(stream);
  bool small = size <= kSmallBlock;
  FreeLists& own = small ? lists.small : lists.large;
  Block* block = hit(size, own);
  if (!block) block = new_slab(size, &own);
  // Under pressure a small block may come from a large segment.
  if (!block && small) block = hit(size, lists.large);
  if (!block && trim()) block = new_slab(size, &own);
  if (block && block->bytes > size) split(block, size);
  return block;
}

Block* SegmentCache::take_uncached(size_t bytes) {
  size_t size = round_up(std::max(bytes, size_t{1}), raw_->page());
  Block* block = new_segment(size, nullptr);
  if (!block && trim()) block = new_segment(size, nullptr);
  return block;
}

void SegmentCache::give_back(Block* block) noexcept {
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

size_t SegmentCache::trim() noexcept {
  size_t before = stats_.reserved_bytes;
  for (auto& lists : lists_) {
    lists->small.take_whole_segments([this](Block* block) { release_segment(block); });
    lists->large.take_whole_segments([this](Block* block) { release_segment(block); });
  }
  return before - stats_.reserved_bytes;
}

void SegmentCache::set_cap(size_t bytes) {
  stats_.cap_bytes = bytes;
  if (bytes && stats_.reserved_bytes > bytes) trim();
}

SegmentCache::StreamLists& SegmentCache::lists_of(const Stream& stream) {
  for (auto& lists : lists_) {
    if (lists->stream == stream.handle) return *lists;
  }
  lists_.push_back(std::make_unique<StreamLists>(
      StreamLists{stream.handle, FreeLists(unit_), FreeLists(unit_)}));
  return *lists_.back();
}

Block* SegmentCache::hit(size_t size, FreeLists& lists) {
  Block* block = lists.take(size);
  if (!block) return nullptr;
  block->free = false;
  ++stats_.cache_hits;
  return block;
}

// Segments grow with the process, so device calls are few and slack stays near an eighth.
Block* SegmentCache::new_slab(size_t size, FreeLists* home) {
  size_t slab = std::min(stats_.reserved_bytes / 8, kLargestSlab);
  if (Block* block = new_segment(round_up(std::max(size, slab), kSegmentStep), home)) return block;
  return new_segment(round_up(size, raw_->page()), home);
}

Block* SegmentCache::new_segment(size_t bytes, FreeLists* home) {
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
  drop_record(block);
}

void SegmentCache::split(Block* block, size_t size) {
  Block* rest = new_record();
  rest->data = block->data + size;
  rest->bytes = block->bytes - size;
  rest->home = block->home;
  rest->free = true;
  rest->left = block;
  rest->right = block->right;
  if (rest->right) rest->right->left = rest;
  block->right = rest;
  block->bytes = size;
  rest->home->insert(rest);
  ++stats_.splits;
}

// Neither is in a list.
void SegmentCache::absorb_right(Block* block) noexcept {
  Block* right = block->right;
  block->bytes += right->bytes;
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
