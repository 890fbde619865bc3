// The arguments of a matrix product, and the kernels of a target for a weight format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/activation.h"
#include "core/norm.h"
#include "core/stream.h"
#include "core/weight.h"

namespace fusewire {

// A matrix [rows, k] with a leading dimension of `stride` elements; if `transposed`, it is stored
// as [k, rows]. The stride of a packed weight is k.
struct GemmOperand {
  const void* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
  // As in Weight (core/weight.h); null: none.
  const void *scales = nullptr, *zeros = nullptr;
  int64_t group = 0;
  const int32_t* order = nullptr;
};

// out[m, n] = activation(x[m, k] . weight[n, k]^T + bias) + beta * residual, accumulated in fp32.
// bias [n] and residual may be null; residual may be out. Strides count elements. Within a target,
// x and weight may both be 8-bit with a scale per row: float8_e4m3, or int8 if `integers`. With
// `blocks` (float8_e4m3), the scales of x are [float8_blocks(k), m rounded up to 4] and those of
// the weight [float8_blocks(n), float8_blocks(k)].
struct GemmArguments {
  void* out = nullptr;
  int64_t out_stride = 0;
  GemmOperand x, weight;
  int64_t m = 0, n = 0, k = 0;
  const void* bias = nullptr;
  Activation activation = Activation::kNone;
  const void* residual = nullptr;
  int64_t residual_stride = 0;
  float beta = 1.0f;
  bool integers = false, blocks = false;
  float input_scale = 0;  // as in Weight
  // Not null: a gated unit (Shazeer 2020). The weight and the bias have rows a | b, n in all, and
  // out[m, n / 2] = activation(x . a^T) * (x . b^T), without a residual. `both` [m, n] is scratch
  // memory.
  void* both = nullptr;
  int64_t both_stride = 0;
};

// Packs a weight [n, k] or, if `transposed`, [k, n], in the memory of the device or the host, in
// the dtype of the kernels' table. For a scaled format, packing writes `scales` (scales_of
// elements, on the device of the packed weight): those in `given` if it is not null, else scales
// computed from the weight. `codes`: the weight is already in the format's own bytes, int8 or e4m3,
// with the scales that are given; for float8_e4m3_blocks it always is.
struct PackArguments {
  void* packed;
  const void* weight;
  int64_t n, k;
  bool transposed = false;
  float* scales = nullptr;
  const float* given = nullptr;
  bool codes = false;
  // For int4, whose weight is bytes [n, k / 2] and whose scales are given as [n, groups]: zero
  // points of the same shape; null: 8.
  const uint8_t* zeros = nullptr;
  // Receives the zero points where products take them separately (GemmFeatures), else null.
  float* packed_zeros = nullptr;
  int64_t group = 0;
};

// Features that a product may need and some kernels lack.
struct GemmFeatures {
  bool transposed_x = false, transposed_weight = false;
  bool scales = false, zeros = false, groups = false;  // of the weight or of x
  bool order = false;                                  // GemmOperand::order of the weight
  bool beta = false;                                   // a beta other than 1
  bool gated = false;                                  // GemmArguments::both
};

// The kernels of one target for one format of weights.
struct GemmKernels {
  Format format;
  GemmFeatures features;  // supported by `run`
  bool packing_copies;    // `pack` only copies: a weight on the device can be used in place
  bool packs_transposed;
  size_t (*packed_bytes)(int64_t n, int64_t k);
  void (*pack)(const PackArguments& a, const Stream& stream);
  void (*run)(const GemmArguments& a, const Stream& stream);
  // Returns the upper edge of m's bucket: all m in a bucket run with the kernel that was measured
  // for it. Null: there are no buckets, and all m are computed alike.
  int64_t (*bucket)(int64_t m);
  // Products fused with the op that computes x, where the kernels quantise its rows as they are
  // computed; null: that op runs by itself. `run_normed` also writes norm.out, which is a.x:
  // LayerNorm if `centered`, else RMSNorm. `run_activated` multiplies activation(x) or, if `gated`,
  // activation(x) times the columns from k on, and may overwrite x with it.
  void (*run_normed)(const GemmArguments& a, const NormArguments& norm, bool centered,
                     const Stream& stream) = nullptr;
  void (*run_activated)(const GemmArguments& a, Activation activation, bool gated,
                        const Stream& stream) = nullptr;
  // For int4: returns the bytes of the scales, or of the zeros, that `pack` writes for a weight
  // [n, k].
  size_t (*int4_scales_bytes)(int64_t n, int64_t k, int64_t group) = nullptr;
};

template <size_t kCount>
const GemmKernels* kernels_of(const GemmKernels (&table)[kCount], Format format) {
  for (const GemmKernels& row : table) {
    if (row.format == format) return &row;
  }
  return nullptr;
}

// Returns the upper edges of the buckets up to max_rows, which is the last one. Empty if there are
// no buckets.
std::vector<int64_t> row_buckets(const GemmKernels& kernels, int64_t max_rows);

// Returns the upper edge of m's bucket: 1, 8, then multiples of 8. From 64 on edges are at most an
// eighth apart, from 1024 on a sixteenth (where one wave of thread blocks more or less matters),
// from 16384 on a quarter; everything above 65536 is one bucket.
int64_t gemm_bucket(int64_t m);

// Throws an error that names the first feature that the product needs and the kernels lack.
void check_features(const GemmKernels& kernels, const GemmArguments& a, Device device);

}  // namespace fusewire
