// A stack of Transformer layers as a single call on a packed batch.
#pragma once

#include <vector>

#include "layers/block.h"

namespace fusewire::layers {

class Layer {
 public:
  // parallel: all blocks read the layer's input, and their results are added up. Throws Error
  // without a block, for an output_norm that is not an RMSNorm, and for a residual_norm in a
  // parallel layer.
  Layer(std::vector<Block> blocks, bool parallel);

  // Replaces x[tokens, hidden] by the layer's output, without its last norm. `pending`, or null, is
  // the last norm of the previous layer, which is not yet applied to x. `attention` is the index of
  // the layer's first attention in the stack; returns that of the next layer's.
  int64_t forward(const Tensor& x, const Norm* pending, const StackInputs& inputs,
                  int64_t attention, Workspace& workspace, const Stream& stream) const;

  // Computes out[outputs, hidden], the layer's output for these tokens of x, including its last
  // norm. Throws Error unless the first block, and no other, attends, and for an attention that
  // does not support outputs.
  void forward_outputs(const Tensor& out, const Outputs& outputs, const Tensor& x,
                       const Norm* pending, const StackInputs& inputs, int64_t attention,
                       Workspace& workspace, const Stream& stream) const;

  // Returns the norm after its last sum, or null.
  const Norm* last_norm() const;

 private:
  // Runs the blocks: attention reads `all`, every other step reads and updates `pass`.
  void run(Pass& all, Pass& pass) const;

  std::vector<Block> blocks_;
  size_t together_;  // number of blocks that read the same x
  const void* temporaries_;
};

class Stack {
 public:
  // A layer may be used several times, and in several stacks.
  Stack(std::vector<std::shared_ptr<const Layer>> layers, std::optional<Norm> final_norm)
      : layers_(std::move(layers)), final_norm_(std::move(final_norm)) {}

  // Replaces x[tokens, hidden] by final_norm(layers(x)). Temporaries come from the workspace:
  // nothing is allocated for a shape that fits into it. Over a KV cache the tokens are new: their
  // keys and values are stored in it. Throws Error for an attention that does not work with, or
  // without, a cache.
  void forward(const Tensor& x, const StackInputs& inputs, Workspace& workspace,
               const Stream& stream) const;

  // Computes out[outputs, hidden], the output of these tokens only; the last layer computes no
  // others. Overwrites x. Throws Error without a layer, and as Layer::forward_outputs.
  void forward_outputs(const Tensor& out, const Outputs& outputs, const Tensor& x,
                       const StackInputs& inputs, Workspace& workspace, const Stream& stream) const;

 private:
  std::vector<std::shared_ptr<const Layer>> layers_;
  std::optional<Norm> final_norm_;
};

}  // namespace fusewire::layers
