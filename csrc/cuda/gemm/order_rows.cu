#include <algorithm>

#include "cuda/gemm/order_rows.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

constexpr int kVector = 8, kMostThreads = 512;

// Grid: x = blocks of columns, y = rows; a block computes every gridDim.y-th row. A thread has
// kVector columns, whose indices it keeps in registers: they are part of the weight, so they are
// fetched before the inputs are waited for.
__global__ void __launch_bounds__(kMostThreads)
    order_kernel(uint4* to, const uint16_t* x, int64_t x_stride, const int4* order, int64_t rows,
                 int vectors) {
  let_next_start();
  const int vector = blockIdx.x * blockDim.x + threadIdx.x;
  int4 places[2] = {};
  if (vector < vectors) {
    places[0] = order[2 * vector];
    places[1] = order[2 * vector + 1];
  }
  wait_for_inputs();
  if (vector >= vectors) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const uint16_t* from = x + row * x_stride;
    const auto pair = [&](int low, int high) {
      return from[low] | static_cast<uint32_t>(from[high]) << 16;
    };
    to[row * vectors + vector] =
        make_uint4(pair(places[0].x, places[0].y), pair(places[0].z, places[0].w),
                   pair(places[1].x, places[1].y), pair(places[1].z, places[1].w));
  }
}

}  // namespace

void order_rows(void* to, const GemmOperand& x, const int32_t* order, int64_t rows, int64_t k,
                const Stream& stream) {
  // Few rows are spread over many multiprocessors, because scattered reads load whole cache lines.
  // With many rows each block takes as much of a row as it can, which it then reads from its L1
  // cache.
  constexpr int kFewRows = 16;
  const int vectors = static_cast<int>(k / kVector), threads = rows <= kFewRows ? 64 : kMostThreads;
  const int across = (vectors + threads - 1) / threads;
  const int64_t at_once = std::max(8 * multiprocessors() / across, kFewRows);
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(std::min(rows, at_once)));
  launch(order_kernel, grid, static_cast<unsigned>(threads), 0, stream, static_cast<uint4*>(to),
         static_cast<const uint16_t*>(x.data), x.stride, reinterpret_cast<const int4*>(order), rows,
         vectors);
}

}  // namespace fusewire::cuda
