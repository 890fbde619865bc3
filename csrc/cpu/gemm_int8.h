// Products with int8 weights: out = activation(x . weight^T + bias) + residual, where both operands
// of the product are quantised to 8 bits, symmetrically by row, and multiplied as integers.
//
// A weight is packed in panels of 32 columns of the result, [n / 32][k / 4][32][4] bytes, the same
// for every instruction set: the four adjacent elements in k that one `vpdpbusd` adds up for a
// column are contiguous, and 16 columns of them are a row of an AMX tile. A byte is the integer
// plus 128, because that instruction multiplies unsigned by signed bytes, and only the signed ones
// can be broadcast from memory: so the sums start at -128 times the sum of the row of x.
#pragma once

#include "core/gemm.h"
#include "cpu/int8_scale.h"
#include "cpu/panels.h"

namespace fusewire::FUSEWIRE_TARGET {

constexpr uint8_t kZeroByte = 128;               // the byte of 0
constexpr int64_t kPanelStep = kPanel * kGroup;  // bytes between the groups of a panel

// Returns the first group of a row; the next is kPanelStep bytes further.
FUSEWIRE_INLINE const uint8_t* packed_row(const uint8_t* packed, int64_t row, int64_t k) {
  return packed + row / kPanel * groups_of(k) * kPanelStep + row % kPanel * kGroup;
}

size_t int8_packed_bytes(int64_t n, int64_t k);
void pack_int8(const PackArguments& a, const Stream& stream);
void run_int8(const GemmArguments& a, const Stream& stream);
#if FUSEWIRE_VEC_BYTES == 64
void run_int8_vnni(const GemmArguments& a, const Stream& stream);  // needs AVX512-VNNI
#endif

}  // namespace fusewire::FUSEWIRE_TARGET
