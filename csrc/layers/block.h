// A residual block: x = residual_norm(x + output_norm(sublayer(input_norm(x)))). A norm that is
// absent is the identity, so post-norm has the first alone, pre-norm the last, a sandwich the two
// inside.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "core/activation.h"
#include "core/kernels.h"
#include "core/paged_batch.h"
#include "core/workspace.h"
#include "ops/linear.h"

namespace fusewire::layers {

// Over the features of each row.
struct Norm {
  enum class Kind : uint8_t { kLayerNorm, kRmsNorm };

  Kind kind;
  Tensor weight;
  std::optional<Tensor> bias;  // of a LayerNorm
  float eps;

  void apply(const Tensor& out, const Tensor& x, const Stream& stream) const;
  // normed = norm(x), which may be x, and out = activation(normed W^T + b).
  void project(const Tensor& out, const Tensor& normed, const Tensor& x, const Linear& linear,
               Activation activation, const Stream& stream) const;
};

// layer_norm or rms_norm; Error for another name, and for an rms_norm that is `biased`.
Norm::Kind norm_named(std::string_view kind, bool biased);

// What a forward reads besides x and the weights. `planes` [planes, pages, elements of a page] is
// the cache of a whole stack, if there is one: planes 2 i and 2 i + 1 are the keys and the values
// of its attention i. `sources` are the pages of what cross attention reads, for the same new
// tokens as `paged`.
struct StackInputs {
  const SequenceBatch& batch;
  const Tensor* positions = nullptr;  // int32[tokens], for attentions that rotate
  const PagedBatch* paged = nullptr;
  const Tensor* planes = nullptr;
  const PagedBatch* sources = nullptr;
};

// Tokens whose outputs are wanted, where others serve as keys and values alone: int64[outputs], in
// the order of their sequences, and where those of each sequence begin.
struct Outputs {
  const Tensor& tokens;
  const SequenceBatch& batch;
};

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

// One run of a layer.
struct Pass {
  const Tensor& x;  // [tokens, hidden], updated in place
  const StackInputs& inputs;
  int64_t attention;  // the next one's number in the stack
  Scratch& scratch;
  const Stream& stream;
  const Outputs* outputs = nullptr;  // that attention is computed for; null: every token
  // What x still has to become, by the norm behind its last sum: the product that reads x first
  // does that too. Null: nothing.
  const Norm* pending = nullptr;

  Matrix matrix(int64_t width) const { return {scratch, x.shape[0], width, x.dtype, stream}; }
  // out = activation(norm(x) W^T + b). norm may be null.
  void project(const Tensor& out, const Norm* norm, const Linear& linear, Activation activation);
};

// output(inner(x)): its last matrix product is the block's, which fuses it with the residual.
class Sublayer {
 public:
  virtual ~Sublayer() = default;

  // Fills inner[tokens, inner_width], or inner[outputs, inner_width] where attention has outputs,
  // from norm(pass.x), of which norm may be null.
  virtual void compute(const Tensor& inner, const Norm* norm, Pass& pass) const = 0;
  // out = output(inner) + residual, which may be null or out.
  virtual void finish(const Tensor& out, const Tensor& inner, const Tensor* residual,
                      const Stream& stream) const;
  virtual int64_t inner_width() const { return output_->in_features(); }
  // Columns of the one temporary matrix of `compute`, beside norm(x); 0: it has none.
  virtual int64_t scratch_width() const = 0;
  // Whether a token's output depends on other tokens.
  virtual bool attends() const = 0;

  const Linear& output() const { return *output_; }

 protected:
  explicit Sublayer(std::shared_ptr<const Linear> output) : output_(std::move(output)) {}

 private:
  std::shared_ptr<const Linear> output_;
};

struct Block {
  std::shared_ptr<const Sublayer> sublayer;
  std::optional<Norm> input_norm, output_norm, residual_norm;  // output_norm: an RMSNorm

  // Fills inner[tokens, inner_width] from x, which stays.
  void compute(const Tensor& inner, Pass& pass) const;
  // Adds what is made of inner to x, and leaves the residual_norm pending.
  void add(const Tensor& inner, Pass& pass) const;
};

}  // namespace fusewire::layers
