#include "ops/rotary.h"

#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {

RotaryArguments rotary_arguments(Check& check, const Tensor& qkv, const Tensor& positions,
                                 const Tensor& cos, const Tensor& sin, int64_t heads,
                                 int64_t kv_heads) {
  Dim tokens("tokens"), width("(heads + 2 * kv_heads) * head_dim");
  Dim angles("positions"), half("rotary_dim / 2");
  check.floats("qkv", qkv, {&tokens, &width});
  check.is("positions", positions, DType::kInt32, {&tokens});
  check.is("cos", cos, DType::kFloat32, {&angles, &half});
  check.is("sin", sin, DType::kFloat32, {&angles, &half});
  check.contiguous("cos", cos);
  check.contiguous("sin", sin);
  const int64_t all_heads = heads + 2 * kv_heads;
  check.require(heads > 0 && kv_heads > 0 && width.size % all_heads == 0, "heads, kv_heads: got ",
                heads, ", ", kv_heads, ", wanted heads + 2 * kv_heads to divide qkv's width ",
                width.size);
  const int64_t head_dim = width.size / all_heads;
  check.require(half.size > 0 && 2 * half.size <= head_dim, "cos: got width ", half.size,
                ", wanted 1 to ", head_dim / 2, ", half of the head's ", head_dim, " numbers");
  return {qkv.data,    qkv.row_stride, positions.as<int32_t>(), cos.as<float>(), sin.as<float>(),
          angles.size, tokens.size,    heads + kv_heads,        head_dim,        2 * half.size};
}

void rotary(const Tensor& qkv, const Tensor& positions, const Tensor& cos, const Tensor& sin,
            int64_t heads, int64_t kv_heads, const Stream& stream) {
  Check check("rotary", stream);
  const RotaryArguments a = rotary_arguments(check, qkv, positions, cos, sin, heads, kv_heads);
  dispatch(check, stream, a.tokens, [&](const Kernels& kernels) { kernels.rotary(a, stream); });
}

}  // namespace fusewire::ops
