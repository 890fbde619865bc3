// One Transformer encoder layer (Vaswani et al. 2017) as a single call on a packed batch.
#pragma once

#include <memory>
#include <optional>

#include "core/activation.h"
#include "core/sequence_batch.h"
#include "core/workspace.h"
#include "ops/linear.h"

namespace fusewire {

enum class Norm : uint8_t { kLayerNorm, kRmsNorm };

// What kind of layer it is. post-norm: x = norm1(x + attention(x)); x = norm2(x + ffn(x)).
// pre-norm: x += attention(norm1(x)); x += ffn(norm2(x)).
struct LayerSpec {
  int64_t hidden;
  int64_t intermediate;
  int64_t heads;
  int64_t head_dim;
  Activation activation = Activation::kGeluErf;
  bool gated = false;  // ffn: output(activation(a) * b) with [a | b] = intermediate(x)
  Norm norm = Norm::kLayerNorm;
  float norm_eps = 1e-12f;
  bool pre_norm = false;
  int64_t window = 0;  // a token sees |i - j| <= window; 0: all of its sequence
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
};

// Rotary tables float32[positions, head_dim / 2] and the position of each token, int32[tokens].
struct Rotary {
  Tensor cos, sin, positions;
};

class EncoderLayer {
 public:
  // Error when a weight does not fit the specification.
  EncoderLayer(LayerSpec spec, LayerWeights weights);

  const LayerSpec& spec() const { return spec_; }

  // Replaces x[tokens, hidden] by the layer's output. position_bias float32[heads, 2 L - 1] and
  // rotary may be null. Memory comes from the workspace: nothing is allocated for a shape that
  // fits what it holds.
  void forward(const Tensor& x, const SequenceBatch& batch, Workspace& workspace,
               const Tensor* position_bias, const Rotary* rotary, const Stream& stream) const;

 private:
  void attend(const Tensor& x, const SequenceBatch& batch, Scratch& scratch,
              const Tensor* position_bias, const Rotary* rotary, const Stream& stream) const;
  void feed_forward(const Tensor& x, Scratch& scratch, const Stream& stream) const;
  void normalize(const Tensor& out, const Tensor& x, const NormWeights& norm,
                 const Stream& stream) const;

  LayerSpec spec_;
  LayerWeights weights_;
};

}  // namespace fusewire
