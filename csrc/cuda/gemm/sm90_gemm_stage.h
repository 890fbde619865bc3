// The products of one stage of the ring: 128 bytes of k, 64 numbers of 16 bits or 128 of 8.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "cuda/gemm/float8_block.h"
#include "cuda/sm90_wgmma.h"

namespace fusewire::cuda::sm90 {

// A weight of 4 bits that is multiplied as T (sm90_int4_stage.h): a type of elements by name.
// kFine: in groups of 32 inputs.
template <class T, bool kFine>
struct Int4 {};

// What the tokens' numbers are, if weights are of Element.
template <class Element>
struct NumberOfElement {
  using Type = Element;
};
template <class T, bool kFine>
struct NumberOfElement<Int4<T, kFine>> {
  using Type = T;
};
template <class Element>
using NumberOf = typename NumberOfElement<Element>::Type;

template <class Element>
constexpr bool kInt4 = !std::is_same_v<Element, NumberOf<Element>>;

// Numbers along k in a stage.
template <class Element>
constexpr int kStageColumns = 128 / static_cast<int>(sizeof(NumberOf<Element>));

// Tensor cores keep some 14 bits of a sum of e4m3 products, so that those of a stage, or two, are
// added to fp32 sums outside.
template <class Element>
constexpr bool kPromoted = std::is_same_v<Element, __nv_fp8_e4m3> || kInBlocks<Element>;

// Whether elements are 8-bit codes with a scale for each row of x and of the weight.
template <class Element>
constexpr bool kScaled = sizeof(NumberOf<Element>) == 1 && !kInBlocks<Element>;

// What products are summed in.
template <class Element>
using SumOf = std::conditional_t<std::is_same_v<Element, int8_t>, int32_t, float>;

// part += one stage of e4m3, or = if it is the first since the last promotion.
template <int kTokens>
__device__ __forceinline__ void multiply_stage(float (&part)[kTokens / 2], uint64_t weight,
                                               uint64_t tokens, bool first) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma<kTokens, __nv_fp8_e4m3>(part, weight + 2 * step, tokens + 2 * step, !first || step != 0);
  }
  wgmma_commit();
}

// Waits for all stages in part, and d += part; the other warpgroups' products run meanwhile.
template <int kTokens>
__device__ __forceinline__ void promote(float (&d)[kTokens / 2], float (&part)[kTokens / 2]) {
  wgmma_wait<0>();
  wgmma_results(part);
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) d[i] += part[i];
}

}  // namespace fusewire::cuda::sm90
