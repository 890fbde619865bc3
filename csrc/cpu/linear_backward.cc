// The gradient of a weight, dw[out, in] = dy^T . x: the product of gemm.cc with the rows of the
// batch as its k. Both operands are transposed in memory, so both are packed: x once, into panels;
// of dy, each task packs the columns that are its rows, which then stay in L2. An element of dw is
// one sum in the order of the rows, whatever the number of threads.
#include "core/thread_buffer.h"
#include "core/training_kernels.h"
#include "cpu/gemm_tile.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

// Most rows of dw per task, which packs as many columns of dy.
constexpr int64_t kTaskRows = 56;
// Most rows of the batch that are packed at a time, which bounds the scratch memory.
constexpr int64_t kMostRows = 4096;

// Packs columns of dy in blocks as the tiles read them, each [rows][columns of the block]; a run of
// rows at a time, so that a cache line that two blocks share is fetched once.
void pack_blocks(float* packed, const float* dy, int64_t dy_stride, int64_t rows, int64_t columns) {
  constexpr int64_t kRun = 32;
  for (int64_t first = 0; first < rows; first += kRun) {
    const int64_t last = first + kRun < rows ? first + kRun : rows;
    for_row_blocks(columns, [&](auto count, int64_t from) {
      constexpr int kCount = decltype(count)::value;
      for (int64_t i = first; i < last; ++i) {
        __builtin_memcpy(packed + from * rows + i * kCount, dy + i * dy_stride + from,
                         kCount * sizeof(float));
      }
    });
  }
}

void add_rows(const WeightGradientArguments& a, int64_t first, int64_t rows, bool accumulate) {
  const float* x = static_cast<const float*>(a.x) + first * a.x_stride;
  const float* dy = static_cast<const float*>(a.dy) + first * a.dy_stride;
  const int64_t panels = panels_of(a.in_features);
  const int64_t row_tasks = (a.out_features + kTaskRows - 1) / kTaskRows;
  const int64_t tasks_for_an_even_finish = 4 * num_threads();
  int64_t column_tasks = (tasks_for_an_even_finish + row_tasks - 1) / row_tasks;
  constexpr int64_t kFewestPanels = 8;  // per task: fewer do not amortise packing dy
  if (column_tasks > panels / kFewestPanels) column_tasks = panels / kFewestPanels;
  if (column_tasks < 1) column_tasks = 1;

  const int64_t block_floats = kTaskRows * rows;
  float* packed = static_cast<float*>(thread_buffer(
      static_cast<size_t>(panels * kPanel * rows + num_threads() * block_floats) * sizeof(float)));
  float* blocks = packed + panels * kPanel * rows;
  pack_columns(packed, x, a.x_stride, a.in_features, rows);

  parallel_for(row_tasks * column_tasks, 1, [&](int64_t task, int64_t, int worker) {
    const int64_t row_task = task / column_tasks, column_task = task % column_tasks;
    const int64_t first_row = a.out_features * row_task / row_tasks;
    const int64_t task_rows = a.out_features * (row_task + 1) / row_tasks - first_row;
    const int64_t last_panel = panels * (column_task + 1) / column_tasks;
    float* block = blocks + worker * block_floats;
    pack_blocks(block, dy + first_row, a.dy_stride, rows, task_rows);
    for (int64_t panel = panels * column_task / column_tasks; panel < last_panel; ++panel) {
      for (int64_t inside = 0; inside < kPanel; inside += kColumns) {
        const int64_t column = panel * kPanel + inside;
        if (column >= a.in_features) break;
        const int64_t present = a.in_features - column;
        const float* here = packed + panel * kPanel * rows;
        const float* next = panel + 1 < last_panel ? here + kPanel * rows : here;
        int64_t fetched_by = 0;
        for_row_blocks(task_rows, [&](auto count, int64_t from) {
          constexpr int kRows = decltype(count)::value;
          // The first four blocks prefetch the next panel, as in gemm_tasks.h.
          const float* ahead = task_rows > 3 * kMaxRows && fetched_by < 4
                                   ? next + fetched_by * rows * fetched(Fetch::kNextPanelSlowly)
                                   : here;
          ++fetched_by;
          float* out = a.dw + (first_row + from) * a.dw_stride + column;
          const Product product = {
              block + from * rows, 1, kRows, here + inside, kPanel, rows, ahead};
          const Epilogue epilogue = {nullptr, accumulate ? out : nullptr, a.dw_stride,
                                     Activation::kNone};
          tile<kRows, Fetch::kNextPanelSlowly>(product, epilogue, out, a.dw_stride,
                                               present < kColumns ? present : int64_t{kColumns});
        });
      }
    }
  });
}

}  // namespace

void linear_backward_weight(const WeightGradientArguments& a, const Stream&) {
  int64_t first = 0;
  do {  // at least once: without rows the gradient is zero
    const int64_t rows = a.rows - first < kMostRows ? a.rows - first : kMostRows;
    add_rows(a, first, rows, a.accumulate || first > 0);
    first += rows;
  } while (first < a.rows);
}

}  // namespace fusewire::FUSEWIRE_TARGET
