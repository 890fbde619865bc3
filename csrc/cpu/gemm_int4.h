// GEMM on weights of 4-bit numbers, x and out fp32: a product with the numbers that the codes stand
// for, scale * (code - zero), none of which is rounded.
//
// One layout for every instruction set, panels [n / 32][k / 8][32] of words, as panels.h has them:
// of a column eight neighbours along k, the first in the lowest bits, each as code - 8 in two's
// complement. Scales, and zeros less 8 where a weight has any, are floats [n / 32][groups][32].
// Columns beyond n are zero.
#pragma once

#include "core/gemm.h"

namespace fusewire::FUSEWIRE_TARGET {

size_t int4_packed_bytes(int64_t n, int64_t k);
size_t int4_scales_bytes(int64_t n, int64_t k, int64_t group);
void pack_int4(const PackArguments& a, const Stream& stream);
void run_int4(const GemmArguments& a, const Stream& stream);

}  // namespace fusewire::FUSEWIRE_TARGET
