// A linear layer whose weight changes: it is packed again for the products of either direction.
#pragma once

#include <map>
#include <memory>

#include "train/pass.h"

namespace fusewire::train {

// y = x W^T + b.
class Linear {
 public:
  // weight is [out_features, in_features], or [in_features, out_features] if it is stored
  // transposed (GPT-2's Conv1D). rows int64[out_features]: for each row of the product the index of
  // its row in the parameters, each once (GPT-NeoX stores q | k | v of a head together); none: the
  // same. Throws Error if bias is not [out_features], and for rows of a transposed weight.
  Linear(Parameter weight, std::optional<Parameter> bias, bool transposed,
         std::optional<Tensor> rows);

  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }
  Shape shape() const { return {out_features_, in_features_}; }

  // Computes y = activation(x W^T + b).
  void forward(const Tensor& y, const Tensor& x, Activation activation, const Pass& pass) const;
  // Computes y = x W^T + b + residual; residual may be y.
  void forward_add(const Tensor& y, const Tensor& x, const Tensor& residual,
                   const Pass& pass) const;
  // Computes the gradients of weight and bias.
  void backward_parameters(const Tensor& dy, const Tensor& x, const Pass& pass) const;
  void backward_weight(const Tensor& dy, const Tensor& x, const Pass& pass) const;
  void backward_bias(const Tensor& dy, const Pass& pass) const;
  // Returns the gradient of the bias for a kernel that computes dy and the sums of its columns, in
  // the place of backward_bias; none without a bias, or with one in another order.
  std::optional<Tensor> bias_gradient(const Pass& pass) const;
  // Computes dx = dy W [+ residual]; residual may be null, or dx.
  void backward_input(const Tensor& dx, const Tensor& dy, const Tensor* residual,
                      const Pass& pass) const;

  // Throws Error if a parameter is not in the flat buffer.
  void expect_within(const Tensor& flat) const;

 private:
  // The weight packed for one version of the parameters. Only one pass of a stack runs at a time.
  struct Packed {
    std::unique_ptr<fusewire::Linear> linear;
    DType dtype = DType::kFloat32;
    uint64_t version = 0;
  };
  // Weight and bias reordered into the order of the product, also for one version. Packed weights
  // may share them, so their addresses do not change.
  struct Ordered {
    std::shared_ptr<void> weight, bias;
    uint64_t version = 0;
  };
  const fusewire::Linear& packed(Packed& panels, bool bias, bool transposed,
                                 const Pass& pass) const;
  const Ordered& ordered(const Pass& pass) const;

  Parameter weight_;
  std::optional<Parameter> bias_;
  bool transposed_;
  std::optional<Tensor> rows_;
  int64_t in_features_, out_features_;
  mutable Packed forward_, backward_;
  mutable std::map<DType, Ordered> ordered_;
};

}  // namespace fusewire::train
