#include "ops/dispatch.h"
#include "ops/norm_arguments.h"
#include "ops/ops.h"

namespace fusewire::ops {

NormArguments norm_arguments(Check& check, const Tensor& out, const Tensor& x,
                             const Tensor* residual, const Tensor& weight, const Tensor* bias,
                             float eps) {
  Dim rows("rows"), cols("cols");
  check.floats("x", x, {&rows, &cols});
  check.floats("out", out, {&rows, &cols});
  check.floats("weight", weight, {&cols});
  if (residual) check.floats("residual", *residual, {&rows, &cols});
  if (bias) check.floats("bias", *bias, {&cols});
  check.require(cols.size > 0, "x: got rows of no elements, wanted at least one");
  check.require(eps > 0.0f, "eps: got ", eps, ", wanted more than 0");
  return {out.data,
          x.data,
          residual ? residual->data : nullptr,
          weight.data,
          bias ? bias->data : nullptr,
          out.row_stride,
          x.row_stride,
          residual ? residual->row_stride : 0,
          rows.size,
          cols.size,
          eps};
}

namespace {

// Sets where the rows of the token embedding are, and the sizes of that table.
void take_words(EmbedArguments& a, const Check& check, const Table& word, Dim& vocabulary,
                const Dim& hidden, const Stream& stream) {
  const auto* matrix = std::get_if<const Tensor*>(&word);
  const auto* weight = std::get_if<const Linear*>(&word);
  check.require(matrix ? *matrix != nullptr : *weight != nullptr, "word: got none, wanted a table");
  if (matrix) {
    Dim columns(hidden.name, hidden.size);
    check.is("word", **matrix, check.dtype(), {&vocabulary, &columns});
    check.contiguous("word", **matrix);
    a.word = (*matrix)->data;
  } else {
    const Weight& packed = (*weight)->weight();
    check.require(packed.format == Format::kInt8, "word: got a ", name_of(packed.format),
                  " Linear, wanted one in int8, or a matrix");
    check.require(stream.device.type == DeviceType::kCpu, "word: got an int8 Linear on ",
                  stream.device.text(), ", wanted a matrix; only CPUs look up rows of it");
    check.require(packed.in_features == hidden.size, "word: got rows of ", packed.in_features,
                  " numbers, wanted ", hidden.size, " as out has");
    vocabulary.size = packed.out_features;
    a.word = packed.data.get();
    a.word_scales = static_cast<const float*>(packed.scales.get());
  }
  a.vocabulary = vocabulary.size;
}

}  // namespace

void layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor* bias,
                float eps, const Stream& stream) {
  Check check("layer_norm", stream);
  const NormArguments a = norm_arguments(check, out, x, nullptr, weight, bias, eps);
  dispatch(check, stream, a.rows, [&](const Kernels& kernels) { kernels.layer_norm(a, stream); });
}

void rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, float eps,
              const Stream& stream) {
  Check check("rms_norm", stream);
  const NormArguments a = norm_arguments(check, out, x, nullptr, weight, nullptr, eps);
  dispatch(check, stream, a.rows, [&](const Kernels& kernels) { kernels.rms_norm(a, stream); });
}

void rms_norm_add(const Tensor& out, const Tensor& x, const Tensor& residual, const Tensor& weight,
                  float eps, const Stream& stream) {
  Check check("rms_norm_add", stream);
  const NormArguments a = norm_arguments(check, out, x, &residual, weight, nullptr, eps);
  dispatch(check, stream, a.rows, [&](const Kernels& kernels) { kernels.rms_norm_add(a, stream); });
}

void rms_norm_heads(const Tensor& x, const Tensor& weight, float eps, const Stream& stream) {
  Check check("rms_norm_heads", stream);
  Dim tokens("tokens"), width("heads * head_dim"), head_dim("head_dim");
  check.floats("x", x, {&tokens, &width});
  check.floats("weight", weight, {&head_dim});
  check.require(head_dim.size > 0 && width.size % head_dim.size == 0, "weight: got ", head_dim.size,
                " numbers, wanted a divisor of x's width ", width.size);
  dispatch(check, stream, tokens.size * width.size, [&](const Kernels& kernels) {
    kernels.rms_norm_heads(x.data, x.row_stride, weight.data, tokens.size,
                           width.size / head_dim.size, head_dim.size, eps, stream);
  });
}

void embed(const Tensor& out, const Tensor& ids, const Tensor* positions, const Table& word,
           const Tensor* position, float scale, const Stream& stream) {
  Check check("embed", stream);
  Dim tokens("tokens"), hidden("hidden"), vocabulary("vocabulary"), max_positions("positions");
  EmbedArguments a = {};
  check.is("ids", ids, DType::kInt64, {&tokens});
  check.floats("out", out, {&tokens, &hidden});
  take_words(a, check, word, vocabulary, hidden, stream);
  check.require(!position == !positions, "position: wanted the table and the indices, or neither");
  if (position) {
    check.floats("position", *position, {&max_positions, &hidden});
    check.contiguous("position", *position);
    check.is("positions", *positions, DType::kInt32, {&tokens});
  }
  a.out = out.data;
  a.out_stride = out.row_stride;
  a.ids = ids.as<int64_t>();
  a.positions = positions ? positions->as<int32_t>() : nullptr;
  a.position = position ? position->data : nullptr;
  a.max_positions = max_positions.size;
  a.tokens = tokens.size;
  a.hidden = hidden.size;
  a.scale = scale;
  dispatch(check, stream, tokens.size, [&](const Kernels& kernels) { kernels.embed(a, stream); });
}

void embed_layer_norm(const Tensor& out, const Tensor& ids, const Tensor* positions,
                      const Tensor* types, const Table& word, const Tensor* position,
                      const Tensor* token_type, const Tensor& weight, const Tensor* bias, float eps,
                      const Stream& stream) {
  Check check("embed_layer_norm", stream);
  Dim tokens("tokens"), hidden("hidden"), vocabulary("vocabulary");
  Dim max_positions("positions"), type_vocabulary("types");
  EmbedArguments a = {};
  check.is("ids", ids, DType::kInt64, {&tokens});
  check.floats("out", out, {&tokens, &hidden});
  take_words(a, check, word, vocabulary, hidden, stream);
  check.floats("weight", weight, {&hidden});
  if (bias) check.floats("bias", *bias, {&hidden});
  check.require(!position == !positions, "position: wanted the table and the indices, or neither");
  check.require(!token_type == !types, "token_type: wanted the table and the indices, or neither");
  if (position) {
    check.floats("position", *position, {&max_positions, &hidden});
    check.contiguous("position", *position);
    check.is("positions", *positions, DType::kInt32, {&tokens});
  }
  if (token_type) {
    check.floats("token_type", *token_type, {&type_vocabulary, &hidden});
    check.contiguous("token_type", *token_type);
    check.is("types", *types, DType::kInt32, {&tokens});
  }
  a.out = out.data;
  a.out_stride = out.row_stride;
  a.ids = ids.as<int64_t>();
  a.positions = positions ? positions->as<int32_t>() : nullptr;
  a.types = types ? types->as<int32_t>() : nullptr;
  a.position = position ? position->data : nullptr;
  a.token_type = token_type ? token_type->data : nullptr;
  a.max_positions = max_positions.size;
  a.type_vocabulary = type_vocabulary.size;
  a.weight = weight.data;
  a.bias = bias ? bias->data : nullptr;
  a.tokens = tokens.size;
  a.hidden = hidden.size;
  a.eps = eps;
  a.scale = 1.0f;
  dispatch(check, stream, tokens.size,
           [&](const Kernels& kernels) { kernels.embed_layer_norm(a, stream); });
}

}  // namespace fusewire::ops
