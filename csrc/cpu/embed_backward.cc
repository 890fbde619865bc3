// The gradient of a table from which rows were gathered. Tokens are sorted by the row that they
// took, so that each row of the table has its tokens in one run, which one thread sums in their
// order: no atomics, and the same bits whatever the number of threads.
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/thread_buffer.h"
#include "core/threads.h"
#include "core/training_kernels.h"
#include "cpu/columns.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kStrip = 128;  // columns per task, as a table of two rows has long runs
constexpr int64_t kChain = 64;   // tokens summed separately: long runs keep precision

// Adds the rows of dy of a run's tokens to `to`, a strip of a row of the table.
void add_run(float* to, const uint64_t* run, int64_t tokens, const float* dy, int64_t dy_stride,
             int64_t columns, float scale) {
  for_columns(columns, [&](int64_t c, int64_t count) {
    Vec total = {};
    for (int64_t from = 0; from < tokens; from += kChain) {
      const int64_t last = from + kChain < tokens ? from + kChain : tokens;
      Vec sum = {};
      for (int64_t i = from; i < last; ++i) {
        sum += read(dy + static_cast<int64_t>(run[i] & 0xFFFFFFFF) * dy_stride + c, count);
      }
      total += sum;
    }
    write(to + c, read(to + c, count) + total * scale, count);
  });
}

}  // namespace

void embed_backward(float* dtable, int64_t dtable_stride, int64_t table_rows,
                    const int64_t* wide_ids, const int32_t* ids, const void* dy, int64_t dy_stride,
                    int64_t tokens, int64_t hidden, float scale, bool accumulate, const Stream&) {
  // The id is above the token, so that equal ids stay in the order of the tokens.
  auto* keys = static_cast<uint64_t*>(thread_buffer(
      static_cast<size_t>(tokens) * (sizeof(uint64_t) + sizeof(uint32_t)) + sizeof(uint32_t)));
  auto* starts = reinterpret_cast<uint32_t*>(keys + tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t id = wide_ids ? wide_ids[t] : ids[t];
    if (id < 0 || id >= table_rows) {
      fail("embed_backward: ids[", t, "]: got ", id, ", wanted 0 to ", table_rows - 1);
    }
    keys[t] = static_cast<uint64_t>(id) << 32 | static_cast<uint64_t>(t);
  }
  std::sort(keys, keys + tokens);
  int64_t runs = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    if (t == 0 || keys[t] >> 32 != keys[t - 1] >> 32) starts[runs++] = static_cast<uint32_t>(t);
  }
  starts[runs] = static_cast<uint32_t>(tokens);

  if (!accumulate) {
    parallel_for(table_rows, rows_of_a_task(hidden) + 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        std::memset(dtable + row * dtable_stride, 0, static_cast<size_t>(hidden) * sizeof(float));
      }
    });
  }
  const int64_t strips = (hidden + kStrip - 1) / kStrip;
  constexpr int64_t kGrain = 8;
  parallel_for(runs * strips, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t run = task / strips, column = task % strips * kStrip;
      const uint64_t* first = keys + starts[run];
      float* row = dtable + static_cast<int64_t>(*first >> 32) * dtable_stride;
      add_run(row + column, first, starts[run + 1] - starts[run],
              static_cast<const float*>(dy) + column, dy_stride,
              hidden - column < kStrip ? hidden - column : kStrip, scale);
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
