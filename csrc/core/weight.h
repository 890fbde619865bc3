// A weight, and the formats in which its elements are stored, apart from the dtype of the
// computation.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/error.h"

namespace fusewire {

// The storage format of a weight's elements. A format is a row of kFormats and a row in the table
// of every target that computes with it (GemmKernels in core/gemm.h).
enum class Format : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt8,
  kFloat8E4M3,
  kFloat8Blocks,
  kInt4,
  kW4A8
};

struct FormatRow {
  const char* name;
  DType element;  // type of the stored elements
  bool scaled;    // each row, block, or group of a row's inputs, has a scale
};

inline constexpr FormatRow kFormats[] = {
    {"float32", DType::kFloat32, false},
    {"float16", DType::kFloat16, false},
    {"bfloat16", DType::kBFloat16, false},
    {"int8", DType::kUInt8, true},         // symmetric: the largest magnitude of a row maps to 127
    {"float8_e4m3", DType::kUInt8, true},  // the largest magnitude of a row maps to 448
    {"float8_e4m3_blocks", DType::kUInt8, true},
    {"int4", DType::kUInt8, true},  // two elements per byte; groups, with zero points
    {"w4a8", DType::kUInt8, true},  // the same, for activations quantised to int8
};

constexpr const char* name_of(Format format) {
  return kFormats[static_cast<int>(format)].name;
}

constexpr bool scaled(Format format) {
  return kFormats[static_cast<int>(format)].scaled;
}

inline Format format_named(std::string_view name) {
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    if (name == kFormats[i].name) return static_cast<Format>(i);
  }
  std::string known;
  for (const FormatRow& row : kFormats) known += std::string(known.empty() ? "" : ", ") + row.name;
  fail("format: got '", name, "', wanted one of ", known);
}

// Rows and inputs of a block of kFloat8Blocks, which has one scale. The activations that it is
// multiplied by are quantised likewise, by this many inputs of a row.
inline constexpr int64_t kFloat8Block = 128;

constexpr int64_t float8_blocks(int64_t size) {
  return (size + kFloat8Block - 1) / kFloat8Block;
}

// Returns the number of scales of a weight [rows, inputs] without groups: [rows], or for blocks
// [float8_blocks(rows), float8_blocks(inputs)].
constexpr int64_t scales_of(Format format, int64_t rows, int64_t inputs) {
  return format == Format::kFloat8Blocks ? float8_blocks(rows) * float8_blocks(inputs) : rows;
}

// Returns the format that stores a tensor's elements as they are.
constexpr Format format_of(DType dtype) {
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    if (kFormats[i].element == dtype && !kFormats[i].scaled) return static_cast<Format>(i);
  }
  fail("weight: got ", name_of(dtype), ", wanted float32, float16 or bfloat16");
}

// One of `count` equal parts of a weight; each device of a group has one.
struct Shard {
  int64_t index = 0, count = 1;
};

struct Weight {
  Format format = Format::kFloat32;
  int64_t out_features = 0, in_features = 0;  // of this shard
  std::shared_ptr<void> data;                 // packed in the layout that the target reads
  // The value at (row, i) is scales[row, i / group] * (stored - zeros[row, i / group]); null: there
  // are none. For int4 each target has its own layout of them, both in `scales` or each by itself.
  // For kFloat8Blocks, rows of a block share a scale, too.
  std::shared_ptr<void> scales, zeros;
  int64_t group = 0;  // adjacent inputs of a row that share a scale and a zero; 0: the whole row
  // int32[in_features]: input i of the weight is multiplied by input order[i] of an activation row;
  // null: by input i.
  std::shared_ptr<void> order;
  float input_scale = 0;  // static scale of quantised activations; 0: computed from their values
  Shard shard;
  bool transposed = false;  // packed from [in_features, out_features]
};

}  // namespace fusewire
