// Estimates the time of a product: waves of blocks, each of the time of a block. A block takes a
// fixed time to begin and end, and a time per stage of 64 inputs, which is bound by dequantisation
// if tokens are few. The constants were fitted to products of 48 to 2048 rows by matrices of 2 to
// 117 million elements, timed on an H100: the chosen configuration takes 0.3 % longer than the best
// one on average. As nothing is timed at run time, the same product has the same bits in every
// process.
#include <algorithm>

#include "cuda/gemm/int4_weight.h"
#include "cuda/gemm/sm90_int4.h"
#include "cuda/launch.h"

namespace fusewire::cuda {

namespace {

using Configuration = Sm90Configuration;

constexpr int64_t kFewRows = 32;  // int4_gemm() is faster up to here
constexpr int kSplits[] = {1, 2, 3, 4, 6, 8};
constexpr int kLargeTokens[] = {96, 128, 160, 192, 224, 256};

constexpr int64_t over(int64_t size, int64_t part) {
  return (size + part - 1) / part;
}

// Returns how many clusters of `split` blocks run at the same time. The blocks of a cluster run
// within one of the chip's groups of up to 18 multiprocessors (GPCs), and clusters of more than two
// blocks leave some multiprocessors unused.
int64_t clusters_at_once(int split) {
  const int blocks = split <= 2 ? multiprocessors() : multiprocessors() * 5 / 6;
  return std::max(blocks / split, 1);
}

int64_t large_nanoseconds(int tokens, int64_t rows, int64_t n, int64_t units) {
  const int64_t clusters = over(n, 256) * over(rows, tokens);
  const int64_t stage = 210 + 17 * tokens / 10;
  return over(clusters, multiprocessors() / 2) * (units * stage + 1700);
}

// If there are many blocks of 64 tokens, two share a multiprocessor.
int64_t small_nanoseconds(const Configuration& c, int64_t rows, int64_t n, int64_t units) {
  const int64_t at_once = clusters_at_once(c.split);
  const int64_t clusters = over(n, 128) * over(rows, c.tokens);
  const bool two = c.tokens == 64 && clusters > at_once;
  const int64_t stage = c.tokens == 128 ? 440 : two ? 710 : 310;
  const int64_t waves = over(clusters, two ? 2 * at_once : at_once);
  return waves * (over(units, c.split) * stage + 3500) + (c.split > 1 ? 450 : 0);
}

}  // namespace

std::optional<Configuration> sm90_int4_choice(const GemmArguments& a) {
  if (a.m <= kFewRows || !hopper() || !sm90_operands_fit(a)) return {};
  const int64_t rows = gemm_bucket(a.m), units = nibbles::units_of(a.k);
  std::optional<Configuration> best;
  int64_t least = 0;
  const auto consider = [&](const Configuration& c, int64_t nanoseconds) {
    if (best && nanoseconds >= least) return;
    best = c;
    least = nanoseconds;
  };
  for (const int tokens : {64, 128}) {
    if (tokens == 128 && rows <= 64) continue;
    for (const int split : kSplits) {
      if (split > units) continue;
      const Configuration c{128, tokens, split};
      consider(c, small_nanoseconds(c, rows, a.n, units));
    }
  }
  const bool whole = a.n % 8 == 0;  // otherwise TMA would write between the rows
  for (const int tokens : kLargeTokens) {
    if (rows > 64 && whole) {
      consider({128, tokens, 0}, large_nanoseconds(tokens, rows, a.n, units));
    }
  }
  return best;
}

}  // namespace fusewire::cuda
