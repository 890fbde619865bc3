// The position-wise feed-forward: output(activation(intermediate(x))), or gated (Shazeer 2020):
// output(activation(a) * b) with [a | b] = intermediate(x).
#pragma once

#include "layers/block.h"

namespace fusewire::layers {

class FeedForward : public Sublayer {
 public:
  // Error when the two products do not fit.
  FeedForward(std::shared_ptr<const Linear> intermediate, std::shared_ptr<const Linear> output,
              Activation activation, bool gated);

  void compute(const Tensor& inner, const Norm* norm, Pass& pass) const override;
  int64_t scratch_width() const override { return gated_ ? intermediate_->out_features() : 0; }
  bool attends() const override { return false; }

 private:
  std::shared_ptr<const Linear> intermediate_;
  Activation activation_;
  bool gated_;
};

}  // namespace fusewire::layers
