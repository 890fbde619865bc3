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
#include "cpu/gemm_tile.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

size_t packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(panels_of(n) * kPanel * k) * sizeof(float);
}

void pack(const PackArguments& a, const Stream&) {
  float* packed = static_cast<float*>(a.packed);
  const float* weight = static_cast<const float*>(a.weight);
  if (a.transposed) {
    pack_columns(packed, weight, a.n, a.n, a.k);
  } else {
    pack_rows(packed, weight, a.n, a.k);
  }
}

void run(const GemmArguments& a, const Stream&) {
  // A task is some rows by some panels: its rows of x and one panel stay in L2. One block of rows
  // reads each panel once and is bound by that: its tasks are small, to end at the same time.
  constexpr int64_t kTaskRows = 56;
  const int64_t m = a.m, n = a.n, k = a.k;
  const bool one_block = m <= kMaxRows;
  const int64_t panels = panels_of(n);
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
    {Format::kFloat32,
     {},
     /*packing_copies=*/false,
     /*packs_transposed=*/true,
     packed_bytes,
     pack,
     run,
     /*bucket=*/nullptr},
};

}  // namespace

const GemmKernels* gemm(Format format) {
  return kernels_of(kTable, format);
}

}  // namespace fusewire::FUSEWIRE_TARGET
