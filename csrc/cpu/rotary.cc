// Rotary position embedding (RoFormer, Su et al. 2021), in place on the q and k of packed rows.
#include "core/error.h"
#include "core/kernels.h"
#include "core/threads.h"

namespace fusewire::FUSEWIRE_TARGET {

void rotary(const RotaryArguments& a, const Stream&) {
  const int64_t half = a.rotary_dim / 2;
  parallel_for(a.tokens, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = a.positions[t];
      if (position < 0 || position >= a.angles) {
        fail("rotary: position: got ", position, ", wanted 0 to ", a.angles - 1);
      }
      const float* c = a.cos + position * half;
      const float* s = a.sin + position * half;
      float* row = static_cast<float*>(a.qkv) + t * a.stride;
      for (int64_t head = 0; head < a.rotated_heads; ++head, row += a.head_dim) {
        for (int64_t d = 0; d < half; ++d) {
          const float x = row[d], y = row[d + half];
          row[d] = x * c[d] - y * s[d];
          row[d + half] = y * c[d] + x * s[d];
        }
      }
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
