// Rotary position embedding (RoFormer, Su et al. 2021), in place on the q and k of packed rows.
#include "core/error.h"
#include "core/kernels.h"
#include "core/threads.h"

namespace fusewire::FUSEWIRE_TARGET {

void rotary(void* qkv, int64_t stride, const int32_t* positions, int64_t angles, const float* cos,
            const float* sin, int64_t tokens, int64_t turning, int64_t head_dim, int64_t rotary_dim,
            const Stream&) {
  const int64_t half = rotary_dim / 2;
  parallel_for(tokens, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      if (positions[t] < 0 || positions[t] >= angles) {
        fail("rotary: position: got ", positions[t], ", wanted 0 to ", angles - 1);
      }
      const float* c = cos + positions[t] * half;
      const float* s = sin + positions[t] * half;
      float* row = static_cast<float*>(qkv) + t * stride;
      for (int64_t head = 0; head < turning; ++head, row += head_dim) {
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
