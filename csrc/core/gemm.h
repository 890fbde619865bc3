// The arguments of a matrix product, for every target, and what a target has for a format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/activation.h"
#include "core/norm.h"
#include "core/stream.h"
#include "core/weight.h"

namespace fusewire {

// A matrix [rows, k] whose rows lie `stride` elements apart; transposed: stored as [k, rows]. The
// stride of a packed weight is k.
struct GemmOperand {
  const void* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
  // As of a Weight; null: none.
  const void *scales = nullptr, *zeros = nullptr;
  int64_t group = 0;
  const int32_t* order = nullptr;
};

// out[m, n] = activation(x[m, k] . weight[n, k]^T + bias) + beta * residual, accumulated in fp32.
// bias [n] and residual may be null; residual may be out. Strides count elements. Between kernels x
// and weight may both be of 8 bits with a scale a row: float8_e4m3, or int8 where `integers`. Of
// `blocks` (float8_e4m3) the scales are of x [float8_blocks(k), m rounded up to 4], of the weight
// [float8_blocks(n), float8_blocks(k)].
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
  float input_scale = 0;  // as of a Weight
};

// A weight [n, k], or transposed, [k, n], of the device or the host, in the dtype of the table that
// the kernels are in. Of a scaled format packing fills scales (scales_of), of the packed weight's
// device, from `given` where that is not null, else from the weight. `codes`: the weight is the
// format's own bytes, int8 or e4m3, of the scales that are given; of blocks it always is.
struct PackArguments {
  void* packed;
  const void* weight;
  int64_t n, k;
  bool transposed = false;
  float* scales = nullptr;
  const float* given = nullptr;
  bool codes = false;
  // Of int4, whose weight is bytes [n, k / 2] and whose scales are given: [n, groups], as zeros
  // are; null: 8.
  const uint8_t* zeros = nullptr;
  // Filled from these where products take them by themselves (GemmFeatures), else null.
  float* packed_zeros = nullptr;
  int64_t group = 0;
};

// What a product may ask for and not every kernel computes.
struct GemmFeatures {
  bool transposed_x = false, transposed_weight = false;
  bool scales = false, zeros = false, groups = false;  // of the weight or of x
  bool order = false;                                  // of the weight's inputs
  bool beta = false;                                   // other than 1
};

// The kernels of one target for one format of weights.
struct GemmKernels {
  Format format;
  GemmFeatures features;  // that `run` computes
  bool packing_copies;    // a weight that is on the device serves as it lies
  bool packs_transposed;
  size_t (*packed_bytes)(int64_t n, int64_t k);
  void (*pack)(const PackArguments& a, const Stream& stream);
  void (*run)(const GemmArguments& a, const Stream& stream);
  // The most rows that are computed as m are, which was measured; null: all are computed alike.
  int64_t (*bucket)(int64_t m);
  // Products of rows that are made just before, where the kernels quantise these as they are made;
  // null: they are made by an op of their own. `run_normed` fills norm.out, of which a.x is the
  // address: LayerNorm, or RMSNorm unless `centered`. `run_activated` multiplies activation(x), or
  // activation(x) times the columns from k on if `gated`, and may leave it in the place of x.
  void (*run_normed)(const GemmArguments& a, const NormArguments& norm, bool centered,
                     const Stream& stream) = nullptr;
  void (*run_activated)(const GemmArguments& a, Activation activation, bool gated,
                        const Stream& stream) = nullptr;
  // Of int4: how much `pack` writes to the scales, or to the zeros, of a weight [n, k].
  size_t (*int4_scales_bytes)(int64_t n, int64_t k, int64_t group) = nullptr;
};

template <size_t kCount>
const GemmKernels* kernels_of(const GemmKernels (&table)[kCount], Format format) {
  for (const GemmKernels& row : table) {
    if (row.format == format) return &row;
  }
  return nullptr;
}

// The largest number of rows of each bucket up to that of max_rows, which ends the list. Empty
// where there are none.
std::vector<int64_t> row_buckets(const GemmKernels& kernels, int64_t max_rows);

// The upper edge of m's bucket: 1, 8, then steps of 8, from 64 on at most an eighth apart, from
// 1024 on a sixteenth (there a wave of blocks more or less tells), from 16384 on a quarter;
// everything above 65536 is one bucket.
int64_t gemm_bucket(int64_t m);

// Error that names the first of the features that the product asks for and the kernels lack.
void check_features(const GemmKernels& kernels, const GemmArguments& a, Device device);

}  // namespace fusewire
