#include "core/torch_allocator.h"

#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "core/allocator.h"
#include "core/error.h"

namespace fusewire {
namespace {

using PoolKey = std::pair<int, FusewireTorchPoolId>;  // device, id

struct Held {
  std::shared_ptr<void> block;
  size_t bytes = 0;
  Stream stream;
  const PoolKey* pool = nullptr;  // null: of no graph's pool
  bool shared = false;            // also used by another stream
};

// The memory pool of graphs that may be replayed one after another, never concurrently.
struct Pool {
  std::function<bool(CUstream_st*)> accepts;  // empty between captures
  int users = 0;                              // graphs captured with it and not released yet
  std::multimap<size_t, Held> idle;           // keyed by bytes
};

class TorchMemory {
 public:
  void* allocate(size_t bytes, const Stream& stream);
  void free(void* data);
  void used_by(void* data, CUstream_st* stream);
  void trim();

  void begin(const PoolKey& key, std::function<bool(CUstream_st*)> accepts);
  void end(const PoolKey& key);
  void release(const PoolKey& key);

 private:
  using Pools = std::map<PoolKey, Pool>;

  Pools::iterator pool_of(const Stream& stream);
  static Held take_idle(Pool& pool, size_t bytes, const Stream& stream);
  void drop_released();

  std::mutex mutex_;
  std::unordered_map<void*, Held> held_;
  Pools pools_;
  std::set<int> devices_;       // devices that torch has used
  std::vector<Held> released_;  // from pools whose last replay may not have finished
};

// Never destroyed: torch frees memory while the process exits.
TorchMemory& torch_memory() {
  static auto* memory = new TorchMemory;
  return *memory;
}

Device cuda_device(int index) {
  return {DeviceType::kCuda, index};
}

void* TorchMemory::allocate(size_t bytes, const Stream& stream) {
  std::lock_guard lock(mutex_);
  if (!released_.empty()) drop_released();
  Held held{nullptr, bytes, stream};
  if (auto pool = pool_of(stream); pool != pools_.end()) {
    held = take_idle(pool->second, bytes, stream);
    held.pool = &pool->first;
  }
  if (!held.block) held.block = default_allocator(stream.device).allocate(bytes, "torch", stream);
  void* data = held.block.get();
  held_.insert_or_assign(data, std::move(held));
  devices_.insert(stream.device.index);
  return data;
}

void TorchMemory::free(void* data) {
  std::lock_guard lock(mutex_);
  auto found = held_.find(data);
  if (found == held_.end()) {
    std::fprintf(stderr, "fusewire: torch frees %p, which it did not get here; ignored\n", data);
    return;
  }
  Held held = std::move(found->second);
  held_.erase(found);
  if (!held.pool) return;
  if (auto pool = pools_.find(*held.pool); pool != pools_.end() && pool->second.users) {
    pool->second.idle.emplace(held.bytes, std::move(held));
  } else {
    released_.push_back(std::move(held));
  }
}

void TorchMemory::used_by(void* data, CUstream_st* stream) {
  std::lock_guard lock(mutex_);
  auto found = held_.find(data);
  if (found == held_.end()) return;  // an interior pointer or another allocator's
  const Device device = found->second.stream.device;
  found->second.shared = true;
  default_allocator(device).used_by(found->second.block, {device, stream});
}

void TorchMemory::trim() {
  std::lock_guard lock(mutex_);
  drop_released();
  for (int index : devices_) default_allocator(cuda_device(index)).trim();
}

TorchMemory::Pools::iterator TorchMemory::pool_of(const Stream& stream) {
  auto* handle = static_cast<CUstream_st*>(stream.handle);
  for (auto pool = pools_.begin(); pool != pools_.end(); ++pool) {
    const auto& accepts = pool->second.accepts;
    if (pool->first.first == stream.device.index && accepts && accepts(handle)) return pool;
  }
  return pools_.end();
}

// Returns an idle block at most an eighth larger than requested, and of the same stream only: the
// stream's order is the graph's.
Held TorchMemory::take_idle(Pool& pool, size_t bytes, const Stream& stream) {
  for (auto idle = pool.idle.lower_bound(bytes);
       idle != pool.idle.end() && idle->first <= bytes + bytes / 8; ++idle) {
    if (idle->second.stream.handle != stream.handle || idle->second.shared) continue;
    Held held = std::move(idle->second);
    pool.idle.erase(idle);
    return held;
  }
  return {nullptr, bytes, stream};
}

void TorchMemory::begin(const PoolKey& key, std::function<bool(CUstream_st*)> accepts) {
  std::lock_guard lock(mutex_);
  Pool& pool = pools_[key];
  ++pool.users;
  pool.accepts = std::move(accepts);
}

void TorchMemory::end(const PoolKey& key) {
  std::lock_guard lock(mutex_);
  if (auto pool = pools_.find(key); pool != pools_.end()) pool->second.accepts = nullptr;
}

void TorchMemory::release(const PoolKey& key) {
  std::lock_guard lock(mutex_);
  auto pool = pools_.find(key);
  if (pool == pools_.end() || --pool->second.users > 0) return;
  // The entry stays: blocks that are still held refer to it.
  for (auto& [bytes, held] : pool->second.idle) released_.push_back(std::move(held));
  pool->second.idle.clear();
  drop_released();
}

void TorchMemory::drop_released() {
  for (const auto& [key, pool] : pools_) {
    if (pool.accepts) return;  // a capture is in progress
  }
  for (int index : devices_) {
    // Replays may have run on any stream.
    if (!default_allocator(cuda_device(index)).finish()) return;
  }
  released_.clear();
}

}  // namespace
}  // namespace fusewire

using fusewire::cuda_device;
using fusewire::torch_memory;

void* fusewire_torch_malloc(ssize_t size, int device, CUstream_st* stream) {
  if (size < 0) fusewire::fail("torch: got a request of ", size, " bytes, wanted at least 0");
  return torch_memory().allocate(static_cast<size_t>(size), {cuda_device(device), stream});
}

void fusewire_torch_free(void* data, ssize_t, int, CUstream_st*) {
  if (data) torch_memory().free(data);
}

void fusewire_torch_record_stream(void* data, CUstream_st* stream) {
  torch_memory().used_by(data, stream);
}

void fusewire_torch_empty_cache() {
  torch_memory().trim();
}

void fusewire_torch_begin_pool(int device, FusewireTorchPoolId id,
                               std::function<bool(CUstream_st*)> accepts) {
  torch_memory().begin({device, id}, std::move(accepts));
}

void fusewire_torch_end_pool(int device, FusewireTorchPoolId id) {
  torch_memory().end({device, id});
}

void fusewire_torch_release_pool(int device, FusewireTorchPoolId id) {
  torch_memory().release({device, id});
}
