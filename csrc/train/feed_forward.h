// The position-wise feed-forward, dense or gated, forward and backward (layers/feed_forward.h).
#pragma once

#include "train/block.h"

namespace fusewire::train {

class FeedForward : public Sublayer {
 public:
  // dropout: the probability that an element of the activation's output is dropped. Throws Error if
  // the two products do not fit.
  FeedForward(std::shared_ptr<const Linear> intermediate, std::shared_ptr<const Linear> output,
              Activation activation, bool gated, float dropout);

  void forward(const Tensor& x, SublayerActivations& a, const Pass& pass) const override;
  void drop(SublayerActivations& a, const Pass& pass) const override;
  Value backward(Value dz, const Tensor& x, SublayerActivations a, const Tensor* sum,
                 const Pass& pass) const override;
  void expect_within(const Tensor& flat) const override { intermediate_->expect_within(flat); }

 private:
  // Whether the activation's result is kept in the place of its input.
  bool keeps_result() const;
  Matrix activated(const Tensor& projected, const Pass& pass) const;
  void drop_numbers(const Tensor& inner, const Pass& pass) const;

  std::shared_ptr<const Linear> intermediate_;
  Activation activation_;
  bool gated_;
  float dropout_;
};

}  // namespace fusewire::train
