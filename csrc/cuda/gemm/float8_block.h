// What kernels for numbers of 8 bits are templated over, beside __nv_fp8_e4m3 and int8_t.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

namespace fusewire::cuda {

// e4m3 with a scale for each kFloat8Block numbers along k: of a row of x, and of as many rows of a
// weight.
struct Float8Block {
  __nv_fp8_e4m3 number;
};

template <class Code>
constexpr bool kInBlocks = std::is_same_v<Code, Float8Block>;

}  // namespace fusewire::cuda
