#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void pool_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, const SequenceBatch& batch,
                   Pooling pooling, const Stream& stream) {
  Check check("pool_backward", stream);
  check.on_device("batch", batch.device());
  Dim tokens("tokens", batch.tokens()), sequences("sequences", batch.sequences()), hidden("hidden");
  check.floats("x", x, {&tokens, &hidden});
  check.floats("dy", dy, {&sequences, &hidden});
  check.floats("dx", dx, {&tokens, &hidden});
  check.require(dx.data != x.data || stream.recording, "dx: got x's memory, wanted its own");
  dispatch_training(check, stream, tokens.size, [&](const TrainingKernels& kernels) {
    kernels.pool_backward(dx.data, dx.row_stride, dy.data, dy.row_stride, x.data, x.row_stride,
                          batch, hidden.size, pooling, stream);
  });
}

}  // namespace fusewire::ops
