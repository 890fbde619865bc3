// Sums of squares of parts of a flat gradient. The sums of a part's blocks are added in order: the
// same bits with any number of threads.
#include "core/kernels.h"
#include "core/thread_buffer.h"
#include "core/threads.h"
#include "cpu/vec.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kBlockElements = 1 << 14;

typedef float HalfVec __attribute__((vector_size(FUSEWIRE_VEC_BYTES / 2), aligned(4), may_alias));
typedef double DoubleVec __attribute__((vector_size(FUSEWIRE_VEC_BYTES)));

struct Sum {
  double squares;
  double broken;  // number of NaN and infinite elements
};

Sum sum_of(const float* x, int64_t n) {
  constexpr int64_t kHalf = kLanes / 2, kChains = 4;  // registers at once, to hide latency
  DoubleVec squares[2 * kChains] = {};
  IntVec broken[kChains] = {};
  int64_t i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
#pragma GCC unroll 4
    for (int64_t chain = 0; chain < kChains; ++chain) {
      const float* at = x + i + chain * kLanes;
      const Vec v = load(at), nothing = v - v;  // NaN where v is not finite
      broken[chain] -= nothing != nothing;
#pragma GCC unroll 2
      for (int64_t half = 0; half < 2; ++half) {
        const DoubleVec wide = __builtin_convertvector(
            *reinterpret_cast<const HalfVec*>(at + half * kHalf), DoubleVec);
        squares[2 * chain + half] += wide * wide;
      }
    }
  }
  Sum sum = {};
  for (int64_t chain = 0; chain < kChains; ++chain) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sum.squares += squares[2 * chain + lane / kHalf][lane % kHalf];
      sum.broken += broken[chain][lane];
    }
  }
  for (; i < n; ++i) {
    sum.squares += double{x[i]} * x[i];
    sum.broken += x[i] - x[i] == 0.0f ? 0.0 : 1.0;
  }
  return sum;
}

}  // namespace

void gradient_norm(float* out, int64_t parts, const float* gradients, int64_t count,
                   const Stream&) {
  const int64_t blocks = (count + kBlockElements - 1) / kBlockElements;
  Sum* const sums = static_cast<Sum*>(thread_buffer(sizeof(Sum) * static_cast<size_t>(blocks)));
  parallel_for(blocks, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t from = block * kBlockElements, rest = count - from;
      sums[block] = sum_of(gradients + from, rest < kBlockElements ? rest : kBlockElements);
    }
  });
  for (int64_t part = 0; part < parts; ++part) {
    Sum all = {};
    for (int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
      all.squares += sums[block].squares;
      all.broken += sums[block].broken;
    }
    out[2 * part] = static_cast<float>(all.squares);
    out[2 * part + 1] = static_cast<float>(all.broken);
  }
}

}  // namespace fusewire::FUSEWIRE_TARGET
