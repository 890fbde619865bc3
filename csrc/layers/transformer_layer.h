// One Transformer layer (Vaswani et al. 2017) as a single call on a packed batch: of an encoder,
// whose tokens see all of their sequence, or of a decoder, whose tokens see what its cache holds.
#pragma once

#include <memory>
#include <optional>

#include "core/activation.h"
#include "core/paged_batch.h"
#include "core/workspace.h"
#include "ops/linear.h"

namespace fusewire {

enum class Norm : uint8_t { kLayerNorm, kRmsNorm };

// What kind of layer it is. post-norm: x = norm1(x + attention(x)); x = norm2(x + ffn(x)).
// pre-norm: x += attention(norm1(x)); x += ffn(norm2(x)).
// parallel: x += attention(norm1(x)) + ffn(norm2(x)), both of the same x.
struct LayerSpec {
  int64_t hidden;
  int64_t intermediate;
  int64_t heads;
  int64_t kv_heads;  // a divisor of heads
  int64_t head_dim;
  Activation activation = Activation::kGeluErf;
  bool gated = false;  // ffn: output(activation(a) * b) with [a | b] = intermediate(x)
  Norm norm = Norm::kLayerNorm;
  float norm_eps = 1e-12f;
  bool pre_norm = false;
  bool parallel = false;  // of pre-norm layers
  // forward: a token sees |i - j| <= window; forward_cached: the last `window` positions, its own
  // included. 0: all.
  int64_t window = 0;
  float scale = 0;     // of scores; 0: 1 / sqrt(head_dim)
  float soft_cap = 0;  // scores become soft_cap * tanh(score / soft_cap); 0: they stay
};

struct NormWeights {
  Tensor weight;
  std::optional<Tensor> bias;
};

struct LayerWeights {
  std::shared_ptr<const Linear> qkv;  // rows q | k | v
  std::shared_ptr<const Linear> attention_output;
  std::optional<NormWeights> attention_norm;  // absent: identity, pre-norm only
  std::shared_ptr<const Linear> intermediate;
  std::shared_ptr<const Linear> output;
  NormWeights output_norm;
  // RMSNorm of each head of q and k before they are rotated, weight[head_dim].
  std::optional<NormWeights> q_norm, k_norm;
  // RMSNorm of what attention and the FFN give, before it is added to x.
  std::optional<NormWeights> attention_post_norm, output_post_norm;
};

// Rotary tables float32[positions, rotary_dim / 2] and the position of each token, int32[tokens].
struct Rotary {
  Tensor cos, sin, positions;
};

class TransformerLayer {
 public:
  // Error when a weight does not fit the specification.
  TransformerLayer(LayerSpec spec, LayerWeights weights);

  const LayerSpec& spec() const { return spec_; }

  // Replaces x[tokens, hidden] by the layer's output. position_bias float32[heads, 2 L - 1] and
  // rotary may be null. Memory comes from the workspace: nothing is allocated for a shape that
  // fits what it holds. Error for a layer with grouped heads or a soft_cap, which only
  // forward_cached knows.
  void forward(const Tensor& x, const SequenceBatch& batch, Workspace& workspace,
               const Tensor* position_bias, const Rotary* rotary, const Stream& stream) const;

  // The same for new tokens x[tokens, hidden], whose keys and values join the cache [pages,
  // kv_heads, page_size, head_dim] and which see their sequence up to themselves. rotary and
  // alibi_slopes float32[heads] may be null.
  void forward_cached(const Tensor& x, const PagedBatch& batch, const Tensor& keys,
                      const Tensor& values, Workspace& workspace, const Rotary* rotary,
                      const Tensor* alibi_slopes, const Stream& stream) const;

 private:
  // attend(context, qkv, stream) is all that forward and forward_cached do differently.
  template <class Attend>
  void run(const Tensor& x, Workspace& workspace, const Stream& stream, Attend&& attend) const;
  void project(const Tensor& qkv, const Tensor& x, Scratch& scratch, const Stream& stream) const;
  void expand(const Tensor& inner, const Tensor& x, Scratch& scratch, const Stream& stream) const;
  void add(const Tensor& x, const Tensor& part, const Linear& linear,
           const std::optional<NormWeights>& post_norm, Scratch& scratch,
           const Stream& stream) const;
  void normalize(const Tensor& out, const Tensor& x, const NormWeights& norm,
                 const Stream& stream) const;
  WorkspaceKey key(const Tensor& x) const;

  LayerSpec spec_;
  LayerWeights weights_;
};

}  // namespace fusewire
