#include "layers/encoder_layer.h"

#include <cmath>

#include "core/kernels.h"
#include "ops/ops.h"

namespace fusewire {
namespace {

// A scratch matrix whose rows lie apart as the kernels like them.
class Matrix {
 public:
  Matrix(Scratch& scratch, int64_t rows, int64_t cols, DType dtype, const Stream& stream)
      : memory_(scratch.tensor({rows, kernels_for(stream.device, dtype).row_stride(cols)}, dtype)),
        view_(memory_->columns(0, cols)) {}
  operator const Tensor&() const { return view_; }

 private:
  ScratchTensor memory_;
  Tensor view_;
};

void expect(const char* name, const std::shared_ptr<const Linear>& linear, int64_t out,
            int64_t in) {
  if (!linear) fail("EncoderLayer: ", name, ": got none, wanted a Linear[", out, ", ", in, "]");
  if (linear->out_features() != out || linear->in_features() != in) {
    fail("EncoderLayer: ", name, ": got Linear[", linear->out_features(), ", ",
         linear->in_features(), "], wanted [", out, ", ", in, "] by the specification");
  }
}

}  // namespace

EncoderLayer::EncoderLayer(LayerSpec spec, LayerWeights weights)
    : spec_(spec), weights_(std::move(weights)) {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) fail("LayerSpec: ", name, ": got ", value, ", wanted 1 or more");
  };
  positive("hidden", spec_.hidden);
  positive("intermediate", spec_.intermediate);
  positive("heads", spec_.heads);
  positive("head_dim", spec_.head_dim);
  const int64_t width = spec_.heads * spec_.head_dim;
  expect("qkv", weights_.qkv, 3 * width, spec_.hidden);
  expect("attention_output", weights_.attention_output, spec_.hidden, width);
  expect("intermediate", weights_.intermediate, spec_.intermediate * (spec_.gated ? 2 : 1),
         spec_.hidden);
  expect("output", weights_.output, spec_.hidden, spec_.intermediate);
  if (!weights_.attention_norm && !spec_.pre_norm) {
    fail(
        "EncoderLayer: attention_norm: got none, wanted weights; only a pre-norm layer may skip "
        "it");
  }
}

void EncoderLayer::normalize(const Tensor& out, const Tensor& x, const NormWeights& norm,
                             const Stream& stream) const {
  if (spec_.norm == Norm::kRmsNorm) {
    ops::rms_norm(out, x, norm.weight, spec_.norm_eps, stream);
  } else {
    const Tensor* bias = norm.bias ? &*norm.bias : nullptr;
    ops::layer_norm(out, x, norm.weight, bias, spec_.norm_eps, stream);
  }
}

void EncoderLayer::attend(const Tensor& x, const SequenceBatch& batch, Scratch& scratch,
                          const Tensor* position_bias, const Rotary* rotary,
                          const Stream& stream) const {
  const int64_t tokens = batch.tokens(), width = spec_.heads * spec_.head_dim;
  const Matrix context(scratch, tokens, width, x.dtype, stream);
  {
    const Matrix qkv(scratch, tokens, 3 * width, x.dtype, stream);
    if (spec_.pre_norm && weights_.attention_norm) {
      const Matrix normed(scratch, tokens, spec_.hidden, x.dtype, stream);
      normalize(normed, x, *weights_.attention_norm, stream);
      ops::linear(qkv, normed, *weights_.qkv, Activation::kNone, stream);
    } else {
      ops::linear(qkv, x, *weights_.qkv, Activation::kNone, stream);
    }
    if (rotary) {
      ops::rotary(qkv, rotary->positions, rotary->cos, rotary->sin, spec_.heads, spec_.heads,
                  stream);
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
    ops::attention(context, qkv, batch, spec_.heads, scale, spec_.window, position_bias, stream);
  }
  ops::linear_add(x, context, *weights_.attention_output, x, stream);
  if (!spec_.pre_norm) normalize(x, x, *weights_.attention_norm, stream);
}

void EncoderLayer::feed_forward(const Tensor& x, Scratch& scratch, const Stream& stream) const {
  const int64_t tokens = x.shape[0];
  const Matrix inner(scratch, tokens, spec_.intermediate, x.dtype, stream);
  const auto expand = [&](const Tensor& from) {
    if (spec_.gated) {
      const Matrix both(scratch, tokens, 2 * spec_.intermediate, x.dtype, stream);
      ops::linear(both, from, *weights_.intermediate, Activation::kNone, stream);
      ops::gate(inner, both, spec_.activation, stream);
    } else {
      ops::linear(inner, from, *weights_.intermediate, spec_.activation, stream);
    }
  };
  if (spec_.pre_norm) {
    const Matrix normed(scratch, tokens, spec_.hidden, x.dtype, stream);
    normalize(normed, x, weights_.output_norm, stream);
    expand(normed);
  } else {
    expand(x);
  }
  ops::linear_add(x, inner, *weights_.output, x, stream);
  if (!spec_.pre_norm) normalize(x, x, weights_.output_norm, stream);
}

void EncoderLayer::forward(const Tensor& x, const SequenceBatch& batch, Workspace& workspace,
                           const Tensor* position_bias, const Rotary* rotary,
                           const Stream& stream) const {
  // Which temporaries exist depends on the shapes alone, so layers of one specification share a
  // plan: the key names the kind of layer, not the layer.
  static const char kKind = 0;
  const int64_t width = spec_.heads * spec_.head_dim;
  const bool normed_first = spec_.pre_norm && weights_.attention_norm;
  const WorkspaceKey key = {
      &kKind, batch.tokens(), spec_.hidden << 32 | width,
      spec_.intermediate << 3 | normed_first << 2 | spec_.pre_norm << 1 | int64_t{spec_.gated}};
  workspace.run(key, stream, [&](Scratch& scratch, const Stream& s) {
    attend(x, batch, scratch, position_bias, rotary, s);
    feed_forward(x, scratch, s);
  });
}

}  // namespace fusewire
