// Rows of numbers in 8 bits with a scale a row, activations by the token, weights by the channel,
// or with one for each block of a row.
#pragma once

#include <cstdint>

#include "core/activation.h"
#include "core/norm.h"
#include "core/stream.h"
#include "core/weight.h"
#include "cuda/gemm/float8_block.h"

namespace fusewire::cuda {

// What a product of 8 bits takes k as: rows of this many bytes serve TMA and cuBLASLt.
constexpr int64_t kCodeColumns = 16;
// Scales of rows that tiles reach beyond the last one are read, though not used.
constexpr int64_t kScalesBeyond = 256;

// Of rows in e4m3 with a scale for each kFloat8Block numbers: the distance from one block's scales
// to the next one's, whose first has the address that bulk copies want.
constexpr int64_t block_scale_stride(int64_t rows) {
  return (rows + 3) / 4 * 4;
}

// data[r, c] = e4m3(x[r, c] * (448 / top)), nearest even, and scales[r] = top / 448, where top is
// the largest magnitude of the row, or 1e-30 if that is larger: the scale of zeros is not 0. With
// `given`, or `input_scale` for all rows, these take their place, and what they do not reach
// becomes 448. Columns from cols to `padded` are 0. A row with NaN or infinity is zeros with the
// scale NaN, which a product with it is, too.
//
// Of Float8Block each block of a row is such a row, whose scale is scales[block, r]. Rows from
// `together` on have theirs behind those of the others, as a matrix of their own.
//
// Of int8 127 stands in the place of 448, and a row whose scale would be no normal number is zeros
// with the scale 0: as on the CPU.
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

// The same of weights in int8, which are divided by their scale, as on the CPU: an int8 activation
// is multiplied by its reciprocal.
template <class T>
void quantize_int8_weights(const QuantizeArguments& a, const Stream& stream);

// The same of activation(x), or of activation(x) times the columns from cols on if `gated`: in one
// pass where registers hold a row, else x is activated in place first. Same bits either way.
template <class T, class Code>
void quantize_activated(const QuantizeArguments& a, Activation activation, bool gated,
                        const Stream& stream);

// The same of what the norm writes, which is q.x: LayerNorm, or RMSNorm unless `centered`.
template <class T, class Code>
void quantize_norm(const QuantizeArguments& q, const NormArguments& norm, bool centered,
                   const Stream& stream);

struct QuantizedRows {
  uint8_t* data;
  float* scales;  // and kScalesBeyond more
};

// Memory for a product's rows [rows, padded] and their scales, until the stream's next op that
// keeps some (kept_memory.h): products take none.
QuantizedRows quantized_rows_of(const Stream& stream, int64_t rows, int64_t padded, int64_t scales);

}  // namespace fusewire::cuda
