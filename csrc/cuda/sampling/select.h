// Selection and sorting of unsigned integers by a block of threads.
#pragma once

#include <cstdint>

#include "cuda/reduce.h"

namespace fusewire::cuda {

constexpr int kDigits = 256;  // radix of the selection; a block has at least as many threads

// Returns a number that at least `want` of the block's numbers reach, and no more than that unless
// the want-th largest occurs several times. for_each(body) calls body with each number of this
// thread.
template <class Number, class ForEach>
__device__ Number reached_by(int want, ForEach&& for_each) {
  __shared__ int histogram[kDigits];
  __shared__ int found_digit, found_rest;
  Number prefix = 0, known = 0;  // the digits found so far, and a mask of them
  for (int shift = sizeof(Number) * 8 - 8; shift >= 0; shift -= 8) {
    if (threadIdx.x < kDigits) histogram[threadIdx.x] = 0;
    __syncthreads();
    for_each([&](Number number) {
      if ((number & known) == prefix) {
        atomicAdd(&histogram[(number >> shift) % kDigits], 1);
      }
    });
    __syncthreads();
    if (threadIdx.x < kWarp) {  // largest digits first, 8 per lane
      constexpr int kEach = kDigits / kWarp;
      const int first = kDigits - 1 - threadIdx.x * kEach;
      int sum = 0;
      for (int i = 0; i < kEach; ++i) sum += histogram[first - i];
      int upto = sum;
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int before = __shfl_up_sync(kWholeWarp, upto, distance);
        if (static_cast<int>(threadIdx.x) >= distance) upto += before;
      }
      int above = upto - sum;
      if (above < want && want <= upto) {
        int digit = first;
        while (above + histogram[digit] < want) above += histogram[digit--];
        found_digit = digit;
        // 0: all numbers with this prefix are wanted, so lower digits do not matter.
        found_rest = above + histogram[digit] == want ? 0 : want - above;
      }
    }
    __syncthreads();
    prefix |= static_cast<Number>(found_digit) << shift;
    known |= static_cast<Number>(kDigits - 1) << shift;
    want = found_rest;
    if (want == 0) break;
  }
  return prefix;
}

// Sorts keys in descending order (Batcher's bitonic sorter). `size` is a power of two, at least 2.
template <class Key>
__device__ __forceinline__ void sort(Key* keys, int size) {
  const bool one_warp = size <= 2 * kWarp;
  if (!one_warp || threadIdx.x < kWarp) {
    for (int length = 2; length <= size; length *= 2) {
      for (int step = length / 2; step > 0; step /= 2) {
        for (int i = threadIdx.x; i < size / 2; i += blockDim.x) {
          const int low = 2 * i - (i & (step - 1)), high = low + step;
          const Key a = keys[low], b = keys[high];
          if ((a < b) == ((low & length) == 0)) {
            keys[low] = b;
            keys[high] = a;
          }
        }
        one_warp ? __syncwarp() : __syncthreads();
      }
    }
  }
  __syncthreads();
}

}  // namespace fusewire::cuda
