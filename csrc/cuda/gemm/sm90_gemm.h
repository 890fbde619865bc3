// Our own matrix products for Hopper (T is __half or __nv_bfloat16). They have numbered
// configurations (tile, slices of k); which one is fastest for a shape is measured (gemm_choice.h).
#pragma once

#include "core/gemm.h"

namespace fusewire::cuda {

// A tile of channels x tokens. split: slices of k; 0 marks a large configuration.
struct Sm90Configuration {
  int channels, tokens, split;
  bool ping_pong = false;
};

int sm90_gemm_configurations();
// Returns whether TMA supports the operands, and the epilogue what it adds and writes.
bool sm90_operands_fit(const GemmArguments& a);
// Returns whether this configuration can compute the product: alignment of TMA, sizes.
bool sm90_gemm_fits(const GemmArguments& a, int configuration);
template <class T>
void sm90_gemm(const GemmArguments& a, int configuration, const Stream& stream);
// Returns the first configuration that can compute the product on a Hopper GPU; -1: none can.
int first_sm90_configuration(const GemmArguments& a);
// Products of 8-bit operands with scales.
template <class T>
void sm90_gemm_float8(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream);
template <class T>
void sm90_gemm_float8_blocks(const GemmArguments& a, const Sm90Configuration& c,
                             const Stream& stream);
template <class T>
void sm90_gemm_int8(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream);
// Products whose results are gated units.
template <class T>
void sm90_gemm_gated(const GemmArguments& a, const Sm90Configuration& c, const Stream& stream);

}  // namespace fusewire::cuda
