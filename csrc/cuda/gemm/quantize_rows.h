// Quantises rows to 8 bits, with a scale per row (per token of activations, per channel of weights)
// or per block of a row.
#pragma once

#include <cstdint>

#include "core/activation.h"
#include "core/norm.h"
#include "core/stream.h"
#include "core/weight.h"
#include "cuda/gemm/float8_block.h"

namespace fusewire::cuda {

// Products in 8 bits take k as a multiple of this: TMA and cuBLASLt need rows of 16 bytes.
constexpr int64_t kCodeColumns = 16;
// Tiles read scales of rows beyond the last one, without using them.
constexpr int64_t kScalesBeyond = 256;

// Returns the distance between the scales of two neighbouring blocks of a row, for rows in e4m3
// with a scale per kFloat8Block elements. It is a multiple of 16 bytes, the alignment of bulk
// copies.
constexpr int64_t block_scale_stride(int64_t rows) {
  return (rows + 3) / 4 * 4;
}

// Computes data[r, c] = e4m3(x[r, c] * (448 / top)), rounded to nearest even, and scales[r] = top /
// 448, where top is the largest magnitude of the row, at least 1e-30, so that the scale of zeros is
// not 0. `given` (per row) or `input_scale` (for all rows) replaces these scales; values beyond
// their range saturate at 448. Columns from cols to `padded` are 0. A row with NaN or infinity
// becomes zeros with the scale NaN, so that its product is NaN too.
//
// With Float8Block each block of a row is quantised in this way, with the scale scales[block, r].
// The scales of rows from `together` on follow those of the others, as a matrix of their own.
//
// For int8 127 replaces 448, and a row whose scale would not be a normal number becomes zeros with
// the scale 0, as on the CPU.
struct QuantizeArguments {
  uint8_t* data;  // [rows, padded], aligned to 16 bytes
  float* scales;  // [rows], or [float8_blocks(padded), scale_stride]
  const void* x;
  int64_t x_stride, rows, cols, padded;
  const float* given = nullptr;
  float input_scale = 0;  // 0: none
  int64_t scale_stride = 0, together = 0;

  constexpr int64_t scale_place(int64_t block, int64_t row) const {
    if (row < together) return block * scale_stride + row;
    return float8_blocks(padded) * scale_stride + block * block_scale_stride(rows - together) +
           row - together;
  }
};

template <class T, class Code>
void quantize_rows(const QuantizeArguments& a, const Stream& stream);

// As quantize_rows, for int8 weights: elements are divided by the scale, as on the CPU, while
// activations are multiplied by its reciprocal.
template <class T>
void quantize_int8_weights(const QuantizeArguments& a, const Stream& stream);

// As quantize_rows, of activation(x) or, if `gated`, of activation(x) times the columns from cols
// on. One pass if registers hold a row, otherwise x is first activated in place. The bits are the
// same either way.
template <class T, class Code>
void quantize_activated(const QuantizeArguments& a, Activation activation, bool gated,
                        const Stream& stream);

// As quantize_rows, of the output of the norm, which is q.x: LayerNorm if `centered`, otherwise
// RMSNorm.
template <class T, class Code>
void quantize_norm(const QuantizeArguments& q, const NormArguments& norm, bool centered,
                   const Stream& stream);

struct QuantizedRows {
  uint8_t* data;
  float* scales;  // followed by kScalesBeyond more
};

// Returns memory for the rows [rows, padded] of a product and their scales. It is valid until the
// next op on the stream that keeps memory (kept_memory.h), which products do not.
QuantizedRows quantized_rows_of(const Stream& stream, int64_t rows, int64_t padded, int64_t scales);

}  // namespace fusewire::cuda
