// How a product with a packed weight is partitioned: into tasks of some rows by some panels, which
// threads share, and each task into tiles of a few rows by kColumns, each one call of a
// micro-kernel.
#pragma once

#include "core/threads.h"
#include "cpu/micro_kernel.h"
#include "cpu/panels.h"

namespace fusewire::FUSEWIRE_TARGET {

// A task's rows of x and one panel stay in L2.
constexpr int64_t kTaskRows = 56;

// Rows [first, last) of a task.
struct RowTask {
  int64_t first, last;
};

inline int64_t row_tasks_of(int64_t m) {
  return (m + kTaskRows - 1) / kTaskRows;
}

inline RowTask row_task(int64_t m, int64_t task) {
  const int64_t tasks = row_tasks_of(m);
  return {m * task / tasks, m * (task + 1) / tasks};
}

struct Tile {
  int64_t row, panel, inside, columns;  // the first column is panel * kPanel + inside
  Fetch fetch;
  // What is prefetched meanwhile: this panel, from `part` times a tile's prefetches on.
  int64_t fetched_panel, part;
};

template <Fetch fetch>
struct Fetching {
  static constexpr Fetch value = fetch;
};

// Calls body(Fetching<fetch>) for the Fetch of a tile, which is never kNothing.
template <class Body>
FUSEWIRE_INLINE void with_fetch(Fetch fetch, Body&& body) {
  if (fetch == Fetch::kStream) return body(Fetching<Fetch::kStream>{});
  if (fetch == Fetch::kNextPanel) return body(Fetching<Fetch::kNextPanel>{});
  body(Fetching<Fetch::kNextPanelSlowly>{});
}

// Calls body(Rows<count>, tile) for all tiles of out[m, n], each of at most kMost rows.
template <int kMost, class Body>
void for_tiles(int64_t m, int64_t n, Body&& body) {
  // One block of rows reads each panel once and is bound by that: its tasks are small, so that they
  // end at the same time.
  const bool one_block = m <= kMost;
  const int64_t panels = panels_of(n);
  const int64_t row_tasks = row_tasks_of(m);
  const int64_t tasks_for_an_even_finish = (one_block ? 32 : 8) * num_threads();
  int64_t column_tasks = (tasks_for_an_even_finish + row_tasks - 1) / row_tasks;
  if (column_tasks > panels) column_tasks = panels;

  parallel_for(row_tasks * column_tasks, 1, [&](int64_t task, int64_t, int) {
    const RowTask rows = row_task(m, task % row_tasks);
    const int64_t column_task = task / row_tasks;
    const int64_t last_panel = panels * (column_task + 1) / column_tasks;
    // The first blocks of rows prefetch the next panel: four of them, if there are as many, because
    // the prefetches of two are so dense that they delay the rows' own loads.
    const int64_t fetching = rows.last - rows.first > 3 * kMost ? 4 : 2;
    const Fetch fetch = one_block       ? Fetch::kStream
                        : fetching == 4 ? Fetch::kNextPanelSlowly
                                        : Fetch::kNextPanel;
    for (int64_t panel = panels * column_task / column_tasks; panel < last_panel; ++panel) {
      for (int64_t inside = 0; inside < kPanel; inside += kColumns) {
        const int64_t column = panel * kPanel + inside;
        if (column >= n) break;
        const int64_t columns = n - column < kColumns ? n - column : int64_t{kColumns};
        // While the rows are multiplied with this panel, the next one is prefetched; blocks that
        // prefetch none of it prefetch what is cached already.
        const int64_t next = panel + 1 < last_panel ? panel + 1 : panel;
        int64_t block = 0;
        for_row_blocks<kMost>(rows.last - rows.first, [&](auto count, int64_t from) {
          const bool fetches = block < fetching;
          body(count, Tile{rows.first + from, panel, inside, columns, fetch, fetches ? next : panel,
                           fetches ? block : 0});
          ++block;
        });
      }
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
