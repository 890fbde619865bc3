#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "cuda/attention/attention_dots.h"
#include "cuda/runtime/relaxed_capture.h"

namespace fusewire::cuda {
namespace {

constexpr int64_t kFewest = int64_t{1} << 18;

struct Blocks {
  std::vector<std::shared_ptr<void>> all;  // the last block is the largest
  int64_t count = 0;                       // floats in the last block
};

}  // namespace

float* attention_dots(int64_t count, const Stream& stream) {
  static auto* mutex = new std::mutex;
  static auto* of_streams = new std::map<std::pair<int, void*>, Blocks>;
  std::lock_guard lock(*mutex);
  Blocks& blocks = (*of_streams)[{stream.device.index, stream.handle}];
  if (blocks.count < count) {
    const int64_t larger = std::max({count, 2 * blocks.count, kFewest});
    const RelaxedCapture relaxed;
    blocks.all.push_back(
        default_allocator(stream.device)
            .allocate_uncached(static_cast<size_t>(larger) * sizeof(float), "attention", stream));
    blocks.count = larger;
  }
  return static_cast<float*>(blocks.all.back().get());
}

}  // namespace fusewire::cuda
