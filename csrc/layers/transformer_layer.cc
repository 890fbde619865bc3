#include "layers/transformer_layer.h"

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
  Tensor columns(int64_t begin, int64_t width) const { return view_.columns(begin, width); }

 private:
  ScratchTensor memory_;
  Tensor view_;
};

void expect(const char* name, const std::shared_ptr<const Linear>& linear, int64_t out,
            int64_t in) {
  if (!linear) fail("TransformerLayer: ", name, ": got none, wanted a Linear[", out, ", ", in, "]");
  if (linear->out_features() != out || linear->in_features() != in) {
    fail("TransformerLayer: ", name, ": got Linear[", linear->out_features(), ", ",
         linear->in_features(), "], wanted [", out, ", ", in, "] by the specification");
  }
}

int64_t qkv_width(const LayerSpec& spec) {
  return (spec.heads + 2 * spec.kv_heads) * spec.head_dim;
}

}  // namespace

TransformerLayer::TransformerLayer(LayerSpec spec, LayerWeights weights)
    : spec_(spec), weights_(std::move(weights)) {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) fail("LayerSpec: ", name, ": got ", value, ", wanted 1 or more");
  };
  positive("hidden", spec_.hidden);
  positive("intermediate", spec_.intermediate);
  positive("heads", spec_.heads);
  positive("kv_heads", spec_.kv_heads);
  positive("head_dim", spec_.head_dim);
  if (spec_.heads % spec_.kv_heads) {
    fail("LayerSpec: kv_heads: got ", spec_.kv_heads, ", wanted a divisor of heads ", spec_.heads);
  }
  if (spec_.parallel && !spec_.pre_norm) fail("LayerSpec: parallel: wanted pre_norm with it");
  if (!(spec_.soft_cap >= 0)) {
    fail("LayerSpec: soft_cap: got ", spec_.soft_cap, ", wanted 0 (none) or more");
  }
  if (spec_.scale == 0) spec_.scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
  const int64_t width = spec_.heads * spec_.head_dim;
  expect("qkv", weights_.qkv, qkv_width(spec_), spec_.hidden);
  expect("attention_output", weights_.attention_output, spec_.hidden, width);
  expect("intermediate", weights_.intermediate, spec_.intermediate * (spec_.gated ? 2 : 1),
         spec_.hidden);
  expect("output", weights_.output, spec_.hidden, spec_.intermediate);
  if (!weights_.attention_norm && !spec_.pre_norm) {
    fail(
        "TransformerLayer: attention_norm: got none, wanted weights; only a pre-norm layer may "
        "skip it");
  }
  if ((weights_.attention_post_norm || weights_.output_post_norm) && !spec_.pre_norm) {
    fail(
        "LayerSpec: pre_norm: got false, wanted true with attention_post_norm or "
        "output_post_norm");
  }
  for (const auto* norm : {&weights_.q_norm, &weights_.k_norm, &weights_.attention_post_norm,
                           &weights_.output_post_norm}) {
    if (*norm && (*norm)->bias) {
      fail("TransformerLayer: q_norm, k_norm and post norms: got a bias, wanted an RMSNorm");
    }
  }
  for (const auto* norm : {&weights_.q_norm, &weights_.k_norm}) {
    if (*norm && (*norm)->weight.shape != Shape{spec_.head_dim}) {
      fail("TransformerLayer: q_norm, k_norm: got weight", (*norm)->weight.shape.text(),
           ", wanted [", spec_.head_dim, "], the head_dim");
    }
  }
}

void TransformerLayer::normalize(const Tensor& out, const Tensor& x, const NormWeights& norm,
                                 const Stream& stream) const {
  if (spec_.norm == Norm::kRmsNorm) {
    ops::rms_norm(out, x, norm.weight, spec_.norm_eps, stream);
  } else {
    const Tensor* bias = norm.bias ? &*norm.bias : nullptr;
    ops::layer_norm(out, x, norm.weight, bias, spec_.norm_eps, stream);
  }
}

void TransformerLayer::project(const Tensor& qkv, const Tensor& x, Scratch& scratch,
                               const Stream& stream) const {
  if (spec_.pre_norm && weights_.attention_norm) {
    const Matrix normed(scratch, x.shape[0], spec_.hidden, x.dtype, stream);
    normalize(normed, x, *weights_.attention_norm, stream);
    ops::linear(qkv, normed, *weights_.qkv, Activation::kNone, stream);
  } else {
    ops::linear(qkv, x, *weights_.qkv, Activation::kNone, stream);
  }
  const int64_t q_width = spec_.heads * spec_.head_dim;
  if (weights_.q_norm) {
    ops::rms_norm_heads(qkv.columns(0, q_width), weights_.q_norm->weight, spec_.norm_eps, stream);
  }
  if (weights_.k_norm) {
    ops::rms_norm_heads(qkv.columns(q_width, spec_.kv_heads * spec_.head_dim),
                        weights_.k_norm->weight, spec_.norm_eps, stream);
  }
}

void TransformerLayer::expand(const Tensor& inner, const Tensor& x, Scratch& scratch,
                              const Stream& stream) const {
  const auto from = [&](const Tensor& input) {
    if (spec_.gated) {
      const Matrix both(scratch, x.shape[0], 2 * spec_.intermediate, x.dtype, stream);
      ops::linear(both, input, *weights_.intermediate, Activation::kNone, stream);
      ops::gate(inner, both, spec_.activation, stream);
    } else {
      ops::linear(inner, input, *weights_.intermediate, spec_.activation, stream);
    }
  };
  if (spec_.pre_norm) {
    const Matrix normed(scratch, x.shape[0], spec_.hidden, x.dtype, stream);
    normalize(normed, x, weights_.output_norm, stream);
    from(normed);
  } else {
    from(x);
  }
}

// x += linear(part), normed first where the layer says so.
void TransformerLayer::add(const Tensor& x, const Tensor& part, const Linear& linear,
                           const std::optional<NormWeights>& post_norm, Scratch& scratch,
                           const Stream& stream) const {
  if (!post_norm) return ops::linear_add(x, part, linear, x, stream);
  const Matrix result(scratch, x.shape[0], spec_.hidden, x.dtype, stream);
  ops::linear(result, part, linear, Activation::kNone, stream);
  ops::rms_norm_add(x, result, x, post_norm->weight, spec_.norm_eps, stream);
}

WorkspaceKey TransformerLayer::key(const Tensor& x) const {
  // Which temporaries exist depends on the shapes alone, so layers of one specification share a
  // plan: the key names the kind of layer, not the layer.
  static const char kKind = 0;
  int64_t flags = static_cast<int64_t>(x.dtype);
  for (const bool flag :
       {spec_.pre_norm, spec_.parallel, spec_.gated, weights_.attention_norm.has_value(),
        weights_.attention_post_norm.has_value(), weights_.output_post_norm.has_value()}) {
    flags = flags << 1 | int64_t{flag};
  }
  return {&kKind, x.shape[0] << 16 | flags, spec_.hidden << 32 | qkv_width(spec_),
          spec_.intermediate << 32 | spec_.heads * spec_.head_dim};
}

template <class Attend>
void TransformerLayer::run(const Tensor& x, Workspace& workspace, const Stream& stream,
                           Attend&& attend) const {
  workspace.run(key(x), stream, [&](Scratch& scratch, const Stream& s) {
    const int64_t tokens = x.shape[0];
    const auto matrix = [&](int64_t width) { return Matrix(scratch, tokens, width, x.dtype, s); };
    const auto feed_forward = [&](auto&& before_adding) {
      const Matrix inner = matrix(spec_.intermediate);
      expand(inner, x, scratch, s);
      before_adding();
      add(x, inner, *weights_.output, weights_.output_post_norm, scratch, s);
      if (!spec_.pre_norm) normalize(x, x, weights_.output_norm, s);
    };
    {
      const Matrix context = matrix(spec_.heads * spec_.head_dim);
      {
        const Matrix qkv = matrix(qkv_width(spec_));
        project(qkv, x, scratch, s);
        attend(context, qkv, s);
      }
      const auto add_attention = [&] {
        add(x, context, *weights_.attention_output, weights_.attention_post_norm, scratch, s);
      };
      if (spec_.parallel) return feed_forward(add_attention);  // reads x before anything is added
      add_attention();
      if (!spec_.pre_norm) normalize(x, x, *weights_.attention_norm, s);
    }
    feed_forward([] {});
  });
}

void TransformerLayer::forward(const Tensor& x, const SequenceBatch& batch, Workspace& workspace,
                               const Tensor* position_bias, const Rotary* rotary,
                               const Stream& stream) const {
  if (spec_.kv_heads != spec_.heads || spec_.soft_cap > 0) {
    fail("TransformerLayer.forward: got a layer with kv_heads ", spec_.kv_heads, " of ",
         spec_.heads, " heads and soft_cap ", spec_.soft_cap,
         ", which attends over a cache alone; use forward_cached");
  }
  run(x, workspace, stream, [&](const Tensor& context, const Tensor& qkv, const Stream& s) {
    if (rotary) {
      ops::rotary(qkv, rotary->positions, rotary->cos, rotary->sin, spec_.heads, spec_.kv_heads, s);
    }
    ops::attention(context, qkv, batch, spec_.heads, spec_.scale, spec_.window, position_bias, s);
  });
}

void TransformerLayer::forward_cached(const Tensor& x, const PagedBatch& batch, const Tensor& keys,
                                      const Tensor& values, Workspace& workspace,
                                      const Rotary* rotary, const Tensor* alibi_slopes,
                                      const Stream& stream) const {
  run(x, workspace, stream, [&](const Tensor& context, const Tensor& qkv, const Stream& s) {
    ops::cached_attention(context, qkv, keys, values, batch, spec_.heads, spec_.scale, spec_.window,
                          spec_.soft_cap, alibi_slopes, rotary ? &rotary->positions : nullptr,
                          rotary ? &rotary->cos : nullptr, rotary ? &rotary->sin : nullptr, s);
  });
}

}  // namespace fusewire
