#include <map>
#include <mutex>
#include <vector>

#include "core/runtime.h"
#include "cuda/launch.h"
#include "cuda/runtime/pinned_memory.h"
#include "cuda/runtime/relaxed_capture.h"

namespace fusewire::cuda {
namespace {

constexpr size_t kLeast = size_t{1} << 14;

// The most blocks that are kept for reuse. If as many copies are in flight, as may happen with the
// weights of a model, the host waits for the oldest one.
constexpr size_t kMostIdle = 32;

struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<PinnedBlock>> idle;
};

Pool& pool() {
  static auto* all = new Pool;
  return *all;
}

}  // namespace

PinnedBlock take_pinned(int index, size_t bytes) {
  const CurrentDevice here({DeviceType::kCuda, index});  // reports errors: the event belongs to it
  const RelaxedCapture relaxed;
  {
    const std::lock_guard lock(pool().mutex);
    std::vector<PinnedBlock>& idle = pool().idle[index];
    for (auto block = idle.begin(); block != idle.end(); ++block) {
      if (block->bytes < bytes) continue;
      const cudaError_t status = cudaEventQuery(block->copied);
      if (status == cudaErrorNotReady) continue;
      check(status, "pinned memory");
      const PinnedBlock found = *block;
      idle.erase(block);
      return found;
    }
    if (idle.size() >= kMostIdle) {
      const PinnedBlock oldest = idle.front();
      check(cudaEventSynchronize(oldest.copied), "pinned memory");
      idle.erase(idle.begin());
      if (oldest.bytes >= bytes) return oldest;
      check(cudaFreeHost(oldest.data), "pinned memory");
      check(cudaEventDestroy(oldest.copied), "pinned memory");
    }
  }
  PinnedBlock made;
  made.bytes = kLeast;
  while (made.bytes < bytes) made.bytes *= 2;
  check(cudaEventCreateWithFlags(&made.copied, cudaEventDisableTiming), "pinned memory");
  const cudaError_t status = cudaHostAlloc(&made.data, made.bytes, cudaHostAllocDefault);
  if (status != cudaSuccess) cudaEventDestroy(made.copied);
  check(status, "pinned memory");
  return made;
}

void give_pinned(int index, const PinnedBlock& block) noexcept {
  const std::lock_guard lock(pool().mutex);
  pool().idle[index].push_back(block);
}

}  // namespace fusewire::cuda
