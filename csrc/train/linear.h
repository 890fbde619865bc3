// A linear layer whose weight changes: packed anew for the products of either direction.
#pragma once

#include <map>
#include <memory>

#include "train/pass.h"

namespace fusewire::train {

// y = x W^T + b.
class Linear {
 public:
  // weight [out_features, in_features], or [in_features, out_features] when it is stored transposed
  // (GPT-2's Conv1D). rows int64[out_features]: of each row of the product the row that the
  // parameters have it in, each once (GPT-NeoX stores q | k | v of a head together); none: the
  // same. Error when bias is not [out_features], or for rows of a weight that is transposed.
  Linear(Parameter weight, std::optional<Parameter> bias, bool transposed,
         std::optional<Tensor> rows);

  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }
  Shape shape() const { return {out_features_, in_features_}; }

  // y = activation(x W^T + b)
  void forward(const Tensor& y, const Tensor& x, Activation activation, const Pass& pass) const;
  // y = x W^T + b + residual; residual may be y.
  void forward_add(const Tensor& y, const Tensor& x, const Tensor& residual,
                   const Pass& pass) const;
  // The gradients of weight and bias.
  void backward_parameters(const Tensor& dy, const Tensor& x, const Pass& pass) const;
  // dx = dy W [+ residual]; residual may be null, or dx.
  void backward_input(const Tensor& dx, const Tensor& dy, const Tensor* residual,
                      const Pass& pass) const;

  // Error when a parameter is not in the flat buffer.
  void expect_within(const Tensor& flat) const;

 private:
  // Panels of one version of the parameters. Only one pass of a stack runs at a time.
  struct Packed {
    std::unique_ptr<fusewire::Linear> linear;
    DType dtype = DType::kFloat32;
    uint64_t version = 0;
  };
  // Weight and bias in the order of the product, of one version too. Panels may share them: they
  // stay where they are.
  struct Ordered {
    std::shared_ptr<void> weight, bias;
    uint64_t version = 0;
  };
  const fusewire::Linear& packed(Packed& panels, bool bias, bool transposed,
                                 const Pass& pass) const;
  const Ordered& ordered(const Pass& pass) const;
  void backward_ordered(const Tensor& dy, const Tensor& x, bool frozen, const Pass& pass) const;

  Parameter weight_;
  std::optional<Parameter> bias_;
  bool transposed_;
  std::optional<Tensor> rows_;
  int64_t in_features_, out_features_;
  mutable Packed forward_, backward_;
  mutable std::map<DType, Ordered> ordered_;
};

}  // namespace fusewire::train
