// The epilogue of a Hopper product: bias, activation and residual in fp32, rounded once.
//
// Both kernels compute transposed tiles: the weight's rows (output channels) are wgmma's 64-row
// side and the tokens its flexible side, any multiple of 8 up to 256. So a ragged number of tokens
// divides well over the multiprocessors, and a thread needs only two biases per tile.
#pragma once

#include <type_traits>

#include "cuda/activation.h"
#include "cuda/element.h"
#include "cuda/sm90_barrier.h"

namespace fusewire::cuda::sm90 {

// Every activation is one of four formulas, so that unrolled epilogues stay small:
//   kNone     x
//   kRelu     max(x, 0)
//   kNormal   x * normal distribution(x)              gelu_erf
//   kLogistic (slope x + scale) s + shift, where s = 1 / (1 + exp2(x (linear + cubic x^2)))
enum class Formula : int { kNone, kRelu, kNormal, kLogistic };

struct ActivationFormula {
  Formula formula = Formula::kNone;
  float linear = 0, cubic = 0, slope = 0, scale = 0, shift = 0;
};

inline ActivationFormula formula_of(Activation activation) {
  constexpr float kLog2e = 1.4426950408889634f;
  constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
  ActivationFormula f;
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      f.formula = Formula::kRelu;
      break;
    case Activation::kGeluErf:
      f.formula = Formula::kNormal;
      break;
    case Activation::kGeluTanh:
      f.formula = Formula::kLogistic;
      f.linear = -kLog2e * kTwoRootTwoOverPi;
      f.cubic = f.linear * 0.044715f;
      f.slope = 1;
      break;
    case Activation::kSilu:
      f.formula = Formula::kLogistic;
      f.linear = -kLog2e;
      f.slope = 1;
      break;
    case Activation::kTanh:
      f.formula = Formula::kLogistic;
      f.linear = -2 * kLog2e;
      f.scale = 2;
      f.shift = -1;
      break;
  }
  return f;
}

struct NoActivation {
  __device__ __forceinline__ float operator()(float x) const { return x; }
};

struct ReluActivation {
  __device__ __forceinline__ float operator()(float x) const { return relu(x); }
};

// x Phi(x) = max(x, 0) - t Q(t) with t = |x| and the upper tail Q(t) = erfc(t / sqrt 2) / 2. log2 Q
// is smooth: its minimax polynomial of degree 5 gives Q with a relative error of at most 8.4e-5
// wherever t Q(t) is not below fp16's normal range, which is 0.17 ulp of an fp16 result, and falls
// to 0 beyond.
struct NormalActivation {
  __device__ __forceinline__ float operator()(float x) const {
    const float t = fabsf(x);
    float p = fmaf(t, -3.2055695e-4f, 5.8277356e-3f);
    p = fmaf(t, p, -0.048238713f);
    p = fmaf(t, p, -0.46411908f);
    p = fmaf(t, p, -1.1491765f);
    p = fmaf(t, p, -1.0001208f);
    return fmaf(-t, fast_exp2(p), fmaxf(x, 0.0f));
  }
};

struct LogisticActivation {
  float linear, cubic, slope, scale, shift;
  __device__ __forceinline__ float operator()(float x) const {
    const float e = fast_exp2(x * fmaf(x * x, cubic, linear));
    return fmaf(fmaf(slope, x, scale), __fdividef(1.0f, 1.0f + e), shift);
  }
};

// Calls use(activation) with the functor of the formula: the branch is outside of unrolled loops.
template <class Use>
__device__ __forceinline__ void with_activation(const ActivationFormula& f, Use&& use) {
  if (f.formula == Formula::kNone) {
    use(NoActivation{});
  } else if (f.formula == Formula::kRelu) {
    use(ReluActivation{});
  } else if (f.formula == Formula::kNormal) {
    use(NormalActivation{});
  } else {
    use(LogisticActivation{f.linear, f.cubic, f.slope, f.scale, f.shift});
  }
}

// How a thread's sums become results. In a tile of 8 tokens a thread has the sums of two
// neighbouring tokens for each of two channels, 8 apart.
struct NoScales {
  __device__ __forceinline__ float2 tokens(int) const { return {}; }
  __device__ __forceinline__ float operator()(float sum, float, int) const { return sum; }
};

// The products are not contracted with the addition that follows: every kernel gives the same bits.
__device__ __forceinline__ float scaled_sum(float sum, float token, float channel) {
  return __fmul_rn(__fmul_rn(sum, token), channel);
}
__device__ __forceinline__ float scaled_sum(int32_t sum, float token, float channel) {
  return scaled_sum(__int2float_rn(sum), token, channel);
}

// kShared: the tokens' scales are in shared memory; otherwise the previous kernel wrote them to
// global memory.
template <bool kShared>
struct RowScales {
  const float2* pairs;  // of this thread's tokens among the first 8
  float channels[2];

  // `token_scales` are those of the tile's tokens, `channel` is the thread's first.
  __device__ __forceinline__ RowScales(const float* token_scales, const float* channel_scales,
                                       int channel, int n)
      : pairs(reinterpret_cast<const float2*>(token_scales) + threadIdx.x % 4) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      channels[h] = channel + 8 * h < n ? channel_scales[channel + 8 * h] : 0.0f;
    }
  }
  // Returns the scales of this thread's two tokens among the column-th 8.
  __device__ __forceinline__ float2 tokens(int column) const {
    return kShared ? pairs[4 * column] : __ldcg(pairs + 4 * column);
  }
  template <class Sum>
  __device__ __forceinline__ float operator()(Sum sum, float token, int channel) const {
    return scaled_sum(sum, token, channels[channel]);
  }
};

// Store (load) four (two, one) 8 x 8 matrices from (to) fragments to (from) rows of 16 bytes at
// `row`, transposed: a thread's pair of neighbouring tokens of one channel becomes part of rows of
// 8 channels of one token.
__device__ __forceinline__ void store_transposed(uint32_t row, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}
__device__ __forceinline__ void store_transposed_half(uint32_t row, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row),
               "r"(pairs[0]), "r"(pairs[1])
               : "memory");
}
__device__ __forceinline__ void store_transposed_quarter(uint32_t row, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(row),
               "r"(pairs[0])
               : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t row, uint32_t (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void load_transposed_half(uint32_t row, uint32_t (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(pairs[0]), "=r"(pairs[1])
               : "r"(row)
               : "memory");
}

// Returns the address of a lane's row, for the instructions above, in a tile with 64 channels per
// token: lane l has row l % 8 of matrix l / 8: tokens + 8 (l / 16), channels + 8 (l / 8 % 2). The
// next 8 tokens are 1024 bytes further.
__device__ __forceinline__ uint32_t fragment_row(const uint8_t* tile) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int chunk = 2 * warp + lane / 8 % 2;
  return shared_address(tile) + (lane / 16 * 8 + lane % 8) * 128 + ((chunk ^ (lane % 8)) * 16);
}

// Stores tokens [kBegin, kEnd) of a gated unit, from a warpgroup's accumulators of 64 channels
// (each thread's two are a pair of a and b) x kTokens, to `piece`: rows of 32 outputs with the
// 64-byte swizzle.
template <class T, int kTokens, int kBegin, int kEnd, class Activate>
__device__ __forceinline__ void store_gated_piece(const float (&d)[kTokens / 2],
                                                  const float (&bias)[2], uint8_t* piece,
                                                  const Activate& activate) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const uint32_t row = shared_address(piece) + lane * 64 + ((warp ^ (lane / 2 % 4)) * 16);
#pragma unroll
  for (int j = kBegin / 8; j < kEnd / 8; j += 2) {
    const bool two = j + 2 <= kEnd / 8;
    uint32_t pairs[4] = {};
#pragma unroll
    for (int i = 0; i < (two ? 2 : 1); ++i) {
      const float* sums = d + 4 * (j + i);
      pairs[i] = pack<T>(activate(sums[0] + bias[0]) * (sums[2] + bias[1]),
                         activate(sums[1] + bias[0]) * (sums[3] + bias[1]));
    }
    const uint32_t at = row + (j - kBegin / 8) * 512;
    two ? store_transposed_half(at, pairs) : store_transposed_quarter(at, pairs);
  }
}

// Loads tokens [kBegin, kEnd) of a warpgroup's residual, 64 channels x kTokens, from `piece`: rows
// of 64 channels, swizzled by TMA. pairs[2 j + h] belongs to d[4 j + 2 h].
template <int kTokens, int kBegin, int kEnd>
__device__ __forceinline__ void load_piece(uint32_t (&pairs)[kTokens / 4], const uint8_t* piece) {
  const uint32_t row = fragment_row(piece);
#pragma unroll
  for (int j = kBegin / 8; j < kEnd / 8; j += 2) {
    uint32_t four[4];
    const bool both = j + 2 <= kEnd / 8;
    const uint32_t at = row + (j - kBegin / 8) * 1024;
    both ? load_transposed(at, four) : load_transposed_half(at, four);
#pragma unroll
    for (int i = 0; i < (both ? 4 : 2); ++i) pairs[2 * j + i] = four[i];
  }
}

// Says where store_piece() finds the residual.
struct NoResidual {};
struct ResidualInPiece {};  // in the results' buffer
template <int kTokens>
struct ResidualInRegisters {  // from load_piece()
  const uint32_t (&pairs)[kTokens / 4];
};

// Stores tokens [kBegin, kEnd) of a warpgroup's accumulators, 64 channels x kTokens, to `piece`.
template <class T, int kTokens, int kBegin, int kEnd, class Sum, class Scales, class Activate,
          class Residual>
__device__ __forceinline__ void store_piece(const Sum (&d)[kTokens / 2], const Scales& scales,
                                            const float (&bias)[2], uint8_t* piece,
                                            const Activate& activate, const Residual& residual) {
  const uint32_t row = fragment_row(piece);
#pragma unroll
  for (int j = kBegin / 8; j < kEnd / 8; j += 2) {
    const bool both = j + 2 <= kEnd / 8;
    const uint32_t at = row + (j - kBegin / 8) * 1024;
    uint32_t pairs[4], added[4];
    const float2 tokens[2] = {scales.tokens(j), both ? scales.tokens(j + 1) : float2{}};
    if constexpr (std::is_same_v<Residual, ResidualInPiece>) {
      both ? load_transposed(at, added) : load_transposed_half(at, added);
    }
#pragma unroll
    for (int i = 0; i < (both ? 4 : 2); ++i) {
      const float2 token = tokens[i / 2];
      float x = activate(scales(d[4 * j + 2 * i], token.x, i % 2) + bias[i % 2]);
      float y = activate(scales(d[4 * j + 2 * i + 1], token.y, i % 2) + bias[i % 2]);
      if constexpr (std::is_same_v<Residual, ResidualInRegisters<kTokens>>) {
        added[i] = residual.pairs[2 * j + i];
      }
      if constexpr (!std::is_same_v<Residual, NoResidual>) {
        const float2 add = unpack<T>(added[i]);
        x += add.x;
        y += add.y;
      }
      pairs[i] = pack<T>(x, y);
    }
    both ? store_transposed(at, pairs) : store_transposed_half(at, pairs);
  }
}

}  // namespace fusewire::cuda::sm90
