// Sums over rows in two stages: first of blocks of rows, each by one thread in its own order, then
// of the blocks' sums. The blocks depend on the number of rows alone, so the bits of a sum do not
// depend on the number of threads.
#pragma once

#include "core/thread_buffer.h"
#include "core/threads.h"
#include "cpu/columns.h"

namespace fusewire::FUSEWIRE_TARGET {

// Returns the rows per block: few blocks, as each leaves a row of sums, but more than there are
// threads, and no chain of additions so long that it loses digits.
inline int64_t rows_of_a_block(int64_t rows) {
  constexpr int64_t kBlocks = 32, kFewest = 8, kMost = 128;
  const int64_t even = (rows + kBlocks - 1) / kBlocks;
  return even < kFewest ? kFewest : even > kMost ? kMost : even;
}

// Calls block(sums, first, last) for every block of rows, which writes sums[0 .. width), and
// finally finish(total) with the sum of these.
template <class Block, class Finish>
void sum_row_blocks(int64_t rows, int64_t width, Block&& block, Finish&& finish) {
  const int64_t size = rows_of_a_block(rows);
  const int64_t blocks = (rows + size - 1) / size;
  float* total =
      static_cast<float*>(thread_buffer(static_cast<size_t>((blocks + 1) * width) * sizeof(float)));
  float* sums = total + width;
  parallel_for(blocks, 1, [&](int64_t b, int64_t, int) {
    const int64_t last = (b + 1) * size;
    block(sums + b * width, b * size, last < rows ? last : rows);
  });
  constexpr int64_t kColumnsOfATask = 1024;
  parallel_for(width, kColumnsOfATask, [&](int64_t begin, int64_t end, int) {
    for_columns(end - begin, [&](int64_t inside, int64_t count) {
      Vec all = {};
      for (int64_t b = 0; b < blocks; ++b) all += read(sums + b * width + begin + inside, count);
      write(total + begin + inside, all, count);
    });
  });
  finish(total);
}

inline void write_gradient(float* to, const float* from, int64_t count, bool accumulate) {
  for_columns(count, [&](int64_t c, int64_t n) {
    write(to + c, accumulate ? read(to + c, n) + read(from + c, n) : read(from + c, n), n);
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
