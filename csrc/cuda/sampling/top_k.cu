// Finds the k largest elements of each row, in order. One block per row finds a threshold that
// about k elements reach, collects those in shared memory and sorts them there. A k beyond the
// capacity takes several rounds. The order is total (value, then lower index), so ties need no
// special treatment.
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows/row.h"
#include "cuda/sampling/select.h"

namespace fusewire::cuda {
namespace {

constexpr int kCapacity = 4096;  // keys in shared memory: 32 KiB

using Key = uint64_t;  // larger for a better element, distinct for every element

// Returns an unsigned integer that orders like the value. +0 and -0 are equal, NaN is below all
// others.
__device__ __forceinline__ uint32_t order(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 becomes +0
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return value == value ? ordered : 0;
}
__device__ __forceinline__ Key key_of(uint32_t ordered, int column) {
  return static_cast<Key>(ordered) << 32 | ~static_cast<uint32_t>(column);
}
__device__ __forceinline__ int column_of(Key key) {
  return static_cast<int>(~static_cast<uint32_t>(key));
}

// Writes the `total` largest elements of row[0, cols) and their indices, in order. `first_index` is
// the index of row[0].
template <class T>
__device__ __forceinline__ void best_of(T* values, int64_t* indices, const T* row, int cols,
                                        int total, int first_index) {
  constexpr int n = Vector<T>::kSize;
  __shared__ Key keys[kCapacity];
  __shared__ int count;
  // Calls body(ordered, column) for the elements of each of this thread's vectors in which one
  // reaches `least`.
  const auto for_elements = [&](uint32_t least, auto&& body) {
    for_values<4>(row, cols, -INFINITY, [&](int c, float (&v)[n]) {
      if (order(reduce_thread(v, Max{})) < least) return;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        if (c + j >= 0 && c + j < cols) body(order(v[j]), c + j);
      }
    });
  };
  const auto collect = [&](Key threshold, Key below) {
    __syncthreads();
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    const uint32_t least = static_cast<uint32_t>(threshold >> 32);
    for_elements(least, [&](uint32_t ordered, int column) {
      if (ordered < least) return;
      const Key key = key_of(ordered, column);
      if (key < threshold || key >= below) return;
      const int slot = atomicAdd(&count, 1);
      if (slot < kCapacity) keys[slot] = key;
    });
    __syncthreads();
    return count;
  };

  Key below = ~Key{0};
  for (int done = 0, want; done < total; done += want) {
    want = min(total - done, kCapacity);
    const auto exact_threshold = [&] {
      return reached_by<Key>(want, [&](auto&& body) {
        for_elements(0, [&](uint32_t ordered, int column) {
          const Key key = key_of(ordered, column);
          if (key < below) body(key);
        });
      });
    };
    Key threshold = 0;
    if (done == 0 && 2 * want <= min(static_cast<int>(blockDim.x), cols / n)) {
      // Not many more than `want` elements reach the want-th largest of the threads' maxima.
      float most = -INFINITY;
      for_values<4>(row, cols, -INFINITY,
                    [&](int, float (&v)[n]) { most = fmaxf(most, reduce_thread(v, Max{})); });
      threshold =
          static_cast<Key>(reached_by<uint32_t>(want, [&](auto&& body) { body(order(most)); }))
          << 32;
    } else if (cols > kCapacity) {
      threshold = exact_threshold();
    }
    int found = collect(threshold, below);
    if (found > kCapacity || found < want) found = collect(exact_threshold(), below);
    int size = 2;
    while (size < found) size *= 2;
    for (int i = found + threadIdx.x; i < size; i += blockDim.x) keys[i] = 0;
    __syncthreads();
    sort(keys, size);
    for (int i = threadIdx.x; i < want; i += blockDim.x) {
      const int column = column_of(keys[i]);
      values[done + i] = row[column];
      indices[done + i] = first_index + column;
    }
    below = keys[want - 1];
  }
  __syncthreads();
}

// NaN loses every comparison, as on the CPU. Beyond the first k columns it is never taken. Among
// them it keeps its position in the result, and the positions before it hold the largest of the
// elements before it.
template <class T>
__global__ void __launch_bounds__(1024)
    top_k_rows(T* values, int64_t* indices, const T* x, int64_t x_stride, int cols, int k) {
  __shared__ int nan_column;
  let_next_start();
  wait_for_inputs();
  const T* row = x + blockIdx.x * x_stride;
  values += static_cast<int64_t>(blockIdx.x) * k;
  indices += static_cast<int64_t>(blockIdx.x) * k;
  for (int begin = 0; begin < k;) {
    if (threadIdx.x == 0) nan_column = k;
    __syncthreads();
    for (int c = begin + threadIdx.x; c < k; c += blockDim.x) {
      if (isnan(to_float(row[c]))) {
        atomicMin(&nan_column, c);
        break;
      }
    }
    __syncthreads();
    const int stop = nan_column;
    best_of(values + begin, indices + begin, row + begin, (stop == k ? cols : stop) - begin,
            stop - begin, begin);
    if (stop < k && threadIdx.x == 0) {
      values[stop] = row[stop];
      indices[stop] = stop;
    }
    begin = stop + 1;
  }
}

}  // namespace

template <class T>
void top_k(void* values, int64_t* indices, const void* x, int64_t x_stride, int64_t rows,
           int64_t cols, int64_t k, const Stream& stream) {
  const int threads = cols <= 2048 ? kDigits : 1024;
  launch(top_k_rows<T>, rows, threads, 0, stream, static_cast<T*>(values), indices,
         static_cast<const T*>(x), x_stride, static_cast<int>(cols), static_cast<int>(k));
}

#define INSTANTIATE(T)                                                                     \
  template void top_k<T>(void*, int64_t*, const void*, int64_t, int64_t, int64_t, int64_t, \
                         const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
