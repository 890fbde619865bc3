// Loops over the columns of a row, one register at a time.
#pragma once

#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {

// Returns the rows of a task that is worth waking a thread for; may be 0.
inline int64_t rows_of_a_task(int64_t cols) {
  constexpr int64_t kElements = 1 << 14;
  return kElements / cols;
}

// Calls body(column, count), with count == kLanes except for the last columns.
template <class Body>
FUSEWIRE_INLINE void for_columns(int64_t cols, Body&& body) {
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) body(c, int64_t{kLanes});
  if (c < cols) body(c, cols - c);
}
FUSEWIRE_INLINE Vec read(const float* p, int64_t count) {
  return count == kLanes ? load(p) : load_first(p, count);
}
FUSEWIRE_INLINE void write(float* p, Vec v, int64_t count) {
  count == kLanes ? store(p, v) : store_first(p, v, count);
}

}  // namespace fusewire::FUSEWIRE_TARGET
