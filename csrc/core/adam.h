// The arguments of the Adam kernels, for every target.
#pragma once

#include <cstdint>

namespace fusewire {

// Adam (Kingma & Ba 2015, algorithm 1). Weight decay is added to the gradient or, if `decoupled`,
// shrinks the parameters directly (Loshchilov & Hutter 2019, "Decoupled weight decay
// regularization", algorithm 2). Arrays are [count]. Segment i, the elements from segments[i] to
// segments[i + 1], has its own learning rate and weight decay.
//
// Parameters are float, and `shadow`, which may be null, receives the new ones, rounded to the
// element type of the kernels. Or they are bfloat16 (`half`) without a shadow, and rounded as in
// core/stochastic_rounding.h, where they are the elements from `first` on.
//
// Values that change from step to step are in device memory, so that the host never synchronises
// for them: factors[4] = the multiplier of the gradients, 1 / (1 - beta1^step),
// 1 / sqrt(1 - beta2^step), step. If the first of them is NaN, the step is skipped: nothing is
// written.
struct AdamArguments {
  void* parameters;
  bool half;
  int64_t first;
  float *exp_avg, *exp_avg_sq;
  const float* gradients;
  const int64_t* segments;
  const float *rates, *decays;
  int64_t segment_count, count;  // count = segments[segment_count]
  double beta1, beta2, eps;      // double: 1 - 0.999 in float has a relative error of 1e-5
  const float* factors;
  bool decoupled;
  void* shadow;
};

constexpr double kClipEps = 1e-6;  // torch's clip_grad_norm_ divides by the norm plus this

// Computes the factors of a step from the gradients of all parameters. sums[parts][2] are the
// outputs of gradient_norm for them. A run is a range of parameters whose updates
// are alike: firsts[runs] are the indices of the runs' first parameters, log_betas[runs][2] the
// logarithms of their betas (1 - beta^step is computed as -expm1(step * log(beta)), in float as
// exact as the beta was), and factors[runs][4] receives their factors, as above. steps[members]
// counts the steps of each parameter, norm[1] receives the norm of the gradients divided by `scale`
// (null: 1). A step whose gradients are not finite, or all 0, is skipped, and skipped[1] counts it.
struct AdamFactorsArguments {
  float *factors, *norm, *skipped, *steps;
  const float *sums, *log_betas, *scale;
  const int64_t* firsts;
  int64_t parts, runs, members;
  double max_norm;
};

}  // namespace fusewire
