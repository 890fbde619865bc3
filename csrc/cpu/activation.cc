// Activations and gated units (Shazeer 2020) as separate ops, where no GEMM epilogue computes them.
#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kGrainElements = 1 << 14;

int64_t grain_rows(int64_t cols) {
  return kGrainElements / cols + 1;
}

// Computes out = map(x) for every element.
template <class Map>
FUSEWIRE_INLINE void map_rows(void* out, int64_t out_stride, const void* x, int64_t x_stride,
                              int64_t rows, int64_t cols, Map&& map) {
  parallel_for(rows, grain_rows(cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* from = static_cast<const float*>(x) + r * x_stride;
      float* to = static_cast<float*>(out) + r * out_stride;
      int64_t c = 0;
      for (; c + kLanes <= cols; c += kLanes) store(to + c, map(load(from + c)));
      if (c < cols) store_first(to + c, map(load_first(from + c, cols - c)), cols - c);
    }
  });
}

}  // namespace

void activate(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
              int64_t cols, Activation activation, const Stream&) {
  map_rows(out, out_stride, x, x_stride, rows, cols,
           [&](Vec v) { return activated(v, activation); });
}

void soft_cap(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
              int64_t cols, float cap, const Stream&) {
  map_rows(out, out_stride, x, x_stride, rows, cols, [&](Vec v) { return capped(v, cap); });
}

void gate(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
          int64_t cols, Activation activation, const Stream&) {
  parallel_for(rows, grain_rows(cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* from = static_cast<const float*>(x) + r * x_stride;
      const float* factor = from + cols;
      float* to = static_cast<float*>(out) + r * out_stride;
      int64_t c = 0;
      for (; c + kLanes <= cols; c += kLanes) {
        store(to + c, activated(load(from + c), activation) * load(factor + c));
      }
      if (c < cols) {
        const int64_t n = cols - c;
        store_first(to + c,
                    activated(load_first(from + c, n), activation) * load_first(factor + c, n), n);
      }
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
