// The log-sum-exp of rows. Where rows are few, the blocks of a cluster share a row.
//
// The bits of a row's result do not depend on how many rows there are, and so not on how many
// blocks share it: a row always consists of kPieces pieces, each of which has its own largest
// element and its own sum of exponentials relative to that. These are added up in one order, by
// intrinsics where the compiler could fuse a product into a sum in one of the kernels alone.
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/sampling/shared_row.h"

namespace fusewire::cuda {
namespace {

constexpr int kPieces = kMostBlocks;

// Calls body(value, index of the piece) for this thread's elements of the kOwn pieces of block
// `rank`. A stripe is a vector for each thread of a block; piece p consists of the stripes p, p +
// kPieces, and so on. Four vectors are loaded at once. Beyond the row, values are -infinity. The
// address of the row changes nothing, as with for_elements (draw.h).
template <int kOwn, class T, class Body>
__device__ __forceinline__ void for_pieces(const T* row, int cols, int rank, Body&& body) {
  constexpr int n = Vector<T>::kSize, kStripe = kDrawThreads * n;
  constexpr int kAtOnce = 4, kTurns = kOwn < kAtOnce ? kAtOnce / kOwn : 1;
  const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
  for (int c = (rank * kOwn * kDrawThreads + threadIdx.x) * n; c < cols;
       c += kTurns * kPieces * kStripe) {
#pragma unroll
    for (int first = 0; first < kTurns * kOwn; first += kAtOnce) {
      const auto column = [&](int i) {
        return c + ((first + i) / kOwn * kPieces + (first + i) % kOwn) * kStripe;
      };
      Vector<T> vectors[kAtOnce];
      const bool whole = aligned && column(kAtOnce - 1) + n <= cols;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (whole || (aligned && column(i) + n <= cols)) {
          vectors[i] = Vector<T>::load(row + column(i));
        } else {
#pragma unroll
          for (int j = 0; j < n; ++j) {
            vectors[i].at[j] = column(i) + j < cols ? row[column(i) + j] : from_float<T>(-INFINITY);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int j = 0; j < n; ++j) body(to_float(vectors[i].at[j]), (first + i) % kOwn);
      }
    }
  }
}

// Returns the number that is subtracted before exponentials are taken. Infinite elements then
// decide the result.
__device__ __forceinline__ float base_of(float most) {
  return isinf(most) ? 0.0f : most;
}

// kPieces / kOwn blocks share a row.
template <class T, int kOwn>
__global__ void __launch_bounds__(kDrawThreads, 2)
    log_sum_exp_rows(float* out, const T* x, int64_t x_stride, int cols) {
  constexpr int kBlocks = kPieces / kOwn;
  __shared__ float own_most[kOwn], own_sum[kOwn];
  let_next_start();
  wait_for_inputs();
  const int at = blockIdx.x / kBlocks, rank = blockIdx.x % kBlocks;
  const T* row = x + at * x_stride;
  float most[kOwn], base[kOwn], sum[kOwn] = {};
#pragma unroll
  for (int i = 0; i < kOwn; ++i) most[i] = -INFINITY;
  for_pieces<kOwn>(row, cols, rank, [&](float v, int i) { most[i] = fmaxf(most[i], v); });
  reduce_block(most, Max{});
#pragma unroll
  for (int i = 0; i < kOwn; ++i) base[i] = base_of(most[i]);
  for_pieces<kOwn>(row, cols, rank,
                   [&](float v, int i) { sum[i] = __fadd_rn(sum[i], expf(v - base[i])); });
  reduce_block(sum, Sum{});
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own_most[i] = most[i], own_sum[i] = sum[i];
  }
  kBlocks > 1 ? wait_for_cluster() : __syncthreads();
  if (rank == 0 && threadIdx.x < kWarp) {
    const int piece = threadIdx.x % kPieces, block = piece / kOwn;
    const float its_most = load_of_block(own_most + piece % kOwn, block);
    const float its_sum = load_of_block(own_sum + piece % kOwn, block);
    const float from = base_of(reduce_lanes<kPieces>(its_most, Max{}));
    const float weight = isinf(its_most) ? 1.0f : expf(its_most - from);
    const float whole = reduce_lanes<kPieces>(__fmul_rn(its_sum, weight), Sum{});
    if (threadIdx.x == 0) out[at] = __fadd_rn(from, logf(whole));
  }
  if (kBlocks > 1) wait_for_cluster();  // no block exits before its sums are read
}

}  // namespace

template <class T>
void log_sum_exp(float* out, const void* x, int64_t x_stride, int64_t rows, int64_t cols,
                 const Stream& stream) {
  const int blocks = blocks_per_row<T>(rows, cols, 2 * multiprocessors());
  const auto run = [&](auto kernel) {
    launch_clusters(kernel, blocks, dim3(static_cast<unsigned>(rows * blocks)), kDrawThreads, 0,
                    stream, out, static_cast<const T*>(x), x_stride, static_cast<int>(cols));
  };
  if (blocks == 1) return run(log_sum_exp_rows<T, 8>);
  if (blocks == 2) return run(log_sum_exp_rows<T, 4>);
  if (blocks == 4) return run(log_sum_exp_rows<T, 2>);
  run(log_sum_exp_rows<T, 1>);
}

#define INSTANTIATE(T) \
  template void log_sum_exp<T>(float*, const void*, int64_t, int64_t, int64_t, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
