// A step of Adam as its kernels see it.
#pragma once

#include <cstdint>

namespace fusewire {

// Adam (Kingma & Ba 2015, algorithm 1), with the decay of weights inside of the gradient or, if
// `decoupled`, beside it (Loshchilov & Hutter 2019, "Decoupled weight decay regularization",
// algorithm 2). Arrays are [count]; segment i, from segments[i] to segments[i + 1], has its own
// rate and decay. shadow may be null: the new parameters, rounded to the element type of the
// kernels.
//
// What changes from step to step is in the memory of the device, so that nothing waits for it:
// factors[3] = what gradients are multiplied by, 1 / (1 - beta1^step), 1 / sqrt(1 - beta2^step).
// Where the first of them is NaN the step is skipped: nothing is written.
struct AdamArguments {
  float *parameters, *exp_avg, *exp_avg_sq;
  const float* gradients;
  const int64_t* segments;
  const float *rates, *decays;
  int64_t segment_count, count;  // count = segments[segment_count]
  double beta1, beta2, eps;      // 1 - 0.999 in float is off by 1e-5 of itself
  const float* factors;
  bool decoupled;
  void* shadow;
};

constexpr double kClipEps = 1e-6;  // torch's clip_grad_norm_ divides by the norm and this

// What a step is computed with that the gradients decide. sums[parts][2]: what gradient_norm gave
// of parts of them. Arrays of a row for each run of parameters, whose updates are alike: firsts,
// the number of its first parameter; log_betas[runs][2], the logarithms of its betas (1 - beta^step
// is -expm1(step * log(beta)), in float as exact as the beta was); factors[runs][3], as above.
// steps [members] counts each parameter's steps, norm[1] is that of the gradients divided by
// `scale`, which may be null, and skipped[1] counts the steps whose gradients were not finite.
struct AdamFactorsArguments {
  float *factors, *norm, *skipped, *steps;
  const float *sums, *log_betas, *scale;
  const int64_t* firsts;
  int64_t parts, runs, members;
  double max_norm;
};

}  // namespace fusewire
