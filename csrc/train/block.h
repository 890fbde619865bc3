// A residual block that trains: x = residual_norm(x + dropout(sublayer(input_norm(x)))), or
// residual_norm(x + output_norm(sublayer(input_norm(x)))).
#pragma once

#include "train/linear.h"
#include "train/norm.h"

namespace fusewire::train {

// What a sublayer saves from its forward for its backward.
struct SublayerActivations {
  std::optional<Matrix> projected;           // the product of its input and its first weight
  std::optional<Matrix> attended;            // q | k | v as attention reads them, if they differ
  std::optional<Matrix> source;              // k | v of cross attention, [source tokens, width]
  std::optional<Matrix> inner;               // the input of its last weight
  std::optional<ScratchTensor> log_sum_exp;  // of attention, [heads, tokens]
};

// Computes output(inner(x)).
class Sublayer {
 public:
  virtual ~Sublayer() = default;

  // Computes a.inner[tokens, inner_width].
  virtual void forward(const Tensor& x, SublayerActivations& a, const Pass& pass) const = 0;
  // Frees what `pass.recompute` says to compute again.
  virtual void drop(SublayerActivations& a, const Pass& pass) const = 0;
  // Returns the gradient of x: a matrix of its own or, if `sum` is given, added to `sum`. dz is the
  // gradient of output(inner). That of the output's bias is left to the caller.
  virtual Value backward(Value dz, const Tensor& x, SublayerActivations a, const Tensor* sum,
                         const Pass& pass) const = 0;
  virtual void expect_within(const Tensor& flat) const = 0;

  const Linear& output() const { return *output_; }

 protected:
  explicit Sublayer(std::shared_ptr<const Linear> output) : output_(std::move(output)) {}

 private:
  std::shared_ptr<const Linear> output_;
};

struct BlockActivations {
  std::optional<Value> x;
  std::optional<Matrix> normed, sum;  // output of input_norm, input of residual_norm
  std::optional<Matrix> result;       // of the sublayer: the input of output_norm
  SublayerActivations sublayer;
};

class Block {
 public:
  // dropout: the probability that an element of the sublayer's output is dropped. Throws Error for
  // a probability outside [0, 1), and for an output_norm that is not an RMSNorm, or is used with
  // dropout.
  Block(std::shared_ptr<const Sublayer> sublayer, std::optional<Norm> input_norm,
        std::optional<Norm> output_norm, std::optional<Norm> residual_norm, float dropout);

  int64_t hidden() const { return sublayer_->output().out_features(); }
  const std::optional<Norm>& residual_norm() const { return residual_norm_; }

  // Returns the output for x, added to `residual`, which is x except in layers with parallel
  // blocks. The result is in `out` if that is given. Fills `a`.
  Value forward(const Tensor& x, const Tensor& residual, BlockActivations& a, const Tensor* out,
                const Pass& pass) const;
  // Fills `a` only.
  void recompute(const Tensor& x, BlockActivations& a, const Pass& pass) const;
  // d[tokens, hidden] is the gradient of the residual; that of x is added to it. dout, which may be
  // d, is the gradient of the output.
  void backward(const Tensor& d, const Tensor& dout, const Tensor& x, BlockActivations a,
                const Pass& pass) const;
  void expect_within(const Tensor& flat) const;

 private:
  void compute(const Tensor& x, BlockActivations& a, const Pass& pass) const;
  void project(BlockActivations& a, const Pass& pass) const;
  void add(const Tensor& sum, const Tensor& x, BlockActivations& a, const Pass& pass) const;

  std::shared_ptr<const Sublayer> sublayer_;
  std::optional<Norm> input_norm_, output_norm_, residual_norm_;
  float dropout_;
};

// Throws Error if a dropout probability is not in [0, 1).
void expect_probability(const char* part, float probability);

}  // namespace fusewire::train
