#include "core/allocator.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "core/poison.h"
#include "core/segment_cache.h"

namespace fusewire {
namespace {

constexpr size_t kLargestRequest = size_t{1} << 62;  // rounding up more could overflow
constexpr size_t kHoldersShown = 5;

struct Holder {
  std::string tag;
  size_t bytes = 0;
  uint64_t blocks = 0;
};

}  // namespace

struct CachingAllocator::State : std::enable_shared_from_this<State> {
  State(std::shared_ptr<RawMemory> raw, size_t cap_bytes) : cache(std::move(raw), cap_bytes) {}

  std::shared_ptr<void> allocate(size_t bytes, std::string_view tag, const Stream& stream,
                                 bool cached);
  void release(Block* block, Holder* holder) noexcept;
  Block* block_of(const std::shared_ptr<void>& pointer) const;
  size_t trim();
  std::vector<HolderStats> holders_by_size() const;

  std::mutex mutex;
  SegmentCache cache;
  size_t allocated = 0;
  size_t peak_allocated = 0;
  uint64_t live_blocks = 0;

 private:
  Holder* holder_of(std::string_view tag);
  [[noreturn]] void out_of_memory(size_t bytes, std::string_view tag) const;

  // Releases the block of a pointer when the last copy goes, and maps a pointer to its block.
  struct Deleter {
    std::shared_ptr<State> state;
    Block* block;
    Holder* holder;

    void operator()(void*) const noexcept { state->release(block, holder); }
  };

  // The keys point into the holders' own strings.
  std::unordered_map<std::string_view, std::unique_ptr<Holder>> holders_;
};

std::shared_ptr<void> CachingAllocator::State::allocate(size_t bytes, std::string_view tag,
                                                        const Stream& stream, bool cached) {
  std::unique_lock lock(mutex);
  Holder* holder = holder_of(tag);
  Block* block = nullptr;
  if (bytes <= kLargestRequest) {
    block = cached ? cache.take(bytes, stream) : cache.take_uncached(bytes, stream);
  }
  if (!block) out_of_memory(bytes, tag);
  holder->bytes += block->bytes;
  ++holder->blocks;
  ++live_blocks;
  allocated += block->bytes;
  peak_allocated = std::max(peak_allocated, allocated);
  lock.unlock();
  unpoison(cache.device(), block->data, bytes);
  return {block->data, Deleter{shared_from_this(), block, holder}};
}

Block* CachingAllocator::State::block_of(const std::shared_ptr<void>& pointer) const {
  const auto* deleter = std::get_deleter<Deleter>(pointer);
  if (!deleter || deleter->state.get() != this) {
    fail("memory: got a pointer that this allocator did not give, wanted a block of ",
         cache.device().text(), "; pass the tensor's owner as it was allocated");
  }
  return deleter->block;
}

void CachingAllocator::State::release(Block* block, Holder* holder) noexcept {
  std::lock_guard lock(mutex);
  holder->bytes -= block->bytes;
  --holder->blocks;
  --live_blocks;
  allocated -= block->bytes;
  cache.give_back(block);
}

size_t CachingAllocator::State::trim() {
  // Drop tags without live blocks, so that they do not accumulate.
  for (auto it = holders_.begin(); it != holders_.end();) {
    it = it->second->blocks ? std::next(it) : holders_.erase(it);
  }
  return cache.trim();
}

Holder* CachingAllocator::State::holder_of(std::string_view tag) {
  if (auto found = holders_.find(tag); found != holders_.end()) return found->second.get();
  auto holder = std::make_unique<Holder>();
  holder->tag = tag;
  std::string_view key = holder->tag;
  return holders_.emplace(key, std::move(holder)).first->second.get();
}

std::vector<HolderStats> CachingAllocator::State::holders_by_size() const {
  std::vector<HolderStats> result;
  for (const auto& [tag, holder] : holders_) {
    if (holder->blocks) result.push_back({holder->tag, holder->bytes, holder->blocks});
  }
  std::sort(result.begin(), result.end(), [](const HolderStats& a, const HolderStats& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.tag < b.tag;
  });
  return result;
}

void CachingAllocator::State::out_of_memory(size_t bytes, std::string_view tag) const {
  const SegmentStats segments = cache.stats();
  std::string holders_text;
  const auto holders = holders_by_size();
  for (size_t i = 0; i < std::min(holders.size(), kHoldersShown); ++i) {
    holders_text += std::string(i ? ", " : "") + "'" + holders[i].tag + "' " +
                    bytes_text(holders[i].bytes) + " in " + std::to_string(holders[i].blocks) +
                    (holders[i].blocks == 1 ? " block" : " blocks");
  }
  if (holders.size() > kHoldersShown) {
    holders_text += " and " + std::to_string(holders.size() - kHoldersShown) + " more";
  }
  fail_out_of_memory(cache.device().text(), "Got a request of ", bytes_text(bytes), " for '", tag,
                     "', wanted it within ",
                     segments.cap_bytes ? "the cap of " + bytes_text(segments.cap_bytes)
                                        : "what the device has (no cap is set)",
                     "; ", bytes_text(allocated), " are in use, ",
                     bytes_text(segments.reserved_bytes),
                     " reserved. Largest holders: ", holders.empty() ? "none" : holders_text,
                     "; raise the cap, release a holder or send smaller batches");
}

// The states of all allocators, so that forget_stream reaches each of them. Never destroyed: blocks
// may be freed while the process exits.
struct CachingAllocator::Everyone {
  std::mutex mutex;
  std::vector<std::weak_ptr<State>> states;

  static Everyone& get() {
    static auto* everyone = new Everyone;
    return *everyone;
  }
};

CachingAllocator::CachingAllocator(std::shared_ptr<RawMemory> raw, size_t cap_bytes)
    : state_(std::make_shared<State>(std::move(raw), cap_bytes)) {
  Everyone& everyone = Everyone::get();
  std::lock_guard lock(everyone.mutex);
  auto& states = everyone.states;
  states.erase(std::remove_if(states.begin(), states.end(), [](auto& s) { return s.expired(); }),
               states.end());
  states.push_back(state_);
}

void forget_stream(const Stream& stream) {
  auto& everyone = CachingAllocator::Everyone::get();
  std::lock_guard everyone_lock(everyone.mutex);
  for (auto& weak : everyone.states) {
    auto state = weak.lock();
    if (!state || state->cache.device() != stream.device) continue;
    std::lock_guard lock(state->mutex);
    state->cache.forget(stream);
  }
}

CachingAllocator::~CachingAllocator() {
  trim();
}

Device CachingAllocator::device() const {
  return state_->cache.device();
}

std::shared_ptr<void> CachingAllocator::allocate(size_t bytes, std::string_view tag,
                                                 const Stream& stream) {
  return state_->allocate(bytes, tag, stream, /*cached=*/true);
}

std::shared_ptr<void> CachingAllocator::allocate_uncached(size_t bytes, std::string_view tag,
                                                          const Stream& stream) {
  return state_->allocate(bytes, tag, stream, /*cached=*/false);
}

void CachingAllocator::used_by(const std::shared_ptr<void>& block, const Stream& stream) {
  std::lock_guard lock(state_->mutex);
  state_->cache.used_by(state_->block_of(block), stream);
}

void CachingAllocator::forget(const Stream& stream) {
  std::lock_guard lock(state_->mutex);
  state_->cache.forget(stream);
}

bool CachingAllocator::finish() {
  std::lock_guard lock(state_->mutex);
  return state_->cache.finish();
}

size_t CachingAllocator::trim() {
  std::lock_guard lock(state_->mutex);
  return state_->trim();
}

size_t CachingAllocator::free_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->cache.device_free_bytes();
}

void CachingAllocator::set_cap(size_t bytes) {
  std::lock_guard lock(state_->mutex);
  state_->cache.set_cap(bytes);
}

void CachingAllocator::reset_peaks() {
  std::lock_guard lock(state_->mutex);
  state_->peak_allocated = state_->allocated;
  state_->cache.reset_peaks();
}

AllocatorStats CachingAllocator::stats() const {
  std::lock_guard lock(state_->mutex);
  AllocatorStats stats;
  static_cast<SegmentStats&>(stats) = state_->cache.stats();
  stats.allocated_bytes = state_->allocated;
  stats.peak_allocated_bytes = state_->peak_allocated;
  stats.live_blocks = state_->live_blocks;
  return stats;
}

std::vector<HolderStats> CachingAllocator::holders() const {
  std::lock_guard lock(state_->mutex);
  return state_->holders_by_size();
}

CachingAllocator& default_allocator(Device device) {
  static auto* mutex = new std::mutex;
  static auto* allocators = new std::vector<std::unique_ptr<CachingAllocator>>;
  std::lock_guard lock(*mutex);
  for (auto& allocator : *allocators) {
    if (allocator->device() == device) return *allocator;
  }
  allocators->push_back(std::make_unique<CachingAllocator>(raw_memory(device)));
  return *allocators->back();
}

size_t checked_bytes(const Shape& shape, DType dtype) {
  size_t bytes = size_of(dtype);
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(shape[i]), &bytes)) {
      fail("shape: got ", shape.text(), " of ", name_of(dtype),
           ", wanted dimensions >= 0 whose product fits in memory; check the shape");
    }
  }
  return bytes;
}

Tensor allocate_tensor(CachingAllocator& allocator, const Shape& shape, DType dtype,
                       std::string_view tag, const Stream& stream) {
  std::shared_ptr<void> owner = allocator.allocate(checked_bytes(shape, dtype), tag, stream);
  void* data = owner.get();
  return {data, shape, dtype, allocator.device(), std::move(owner)};
}

std::string bytes_text(size_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = -1;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  const std::string exact = std::to_string(bytes) + " bytes";
  if (unit < 0) return exact;
  char rounded[32];
  std::snprintf(rounded, sizeof(rounded), "%.4g ", value);
  return rounded + std::string(kUnits[unit]) + " (" + exact + ")";
}

}  // namespace fusewire
