// A residual block: x = residual_norm(x + output_norm(sublayer(input_norm(x)))). A missing norm is
// the identity: post-norm has only residual_norm, pre-norm only input_norm, and a sandwich has
// input_norm and output_norm.
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

// A norm over the features of each row.
struct Norm {
  enum class Kind : uint8_t { kLayerNorm, kRmsNorm };

  Kind kind;
  Tensor weight;
  std::optional<Tensor> bias;  // only for a LayerNorm
  float eps;

  void apply(const Tensor& out, const Tensor& x, const Stream& stream) const;
  // Computes normed = norm(x), where normed may be x, and out = activation(normed W^T + b).
  void project(const Tensor& out, const Tensor& normed, const Tensor& x, const Linear& linear,
               Activation activation, const Stream& stream) const;
};

// Returns the kind named layer_norm or rms_norm. Throws Error for another name, and for an rms_norm
// that is `biased`.
Norm::Kind norm_named(std::string_view kind, bool biased);

// What a forward reads besides x and the weights. `planes` [planes, pages, elements of a page] is
// the KV cache of a whole stack, if there is one: planes 2 i and 2 i + 1 are the keys and the
// values of its attention i. `sources` are the pages that cross attention reads, for the same new
// tokens as `paged`.
struct StackInputs {
  const SequenceBatch& batch;
  const Tensor* positions = nullptr;  // int32[tokens], for attentions with RoPE
  const PagedBatch* paged = nullptr;
  const Tensor* planes = nullptr;
  const PagedBatch* sources = nullptr;
};

// The tokens whose outputs are computed, where the others serve only as keys and values: `tokens`
// int64[outputs], in the order of their sequences; `batch` says where those of each sequence begin.
struct Outputs {
  const Tensor& tokens;
  const SequenceBatch& batch;
};

// A scratch matrix with the row stride that the kernels prefer.
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
  int64_t attention;  // the index of the next attention in the stack
  Scratch& scratch;
  const Stream& stream;
  const Outputs* outputs = nullptr;  // the tokens that attention is computed for; null: every token
  // The norm that still has to be applied to x, after its last sum; null: none. The product that
  // reads x first applies it.
  const Norm* pending = nullptr;

  Matrix matrix(int64_t width) const { return {scratch, x.shape[0], width, x.dtype, stream}; }
  // Computes out = activation(norm(x) W^T + b). norm may be null.
  void project(const Tensor& out, const Norm* norm, const Linear& linear, Activation activation);
  // Computes out = activation(a) * b with [a | b] = norm(x) W^T + b, by way of `both`, which has
  // the width of a | b. norm may be null.
  void project_gated(const Tensor& out, const Tensor& both, const Norm* norm, const Linear& linear,
                     Activation activation);
};

// Computes output(inner(x)). Its last matrix product is run by the block, which fuses it with the
// residual.
class Sublayer {
 public:
  virtual ~Sublayer() = default;

  // Computes inner[tokens, inner_width], or inner[outputs, inner_width] where attention has
  // outputs, from norm(pass.x). norm may be null.
  virtual void compute(const Tensor& inner, const Norm* norm, Pass& pass) const = 0;
  // Computes out = output(inner) + residual. residual may be null or out.
  virtual void finish(const Tensor& out, const Tensor& inner, const Tensor* residual,
                      const Stream& stream) const;
  virtual int64_t inner_width() const { return output_->in_features(); }
  // Returns the columns of the one temporary matrix of `compute`, beside norm(x); 0: none.
  virtual int64_t scratch_width() const = 0;
  // Returns whether a token's output depends on other tokens.
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

  // Computes inner[tokens, inner_width] from x, which is not changed.
  void compute(const Tensor& inner, Pass& pass) const;
  // Adds the result for inner to x, and leaves residual_norm pending.
  void add(const Tensor& inner, Pass& pass) const;
};

}  // namespace fusewire::layers
