#include <map>
#include <mutex>
#include <vector>

#include "cuda/launch.h"
#include "cuda/runtime/current_device.h"
#include "cuda/runtime/pinned_memory.h"
#include "cuda/runtime/relaxed_capture.h"

namespace fusewire::cuda {
namespace {

constexpr size_t kLeast = size_t{1} << 14;

// Kept for ever: there are as many as copies were under way at a time.
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
  const Here here(index);
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
