// Computes the factors of an Adam step from the gradients of all parameters.
#include <cmath>
#include <limits>

#include "core/adam.h"
#include "core/kernels.h"

namespace fusewire::FUSEWIRE_TARGET {

void adam_factors(const AdamFactorsArguments& a, const Stream&) {
  double squares = 0, broken = 0;
  for (int64_t part = 0; part < a.parts; ++part) {
    squares += a.sums[2 * part];
    broken += a.sums[2 * part + 1];
  }
  const bool finite = squares <= std::numeric_limits<double>::max() && broken == 0;
  const bool good = finite && squares > 0;
  const double unscale = a.scale ? 1.0 / *a.scale : 1.0, norm = std::sqrt(squares) * unscale;
  const double clip = std::fmin(a.max_norm / (norm + kClipEps), 1.0);
  *a.norm = static_cast<float>(norm);
  if (!good) *a.skipped += 1.0f;
  for (int64_t member = 0; good && member < a.members; ++member) a.steps[member] += 1.0f;
  for (int64_t run = 0; run < a.runs; ++run) {
    const double steps = a.steps[a.firsts[run]];
    float* factors = a.factors + 4 * run;
    factors[0] = good ? static_cast<float>(clip * unscale) : NAN;
    factors[1] = static_cast<float>(-1.0 / std::expm1(steps * a.log_betas[2 * run]));
    factors[2] = static_cast<float>(1.0 / std::sqrt(-std::expm1(steps * a.log_betas[2 * run + 1])));
    factors[3] = static_cast<float>(steps);
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
