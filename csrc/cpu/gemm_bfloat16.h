// GEMM with weights that are packed in bfloat16; x and out are fp32. One layout for every
// instruction set, panels [n / 32][k / 2][32][2]: as in panels.h, with a word of two adjacent
// elements along k in the place of a float. Columns beyond n and the element after an odd k are
// zero.
#pragma once

#include "core/gemm.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t pairs_of(int64_t k) {
  return (k + 1) / 2;
}

size_t bfloat16_packed_bytes(int64_t n, int64_t k);
void pack_bfloat16(const PackArguments& a, const Stream& stream);

// Widens the weights in registers: half the memory of fp32, and the same bits as the fp32 kernel
// with the rounded weights.
void run_bfloat16(const GemmArguments& a, const Stream& stream);

#if FUSEWIRE_VEC_BYTES == 64
// Rounds x to bfloat16 too and multiplies with AVX512_BF16, which the CPU must have: twice as many
// products per instruction, each exact, accumulated in fp32. The instruction treats subnormal
// numbers as zeros.
void run_bfloat16_dot(const GemmArguments& a, const Stream& stream);
#endif

}  // namespace fusewire::FUSEWIRE_TARGET
