// A step of Adam as its kernels see it.
#pragma once

#include <cstdint>

namespace fusewire {

// Adam (Kingma & Ba 2015, algorithm 1), with the decay of weights inside of the gradient or, if
// `decoupled`, beside it (Loshchilov & Hutter 2019, "Decoupled weight decay regularization",
// algorithm 2). Arrays are [count]; segment i, from segments[i] to segments[i + 1], has its own
// rate and decay. The gradient is that of the array times gradient_scale. shadow may be null: the
// new parameters, rounded to the element type of the kernels.
struct AdamArguments {
  float *parameters, *exp_avg, *exp_avg_sq;
  const float* gradients;
  const int64_t* segments;
  const float *rates, *decays;
  int64_t segment_count, count;  // count = segments[segment_count]
  double beta1, beta2, eps;      // 1 - 0.999 in float is off by 1e-5 of itself
  int64_t step;                  // from 1 on
  float gradient_scale;
  bool decoupled;
  void* shadow;
};

}  // namespace fusewire
