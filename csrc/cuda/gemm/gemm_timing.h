// Times implementations of a matrix product against each other, on operands of its own.
#pragma once

#include <optional>
#include <vector>

#include "cuda/gemm/gemm_choice.h"

namespace fusewire::cuda {

// Returns the candidate that computes a product of this shape fastest and rounds once
// (gemm_rounding.h), with its time; the earliest of those that are about equally fast. Runs on the
// stream and synchronises it. A product is timed as it runs in a model: with cold weights, after a
// short kernel that writes its activations (whose time is included) and before another one, each a
// dependent launch. Operands are random. Returns nothing if no candidate computes the product, or
// if the device has no memory left for the operands. T is __half or __nv_bfloat16.
template <class T>
std::optional<GemmChoice> time_gemm(const GemmArguments& shape,
                                    const std::vector<GemmChoice>& candidates,
                                    const Stream& stream);

}  // namespace fusewire::cuda
