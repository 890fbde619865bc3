// Packs matrices of 4-bit elements into the order that products read (int4_weight.h), and
// dequantises them to 16 bits.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

size_t packed_int4_bytes(int64_t n, int64_t k);
size_t int4_scales_bytes(int64_t n, int64_t k, int64_t group);

// Packs bytes [n, k / 2], with the first of two inputs in the low bits. Writes the words of groups,
// made of scales [n, groups] and zero points, to `scales`.
void pack_int4(const PackArguments& a, const Stream& stream);

// Dequantises channels `first` to `first` + count of a packed weight [n, k] to T [count, k]; each
// element is rounded once. `first` is a multiple of 16.
template <class T>
void dequantize_int4(void* to, const GemmOperand& weight, int64_t k, int64_t first, int64_t count,
                     const Stream& stream);

}  // namespace fusewire::cuda
