// Casts fp32 numbers to the element type of the kernels, which on the CPU is fp32.
#include <cstring>

#include "core/threads.h"
#include "core/training_kernels.h"
#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {

void cast(void* out, const float* x, int64_t count, const Stream&) {
  constexpr int64_t kGrain = 1 << 14;  // elements per task
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end, int) {
    std::memcpy(static_cast<float*>(out) + begin, x + begin,
                static_cast<size_t>(end - begin) * sizeof(float));
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
