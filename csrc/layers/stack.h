// A stack of Transformer layers as a single call on a packed batch.
#pragma once

#include <vector>

#include "layers/block.h"

namespace fusewire::layers {

class Layer {
 public:
  // parallel: all blocks read the layer's input, and what they make of it is added up. Error
  // without a block, for an output_norm that is no RMSNorm, or a residual_norm in a parallel layer.
  Layer(std::vector<Block> blocks, bool parallel);

  // Replaces x[tokens, hidden] by the layer's output, but for its last norm. `pending`, or null, is
  // that of the layer before, which x still lacks. `attention` is the number of its first one in
  // the stack; returns that of the next layer's.
  int64_t forward(const Tensor& x, const Norm* pending, const StackInputs& inputs,
                  int64_t attention, Workspace& workspace, const Stream& stream) const;

  // Fills out[outputs, hidden] with the layer's output for these tokens of x, whole. Error for a
  // layer whose first block alone does not attend, or an attention that has no outputs.
  void forward_outputs(const Tensor& out, const Outputs& outputs, const Tensor& x,
                       const Norm* pending, const StackInputs& inputs, int64_t attention,
                       Workspace& workspace, const Stream& stream) const;

  // The norm of its last sum, or null.
  const Norm* last_norm() const;

 private:
  // Attention reads `all`, every other step reads and updates `pass`.
  void run(Pass& all, Pass& pass) const;

  std::vector<Block> blocks_;
  size_t together_;  // blocks that read the same x
  const void* temporaries_;
};

class Stack {
 public:
  // A layer may stand in several places, or in several stacks.
  Stack(std::vector<std::shared_ptr<const Layer>> layers, std::optional<Norm> final_norm)
      : layers_(std::move(layers)), final_norm_(std::move(final_norm)) {}

  // Replaces x[tokens, hidden] by final_norm(layers(x)). Temporaries come from the workspace:
  // nothing is allocated for a shape that fits what it holds. Over a cache the tokens are new:
  // their keys and values join it. Error for an attention that does not work with, or without, a
  // cache.
  void forward(const Tensor& x, const StackInputs& inputs, Workspace& workspace,
               const Stream& stream) const;

  // Fills out[outputs, hidden] with the rows of these tokens alone, of which the last layer
  // computes no others, and overwrites x. Error without a layer, and as Layer::forward_outputs.
  void forward_outputs(const Tensor& out, const Outputs& outputs, const Tensor& x,
                       const StackInputs& inputs, Workspace& workspace, const Stream& stream) const;

 private:
  std::vector<std::shared_ptr<const Layer>> layers_;
  std::optional<Norm> final_norm_;
};

}  // namespace fusewire::layers
