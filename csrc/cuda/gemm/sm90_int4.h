// Products of many rows and a matrix of 4-bit elements (int4_weight.h) by Hopper's wgmma, which
// takes the weight from registers (sm90_int4_stage.h).
#pragma once

#include <optional>

#include "cuda/gemm/sm90_gemm.h"

namespace fusewire::cuda {

// Returns the configuration with the least estimated time; none if the product has so few rows that
// int4_gemm() is faster, or if TMA does not support its operands.
std::optional<Sm90Configuration> sm90_int4_choice(const GemmArguments& a);

template <class T>
void sm90_int4(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream);

}  // namespace fusewire::cuda
