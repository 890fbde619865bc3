// Packed attention as its implementations on this device see it: attention.cu picks one by shape.
#pragma once

#include "core/kernels.h"

namespace fusewire::cuda {

// What every kernel here needs by value: a SequenceBatch stays on the host.
struct AttentionShape {
  int64_t out_stride, qkv_stride;
  const int32_t* offsets;  // of the batch, in device memory
  int sequences, heads, head_dim, window;
  float scale;
  const float* position_bias;
  int64_t bias_span;

  explicit AttentionShape(const AttentionArguments& a)
      : out_stride(a.out_stride),
        qkv_stride(a.qkv_stride),
        offsets(a.batch->device_offsets()),
        sequences(static_cast<int>(a.batch->sequences())),
        heads(static_cast<int>(a.heads)),
        head_dim(static_cast<int>(a.head_dim)),
        window(static_cast<int>(a.window < INT32_MAX / 2 ? a.window : 0)),
        scale(a.scale),
        position_bias(a.position_bias),
        bias_span(a.bias_span) {}
};

// The widest head of the kernels.
inline constexpr int64_t kMaxHeadDim = 256;

// Our kernel for Hopper (T is __half or __nv_bfloat16): head_dim 64 or 128, no window, no bias,
// rows that TMA can address. `fits` says whether it can be used.
bool sm90_attention_fits(const AttentionArguments& a);
template <class T>
void sm90_attention(const AttentionArguments& a, const Stream& stream);

// A batch of so few short sequences (head_dim 64, no window, no bias) that each tile of 16 queries
// of a head has a multiprocessor to itself. `fits` says whether it is one.
bool split_attention_fits(const AttentionArguments& a);
template <class T>
void split_attention(const AttentionArguments& a, const Stream& stream);

// Tensor cores by mma.sync (T is __half or __nv_bfloat16): every shape.
template <class T>
void flash_attention(const AttentionArguments& a, const Stream& stream);

// CUDA cores in fp32: every shape.
void fp32_attention(const AttentionArguments& a, const Stream& stream);

}  // namespace fusewire::cuda
