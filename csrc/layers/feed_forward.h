// The position-wise feed-forward: output(activation(intermediate(x))), or gated (Shazeer 2020):
// output(activation(a) * b) with [a | b] = intermediate(x).
#pragma once

#include "layers/block.h"

namespace fusewire::layers {

class FeedForward : public Sublayer {
 public:
  // Throws Error if the two products do not fit.
  FeedForward(std::shared_ptr<const Linear> intermediate, std::shared_ptr<const Linear> output,
              Activation activation, bool gated);

  void compute(const Tensor& inner, const Norm* norm, Pass& pass) const override;
  void finish(const Tensor& out, const Tensor& inner, const Tensor* residual,
              const Stream& stream) const override;
  int64_t inner_width() const override {
    return activated_late() ? intermediate_->out_features() : output().in_features();
  }
  int64_t scratch_width() const override {
    return gated_ && !activated_late() ? intermediate_->out_features() : 0;
  }
  bool attends() const override { return false; }

 private:
  // Returns whether inner is the intermediate before the activation, which the output's product
  // applies when it reads it.
  bool activated_late() const {
    return output().activates() && (gated_ || activation_ != Activation::kNone);
  }

  std::shared_ptr<const Linear> intermediate_;
  Activation activation_;
  bool gated_;
};

}  // namespace fusewire::layers
