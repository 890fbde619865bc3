// A stack of Transformer layers that trains: one call forward, one call backward.
#pragma once

#include <mutex>
#include <vector>

#include "train/block.h"
#include "train/tape.h"
#include "train/tape_blocks.h"

namespace fusewire::train {

struct ForwardOptions {
  // Backward stops below this layer, and nothing is saved for those before it; the number of
  // layers: no backward follows.
  int64_t first_trained = 0;
  Recompute recompute = Recompute::kNone;
  std::optional<int64_t> dropout_seed;  // none: nothing is dropped
  std::optional<Tensor> added_seed;     // int64[1] of the device, added to it when kernels run
  uint64_t version = 0;  // of the parameters: another one, and weights are packed anew
  std::shared_ptr<TapeBlocks> blocks;  // whose memory the tape takes; null: the allocator's
};

// What a forward saved for its backward. Belongs to the stack that made it.
class Activations {
 public:
  bool spent() const { return spent_; }

 private:
  friend class Stack;

  Activations(SequenceBatch batch, std::optional<Tensor> positions, std::optional<Source> source,
              std::vector<Tensor> biases, const ForwardOptions& options, DType dtype, size_t blocks)
      : batch(std::move(batch)),
        positions(std::move(positions)),
        source(std::move(source)),
        biases(std::move(biases)),
        options(options),
        dtype(dtype),
        of(blocks) {}

  SequenceBatch batch;
  std::optional<Tensor> positions;
  std::optional<Source> source;
  std::vector<Tensor> biases;
  ForwardOptions options;
  DType dtype;  // of the parameters
  std::unique_ptr<Tape> tape;
  std::vector<BlockActivations> of;  // a block each
  std::optional<Value> last;         // what the final norm reads
  bool spent_ = false;
};

class Stack {
 public:
  // parallel: all blocks of a layer read its input, and what they make of it is added up. Error
  // without a layer, for a layer without a block, widths that differ, or a residual_norm in a
  // parallel layer.
  Stack(std::vector<std::vector<Block>> layers, std::optional<Norm> final_norm, bool parallel);

  int64_t layers() const { return static_cast<int64_t>(begins_.size()) - 1; }

  // Fills out[tokens, hidden] with final_norm(layers(x)) of x[tokens, hidden]. parameters: the flat
  // buffer [n] in the element type of x and out, float32 on the CPU; on a GPU a 16-bit copy of it
  // too. source: of cross attentions. biases: as Pass has them. Null when no backward follows; else
  // what that needs, for which x, source.x and biases must stay. One pass of the stack runs at a
  // time, others wait.
  std::unique_ptr<Activations> forward(const Tensor& out, const Tensor& x, const Tensor& parameters,
                                       const SequenceBatch& batch, std::optional<Tensor> positions,
                                       std::optional<Source> source, std::vector<Tensor> biases,
                                       const ForwardOptions& options, const Stream& stream) const;

  // gradient[tokens, hidden]: that of the output becomes that of x. The gradients of parameters go
  // to the places in gradients.flat, float32 always, that the parameters have in their buffer, the
  // sums over all layers of those of source.x and biases to gradients.source and gradients.biases.
  // Uses up the activations; Error for some that are used up, or when parameters were written
  // since.
  void backward(Activations& activations, const Tensor& gradient, const Tensor& parameters,
                const Gradients& gradients, uint64_t version, const Stream& stream) const;

  TapeStats stats() const;

 private:
  void run(Activations& a, const Tensor& out, const Tensor& x, const Tensor& parameters) const;
  void run_back(Activations& a, const Tensor& gradient, const Tensor& parameters,
                const Gradients& gradients) const;
  void recompute(Activations& a, int64_t layer, Pass& pass) const;
  Pass pass_of(const Activations& a, const Tensor& parameters) const;
  // Whether x of a block is the output of a norm that is computed again.
  bool remade(const Activations& a, size_t block) const;
  bool begins_layer(size_t block) const;
  // The first block that backward reaches.
  size_t first_block(const Activations& a) const { return begins_[a.options.first_trained]; }

  std::vector<Block> blocks_;
  std::vector<size_t> begins_;  // the first block of each layer, and the end of the last
  std::optional<Norm> final_norm_;
  bool parallel_;
  mutable std::mutex mutex_;
  mutable TapePlans plans_;
};

}  // namespace fusewire::train
