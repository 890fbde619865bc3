// GEMM on prepacked weights: out[m, n] = activation(x[m, k] . weight[n, k]^T + bias) + residual.
//
// Weights are packed once into panels of 32 output columns, [n / 32][k][32], the same for every
// instruction set. An output element's value does not depend on how many rows the call has or how
// the work was split, so a request's answer is bit-equal in any batch. Bias, activation and
// residual are applied while the sums are in registers. Nothing is compiled or tuned per shape:
// ragged batches bring a new row count with every call.
// The blocking follows Goto & van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
// (2008), without the packing of x: its broadcasts hide behind the multiply-adds.
#include "core/kernels.h"
#include "core/threads.h"
#include "cpu/micro_kernel.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kPanel = 32;
constexpr int64_t kLine = 16;    // floats
constexpr int64_t kChain = 384;  // additions in one chain: rounding grows with its length

// Of one tile: where its columns of bias and its rows of residual begin.
struct Epilogue {
  const float* bias;
  const float* residual;
  int64_t residual_stride;
  Activation activation;
};

// How far `ahead` moves with each k.
constexpr int64_t fetched(Fetch fetch) {
  return fetch == Fetch::kNextPanelSlowly ? kLine / 2 : kLine;
}

// One micro-kernel call: kRows x up to kColumns of the output. Not inlined, so that the compiler
// gives each row count its own register allocation.
template <int kRows, Fetch kFetch>
__attribute__((noinline)) void tile(const Product& product, const Epilogue& epilogue, float* out,
                                    int64_t out_stride, int64_t columns) {
  // What is read and written at the end is on its way meanwhile. Few rows wait for the panel alone.
  if constexpr (kFetch != Fetch::kStream) {
    for (int r = 0; r < kRows; ++r) {
      for (int64_t column = 0; column < columns; column += kLine) {
        __builtin_prefetch(out + r * out_stride + column, 1, 2);
        if (epilogue.residual) {
          __builtin_prefetch(epilogue.residual + r * epilogue.residual_stride + column, 0, 3);
        }
      }
    }
  }
  Vec sum[kRows][2] = {};
  if (product.k <= kChain) {
    multiply<kRows, kFetch>(product, sum);
  } else {
    Vec total[kRows][2] = {};  // in memory; touched once in kChain steps
    Product part = product;
    for (int64_t k = 0; k < product.k; k += kChain) {
      part.k = product.k - k < kChain ? product.k - k : kChain;
      part.x = product.x + k;
      part.panel = product.panel + k * kPanel;
      part.ahead = product.ahead + k * fetched(kFetch);
      Vec chain[kRows][2] = {};
      multiply<kRows, kFetch>(part, chain);
      for (int r = 0; r < kRows; ++r) {
        total[r][0] += chain[r][0];
        total[r][1] += chain[r][1];
      }
    }
    for (int r = 0; r < kRows; ++r) {
      sum[r][0] = total[r][0];
      sum[r][1] = total[r][1];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int64_t first = half * kLanes;
      const int64_t present = columns - first;
      if (present <= 0) continue;
      const bool whole = present >= kLanes;
      const auto read = [&](const float* p) { return whole ? load(p) : load_first(p, present); };
      Vec y = sum[r][half];
      if (epilogue.bias) y += read(epilogue.bias + first);
      y = activated(y, epilogue.activation);
      if (epilogue.residual) y += read(epilogue.residual + r * epilogue.residual_stride + first);
      float* to = out + r * out_stride + first;
      whole ? store(to, y) : store_first(to, y, present);
    }
  }
}

size_t packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>((n + kPanel - 1) / kPanel * kPanel * k) * sizeof(float);
}

void pack(void* packed, const void* weight, int64_t n, int64_t k, const Stream&) {
  float* out = static_cast<float*>(packed);
  const float* w = static_cast<const float*>(weight);
  parallel_for((n + kPanel - 1) / kPanel, 1, [&](int64_t panel, int64_t, int) {
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < kPanel; ++j) {
        const int64_t row = panel * kPanel + j;
        out[(panel * k + i) * kPanel + j] = row < n ? w[row * k + i] : 0.0f;
      }
    }
  });
}

void run(const GemmArguments& a, const Stream&) {
  // A task is some rows by some panels: its rows of x and one panel stay in L2. One block of rows
  // reads each panel once and is bound by that: its tasks are small, to end at the same time.
  constexpr int64_t kTaskRows = 56;
  const int64_t m = a.m, n = a.n, k = a.k;
  const bool one_block = m <= kMaxRows;
  const int64_t panels = (n + kPanel - 1) / kPanel;
  const int64_t row_tasks = (m + kTaskRows - 1) / kTaskRows;
  const int64_t tasks_for_an_even_finish = (one_block ? 32 : 8) * num_threads();
  int64_t column_tasks = (tasks_for_an_even_finish + row_tasks - 1) / row_tasks;
  if (column_tasks > panels) column_tasks = panels;

  parallel_for(row_tasks * column_tasks, 1, [&](int64_t task, int64_t, int) {
    const int64_t row_task = task % row_tasks, column_task = task / row_tasks;
    const int64_t first_row = m * row_task / row_tasks;
    const int64_t last_row = m * (row_task + 1) / row_tasks;
    const int64_t last_panel = panels * (column_task + 1) / column_tasks;
    // The next panel is fetched by the first blocks of rows: by four of them, if there are as many,
    // as the fetches of two are so dense that they hold up the rows' own reads.
    const int64_t fetching = last_row - first_row > 3 * kMaxRows ? 4 : 2;
    const Fetch fetch = one_block       ? Fetch::kStream
                        : fetching == 4 ? Fetch::kNextPanelSlowly
                                        : Fetch::kNextPanel;
    for (int64_t panel = panels * column_task / column_tasks; panel < last_panel; ++panel) {
      for (int64_t inside = 0; inside < kPanel; inside += kColumns) {
        const int64_t column = panel * kPanel + inside;
        if (column >= n) break;
        const int64_t columns = n - column < kColumns ? n - column : int64_t{kColumns};
        // While the rows pass over this panel the next one comes in from memory; blocks that fetch
        // none of it touch what is there already.
        const float* here = static_cast<const float*>(a.weight.data) + panel * kPanel * k;
        const float* next = panel + 1 < last_panel ? here + kPanel * k : here;
        int64_t block = 0;
        for_row_blocks(last_row - first_row, [&](auto rows, int64_t from) {
          const int64_t row = first_row + from;
          const float* ahead = block < fetching ? next + block * k * fetched(fetch) : here;
          ++block;
          const Product product = {static_cast<const float*>(a.x.data) + row * a.x.stride,
                                   a.x.stride,
                                   1,
                                   here + inside,
                                   kPanel,
                                   k,
                                   ahead};
          const Epilogue epilogue = {
              a.bias ? static_cast<const float*>(a.bias) + column : nullptr,
              a.residual ? static_cast<const float*>(a.residual) + row * a.residual_stride + column
                         : nullptr,
              a.residual_stride, a.activation};
          constexpr int kRows = decltype(rows)::value;
          const auto compute = fetch == Fetch::kStream      ? tile<kRows, Fetch::kStream>
                               : fetch == Fetch::kNextPanel ? tile<kRows, Fetch::kNextPanel>
                                                            : tile<kRows, Fetch::kNextPanelSlowly>;
          compute(product, epilogue, static_cast<float*>(a.out) + row * a.out_stride + column,
                  a.out_stride, columns);
        });
      }
    }
  });
}

// Panels serve products alone: of an embedding that is also a head (tied weights) the rows stay
// too, as a row's numbers are a panel's width apart in one, and each would be read with a line of
// others.
constexpr GemmKernels kTable[] = {
    {Format::kFloat32, {}, /*packing_copies=*/false, packed_bytes, pack, run, /*bucket=*/nullptr},
};

}  // namespace

const GemmKernels* gemm(Format format) {
  return kernels_of(kTable, format);
}

}  // namespace fusewire::FUSEWIRE_TARGET
