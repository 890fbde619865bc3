#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void cross_entropy(const Tensor& losses, const Tensor& logits, const Tensor& labels,
                   int64_t ignore_index, float smoothing, const Tensor* scale, bool gradient,
                   const Stream& stream) {
  Check check("cross_entropy", stream);
  Dim rows("rows"), cols("cols"), one("1", 1);
  check.floats("logits", logits, {&rows, &cols});
  check.is("losses", losses, DType::kFloat32, {&rows});
  check.is("labels", labels, DType::kInt64, {&rows});
  if (scale) check.is("scale", *scale, DType::kFloat32, {&one});
  check.require(cols.size > 0, "logits: got rows of no elements, wanted at least one");
  check.require(smoothing >= 0.0f && smoothing <= 1.0f, "smoothing: got ", smoothing,
                ", wanted 0 to 1");
  const CrossEntropyArguments a = {losses.as<float>(),
                                   logits.data,
                                   logits.row_stride,
                                   labels.as<int64_t>(),
                                   rows.size,
                                   cols.size,
                                   ignore_index,
                                   smoothing,
                                   scale ? scale->as<float>() : nullptr,
                                   gradient};
  dispatch_training(check, stream, rows.size,
                    [&](const TrainingKernels& kernels) { kernels.cross_entropy(a, stream); });
}

}  // namespace fusewire::ops
