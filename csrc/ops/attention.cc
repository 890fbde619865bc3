#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

void attention(const Tensor& out, const Tensor& qkv, const SequenceBatch& batch, int64_t heads,
               float scale, int64_t window, const Tensor* position_bias, const Stream& stream) {
  Check check("attention", stream);
  check.on_device("batch", batch.device());
  Dim tokens("tokens", batch.tokens()), width("heads * head_dim"), bias_width("2 L - 1");
  check.floats("out", out, {&tokens, &width});
  check.require(heads > 0 && width.size % heads == 0, "heads: got ", heads,
                ", wanted a divisor of the output's width ", width.size);
  check.require(window >= 0, "window: got ", window, ", wanted 0 (everything) or more");
  Dim tripled("3 * heads * head_dim", 3 * width.size), head_count("heads", heads);
  check.floats("qkv", qkv, {&tokens, &tripled});
  int64_t bias_span = 0;
  if (position_bias) {
    check.is("position_bias", *position_bias, DType::kFloat32, {&head_count, &bias_width});
    check.contiguous("position_bias", *position_bias);
    bias_span = (bias_width.size + 1) / 2;
    check.require(bias_width.size % 2 == 1 && bias_span >= batch.max_seqlen(),
                  "position_bias: got width ", bias_width.size,
                  ", wanted 2 L - 1 with L >= ", batch.max_seqlen(), ", the longest sequence");
  }
  const AttentionArguments a = {out.data,
                                qkv.data,
                                out.row_stride,
                                qkv.row_stride,
                                &batch,
                                heads,
                                width.size / heads,
                                window,
                                scale,
                                position_bias ? position_bias->as<float>() : nullptr,
                                bias_span};
  dispatch(check, stream, tokens.size,
           [&](const Kernels& kernels) { kernels.attention(a, stream); });
}

}  // namespace fusewire::ops
