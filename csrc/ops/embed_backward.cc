#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void embed_backward(const Tensor& dtable, const Tensor& ids, const Tensor& dy, float scale,
                    bool accumulate, const Stream& stream) {
  Check check("embed_backward", stream);
  Dim tokens("tokens"), hidden("hidden"), table_rows("table_rows");
  check.floats("dy", dy, {&tokens, &hidden});
  check.is("dtable", dtable, DType::kFloat32, {&table_rows, &hidden});
  const bool narrow = ids.dtype == DType::kInt32;
  check.is("ids", ids, narrow ? DType::kInt32 : DType::kInt64, {&tokens});
  constexpr int64_t kMost = int64_t{1} << 32;
  check.require(tokens.size < kMost && table_rows.size < kMost, "ids: got ", tokens.size,
                " for a table of ", table_rows.size, " rows, wanted fewer than 2^32 of both");
  dispatch_training(
      check, stream, table_rows.size * hidden.size, [&](const TrainingKernels& kernels) {
        kernels.embed_backward(dtable.as<float>(), dtable.row_stride, table_rows.size,
                               narrow ? nullptr : ids.as<int64_t>(),
                               narrow ? ids.as<int32_t>() : nullptr, dy.data, dy.row_stride,
                               tokens.size, hidden.size, scale, accumulate, stream);
      });
}

}  // namespace fusewire::ops
