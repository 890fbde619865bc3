// Products of many rows and a matrix of 4-bit numbers (int4_weight.h) by Hopper's wgmma, whose
// weights come from registers (sm90_int4_stage.h).
#pragma once

#include <optional>

#include "cuda/gemm/sm90_gemm.h"

namespace fusewire::cuda {

// The configuration that takes the least time by our reckoning; none where the product is of few
// rows, for which int4_gemm() is, or is not one that TMA can feed.
std::optional<Sm90Configuration> sm90_int4_choice(const GemmArguments& a);

template <class T>
void sm90_int4(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream);

}  // namespace fusewire::cuda
