// The contract between ops/ and the targets: a table of kernels for each (device, instruction set,
// element type). A target registers itself when its file is linked in; nothing names the targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/activation.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/pooling.h"
#include "core/sequence_batch.h"
#include "core/stream.h"

namespace fusewire {

// out = norm(x [+ residual]) * weight [+ bias], by rows. residual and bias may be null.
struct NormArguments {
  void* out;
  const void* x;
  const void* residual;
  const void* weight;
  const void* bias;
  int64_t out_stride, x_stride, residual_stride, rows, cols;
  float eps;
};

// Row t of out = layer_norm(word[ids[t]] + position[positions[t]] + token_type[types[t]]).
// position and token_type (with their index arrays) and bias may be null.
struct EmbedArguments {
  void* out;
  int64_t out_stride;
  const int64_t* ids;
  const int32_t *positions, *types;
  const void *word, *position, *token_type;
  int64_t vocabulary, max_positions, type_vocabulary;
  const void *weight, *bias;
  int64_t tokens, hidden;
  float eps;
};

// qkv rows are q | k | v, each heads * head_dim wide. Token i of a sequence sees token j when
// window == 0 or |i - j| <= window. position_bias [heads, 2 * bias_span - 1], null or added to the
// scaled score at column j - i + bias_span - 1.
struct AttentionArguments {
  void* out;
  const void* qkv;
  int64_t out_stride, qkv_stride;
  const SequenceBatch* batch;
  int64_t heads, head_dim, window;
  float scale;
  const float* position_bias;
  int64_t bias_span;
};

struct Kernels {
#define KERNEL(result, name, arguments) result(*name) arguments;
#include "core/kernels.inc"
#undef KERNEL
};

struct Target {
  const char* name;
  DeviceType device;
  int rank;          // of several usable targets of a device the highest is taken
  bool (*usable)();  // by the machine we run on
  DType dtype;
  const Kernels* kernels;
};

void register_target(const Target& target);

// Throws Error when no usable target of the device has kernels for the element type.
const Kernels& kernels_for(Device device, DType dtype);

std::vector<std::string> cpu_targets();  // usable here, slowest first
std::string cpu_target();                // in force
void set_cpu_target(std::string_view name);

}  // namespace fusewire
