// The kernels of backward passes and optimizers: a second table of a target, which a target for
// inference only does not have.
#pragma once

#include <cstdint>

#include "core/activation.h"
#include "core/adam.h"
#include "core/attention_backward.h"
#include "core/device.h"
#include "core/dropout.h"
#include "core/dtype.h"
#include "core/pooling.h"
#include "core/sequence_batch.h"
#include "core/stream.h"

namespace fusewire {

// dw[out_features, in_features] = dy[rows, out_features]^T . x[rows, in_features]
struct WeightGradientArguments {
  float* dw;
  int64_t dw_stride;
  const void* dy;
  int64_t dy_stride;
  const void* x;
  int64_t x_stride;
  int64_t rows, out_features, in_features;
  bool accumulate;
};

// Backward pass of y = norm(x) * weight [+ bias], by rows: dx is the gradient with respect to x,
// plus dresidual unless that is null. dx may be dy or dresidual. dbias may be null. Unless dz is
// null, dz is the result of dropout_add for dx, for a LayerNorm without dresidual; it may be x.
// Then `sums`, which may be null, are the column_sums of dz.
struct NormBackwardArguments {
  void* dx;
  float *dweight, *dbias;
  const void *dy, *x, *weight, *dresidual;
  int64_t dx_stride, dy_stride, x_stride, dresidual_stride, rows, cols;
  float eps;
  bool accumulate;
  void* dz;
  int64_t dz_stride;
  Dropout dropout;
  float* sums;
};

// sum = x * mask / (1 - probability) + residual; sum may be x or residual.
// out = norm(sum) * weight [+ bias], by rows; bias may be null.
struct DropoutNormArguments {
  void *out, *sum;
  const void *x, *residual, *weight, *bias;
  int64_t out_stride, sum_stride, x_stride, residual_stride, rows, cols;
  float eps;
  Dropout dropout;
};

// Rows of logits and their labels (ops.def, cross_entropy); scale may be null.
struct CrossEntropyArguments {
  float* losses;
  void* logits;
  int64_t stride;
  const int64_t* labels;
  int64_t rows, cols, ignore_index;
  float smoothing;
  const float* scale;
  bool gradient;
};

struct TrainingKernels {
#define KERNEL(result, name, arguments) result(*name) arguments;
#include "core/training_kernels.inc"
#undef KERNEL
};

// Returns the training kernels in use. Error if the target has none for the element type.
const TrainingKernels& training_kernels_for(Device device, DType dtype);

}  // namespace fusewire
