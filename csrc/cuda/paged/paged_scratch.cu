#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/allocator.h"
#include "cuda/launch.h"
#include "cuda/paged/paged_scratch.h"
#include "cuda/runtime/relaxed_capture.h"

namespace fusewire::cuda {
namespace {

constexpr size_t kCounterBytes = kScratchCounters * sizeof(int32_t);

// Clears memory immediately, even while a graph is being captured: it does not become part of the
// graph.
void set_to_zero(void* memory, size_t bytes) {
  cudaStream_t now;
  check(cudaStreamCreateWithFlags(&now, cudaStreamNonBlocking), "stream");
  cudaError_t status = cudaMemsetAsync(memory, 0, bytes, now);
  if (status == cudaSuccess) status = cudaStreamSynchronize(now);
  cudaStreamDestroy(now);
  check(status, "attention's counters");
}

}  // namespace

PagedScratch paged_scratch_of(const Stream& stream) {
  static auto* mutex = new std::mutex;
  static auto* blocks = new std::map<std::pair<int, void*>, std::shared_ptr<void>>;
  std::lock_guard lock(*mutex);
  std::shared_ptr<void>& block = (*blocks)[{stream.device.index, stream.handle}];
  if (!block) {
    const RelaxedCapture relaxed;
    auto fresh = default_allocator(stream.device)
                     .allocate_uncached(kCounterBytes + kScratchPartBytes, "attention", stream);
    set_to_zero(fresh.get(), kCounterBytes);
    block = std::move(fresh);
  }
  char* memory = static_cast<char*>(block.get());
  return {reinterpret_cast<int32_t*>(memory), memory + kCounterBytes};
}

}  // namespace fusewire::cuda
