// GEMM on weights of 4-bit numbers, x and out fp32, which stand for scale * (code - zero).
//
// One layout for every instruction set, panels [n / 32][k / 8][32] of words, as panels.h has them:
// of a column eight neighbours along k, each as code - 8 in two's complement: the first four in the
// lower halves of the word's bytes, as products of int8 take them, the others in the upper halves.
// Scales, and zeros less 8 where a weight has any, are floats [n / 32][groups][32]. Columns beyond
// n are zero.
#pragma once

#include "core/gemm.h"
#include "cpu/panels.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t kPerWord = 8;
constexpr int kMiddle = 8;                  // the zero point of symmetric weights
constexpr uint32_t kMiddles = 0x88888888u;  // of a word's codes, which makes them signed and back

// Inputs that are summed up before they are scaled: of one group, and as many as of all others but
// the last.
FUSEWIRE_INLINE int64_t int4_chain(int64_t group) {
  constexpr int64_t kMost = 256;
  return group && group < kMost ? group : kMost;
}

// Floats from a panel's scales to those of the next.
inline int64_t panel_scales(int64_t k, int64_t group) {
  return (group ? k / group : 1) * kPanel;
}

size_t int4_packed_bytes(int64_t n, int64_t k);
size_t int4_scales_bytes(int64_t n, int64_t k, int64_t group);
void pack_int4(const PackArguments& a, const Stream& stream);

// A product with the numbers themselves, none of which is rounded.
void run_int4(const GemmArguments& a, const Stream& stream);

// A product of rows that are rounded to 8 bits as for int8 weights, with the codes in integers.
// Sums of integers are exact, and scaled and added up in fp32, rounded at each step: the bits are
// the same on every instruction set.
void run_w4a8(const GemmArguments& a, const Stream& stream);
#if FUSEWIRE_VEC_BYTES == 64
void run_w4a8_vnni(const GemmArguments& a, const Stream& stream);
#endif

}  // namespace fusewire::FUSEWIRE_TARGET
