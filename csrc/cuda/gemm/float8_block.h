// Element types that kernels for 8-bit elements are templated over, beside __nv_fp8_e4m3 and
// int8_t.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

namespace fusewire::cuda {

// e4m3 with a scale per kFloat8Block elements along k: per row for x, per kFloat8Block rows for a
// weight.
struct Float8Block {
  __nv_fp8_e4m3 number;
};

template <class Code>
constexpr bool kInBlocks = std::is_same_v<Code, Float8Block>;

}  // namespace fusewire::cuda
