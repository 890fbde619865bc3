// Matrices of 4-bit numbers into the order that products read (int4_weight.h), and back to 16 bits.
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

size_t packed_int4_bytes(int64_t n, int64_t k);
size_t int4_scales_bytes(int64_t n, int64_t k, int64_t group);

// From bytes [n, k / 2], the first of two inputs in the low bits, with scales [n, groups] and zero
// points; fills `scales` with the words of groups.
void pack_int4(const PackArguments& a, const Stream& stream);

// Channels `first` to `first` + count of a packed weight [n, k] as T [count, k]; each number is
// rounded once. `first` is a multiple of 16.
template <class T>
void dequantize_int4(void* to, const GemmOperand& weight, int64_t k, int64_t first, int64_t count,
                     const Stream& stream);

}  // namespace fusewire::cuda
