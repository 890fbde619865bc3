// Packs fp32 weights into panels of bfloat16 (gemm_bfloat16.h).
#include "core/threads.h"
#include "cpu/bfloat16.h"
#include "cpu/gemm_bfloat16.h"
#include "cpu/panels.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

// Packs from [n, k]: transposes squares of kLanes x kLanes, then pairs adjacent rows.
void pack_pairs_of_rows(uint32_t* packed, const float* from, int64_t n, int64_t k) {
  parallel_for(panels_of(n), 1, [&](int64_t panel, int64_t, int) {
    uint32_t* to = packed + panel * kPanel * pairs_of(k);
    for (int64_t i = 0; i < k; i += kLanes) {
      const int64_t present = k - i < kLanes ? k - i : int64_t{kLanes};
      for (int64_t j = 0; j < kPanel; j += kLanes) {
        const int64_t row = panel * kPanel + j;
        // These are more rows than the hardware prefetcher follows.
        for (int64_t r = row; r < row + kLanes && r < n; ++r) {
          __builtin_prefetch(from + r * k + i + kAhead, 0, 3);
        }
        float square[kLanes * kLanes];
        transpose_block(square, kLanes, from + row * k + i, k, n - row, present,
                        [](Vec v) { return v; });
        for (int64_t c = 0; c < present; c += 2) {
          const Vec second = c + 1 < present ? load(square + (c + 1) * kLanes) : Vec{};
          store_words(to + (i + c) / 2 * kPanel + j, paired(load(square + c * kLanes), second));
        }
      }
    }
  });
}

// Packs from [k, n]: pairs rows, several pairs at a time, so that both sides are accessed in runs.
void pack_pairs_of_columns(uint32_t* packed, const float* from, int64_t n, int64_t k) {
  constexpr int64_t kRun = 8;
  const auto read = [](const float* p, int64_t present) {
    return present >= kLanes ? load(p) : present > 0 ? load_first(p, present) : Vec{};
  };
  parallel_for(pairs_of(k), kRun, [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = 0; panel < panels_of(n); ++panel) {
      for (int64_t pair = begin; pair < end; ++pair) {
        uint32_t* to = packed + (panel * pairs_of(k) + pair) * kPanel;
        for (int64_t j = 0; j < kPanel; j += kLanes) {
          const int64_t column = panel * kPanel + j;
          const float* row = from + 2 * pair * n + column;
          const Vec second = 2 * pair + 1 < k ? read(row + n, n - column) : Vec{};
          store_words(to + j, paired(read(row, n - column), second));
        }
      }
    }
  });
}

}  // namespace

size_t bfloat16_packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(panels_of(n) * kPanel * pairs_of(k)) * sizeof(uint32_t);
}

void pack_bfloat16(const PackArguments& a, const Stream&) {
  uint32_t* packed = static_cast<uint32_t*>(a.packed);
  const float* weight = static_cast<const float*>(a.weight);
  if (a.transposed) {
    pack_pairs_of_columns(packed, weight, a.n, a.k);
  } else {
    pack_pairs_of_rows(packed, weight, a.n, a.k);
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
