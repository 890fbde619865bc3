#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "cuda/runtime/kept_memory.h"
#include "cuda/runtime/relaxed_capture.h"

namespace fusewire::cuda {
namespace {

constexpr size_t kLeast = size_t{1} << 16;

struct Kept {
  std::vector<std::shared_ptr<void>> blocks;  // each at least twice as large as the last
  size_t bytes = 0;                           // size of the last block
};

}  // namespace

void* kept_memory(const Stream& stream, size_t bytes) {
  static auto* mutex = new std::mutex;
  static auto* streams = new std::map<std::pair<int, void*>, Kept>;
  std::lock_guard lock(*mutex);
  Kept& kept = (*streams)[{stream.device.index, stream.handle}];
  if (kept.blocks.empty() || kept.bytes < bytes) {
    size_t grown = kept.bytes ? 2 * kept.bytes : kLeast;
    while (grown < bytes) grown *= 2;
    const RelaxedCapture relaxed;
    kept.blocks.push_back(
        default_allocator(stream.device).allocate_uncached(grown, "kernels", stream));
    kept.bytes = grown;
  }
  return kept.blocks.back().get();
}

}  // namespace fusewire::cuda
