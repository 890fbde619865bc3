// GEMM with 4-bit weights, which represent scale * (code - zero); x and out are fp32.
//
// One layout for every instruction set, panels [n / 32][k / 8][32] of words, as in panels.h: a word
// has eight adjacent elements along k of a column, each as code - 8 in two's complement, the first
// four in the lower halves of the word's bytes, as int8 products read them, the others in the upper
// halves. Scales, and zeros minus 8 where a weight has any, are floats [n / 32][groups][32].
// Columns beyond n are zero.
#pragma once

#include "core/gemm.h"
#include "cpu/panels.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr int64_t kPerWord = 8;
constexpr int kMiddle = 8;                  // the zero point of symmetric weights
constexpr uint32_t kMiddles = 0x88888888u;  // xor with a word's codes makes them signed, and back

// Returns the length of a chain: inputs of one group that are summed before they are scaled. All
// chains but the last have this length.
FUSEWIRE_INLINE int64_t int4_chain(int64_t group) {
  constexpr int64_t kMost = 256;
  return group && group < kMost ? group : kMost;
}

// Returns the number of floats from a panel's scales to those of the next.
inline int64_t panel_scales(int64_t k, int64_t group) {
  return (group ? k / group : 1) * kPanel;
}

size_t int4_packed_bytes(int64_t n, int64_t k);
size_t int4_scales_bytes(int64_t n, int64_t k, int64_t group);
void pack_int4(const PackArguments& a, const Stream& stream);

// Multiplies x with the weights; neither is rounded.
void run_int4(const GemmArguments& a, const Stream& stream);

// Multiplies rows that are quantised to 8 bits, as for int8 weights, with the codes as integers.
// Integer sums are exact; they are scaled and accumulated in fp32, rounded at each step, so that
// the bits are the same on every instruction set.
void run_w4a8(const GemmArguments& a, const Stream& stream);
#if FUSEWIRE_VEC_BYTES == 64
void run_w4a8_vnni(const GemmArguments& a, const Stream& stream);
#endif

}  // namespace fusewire::FUSEWIRE_TARGET
