// Times implementations of a matrix product against each other, on operands of its own.
#pragma once

#include <optional>
#include <vector>

#include "cuda/gemm/gemm_choice.h"

namespace fusewire::cuda {

// The candidate that computes a product of this shape fastest and rounds once (gemm_rounding.h),
// with its time; of several that are as good as equal the earliest. Waits for the stream and runs
// on it. A product is timed as it runs in a model: its weights cold, after a short kernel that
// writes its activations (whose time is counted, too) and before another, each a dependent launch.
// Operands are random. Nothing when no candidate computes the product, or the device has no memory
// left for the operands. T is __half or __nv_bfloat16.
template <class T>
std::optional<GemmChoice> time_gemm(const GemmArguments& shape,
                                    const std::vector<GemmChoice>& candidates,
                                    const Stream& stream);

}  // namespace fusewire::cuda
