// The products of one pipeline stage: 128 bytes of k, 64 elements of 16 bits or 128 of 8 bits.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "cuda/gemm/float8_block.h"
#include "cuda/sm90_wgmma.h"

namespace fusewire::cuda::sm90 {

// Tag type of a weight of 4 bits that is multiplied as T (sm90_int4_stage.h). kFine: groups of 32
// inputs.
template <class T, bool kFine>
struct Int4 {};

// Tag type of a weight in T whose rows a | b are those of a gated unit (core/gemm.h).
template <class T>
struct Gated {};

// The type of the tokens' elements for weights of Element.
template <class Element>
struct NumberOfElement {
  using Type = Element;
};
template <class T, bool kFine>
struct NumberOfElement<Int4<T, kFine>> {
  using Type = T;
};
template <class T>
struct NumberOfElement<Gated<T>> {
  using Type = T;
};
template <class Element>
using NumberOf = typename NumberOfElement<Element>::Type;

template <class Element>
constexpr bool kGated = false;
template <class T>
constexpr bool kGated<Gated<T>> = true;

template <class Element>
constexpr bool kInt4 = !kGated<Element> && !std::is_same_v<Element, NumberOf<Element>>;

// Elements along k in a stage.
template <class Element>
constexpr int kStageColumns = 128 / static_cast<int>(sizeof(NumberOf<Element>));

// Tensor cores keep about 14 bits of a sum of e4m3 products, so the sums of one or two stages are
// added to fp32 sums outside.
template <class Element>
constexpr bool kPromoted = std::is_same_v<Element, __nv_fp8_e4m3> || kInBlocks<Element>;

// Whether elements have 8 bits and a scale per row of x and of the weight.
template <class Element>
constexpr bool kScaled = sizeof(NumberOf<Element>) == 1 && !kInBlocks<Element>;

// The type that products accumulate in.
template <class Element>
using SumOf = std::conditional_t<std::is_same_v<Element, int8_t>, int32_t, float>;

// Starts the products of one stage of e4m3 and adds them to part, or overwrites part if the stage
// is the `first` since the last promotion.
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

// Waits for all stages in part and adds it to d. The other warpgroup's products run meanwhile.
template <int kTokens>
__device__ __forceinline__ void promote(float (&d)[kTokens / 2], float (&part)[kTokens / 2]) {
  wgmma_wait<0>();
  wgmma_results(part);
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) d[i] += part[i];
}

}  // namespace fusewire::cuda::sm90
