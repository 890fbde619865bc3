// What a warp adds up for 16 rows of its own in the backward pass of attention by mma.sync: the
// products with a tile of the other side, and the gradients of scores between them.
#pragma once

#include "cuda/attention/shared_rows.h"
#include "cuda/attention/tiled_work.h"

namespace fusewire::cuda {

// 16 rows of a warp, queries or keys, and a tile of Rows::kOther rows of the other side, both in
// shared memory.
struct BackwardStep {
  uint32_t own_first, own_second;   // the lane's addresses in its rows of q and dout, or k and v
  uint32_t first, second;           // addresses of the other rows of k and v, or q and dout
  const float *log_sum_exp, *dots;  // of the queries, from the first of these on
  // The dropout mask of the same queries, from the first of these keys on: `groups` bytes per
  // query.
  const uint8_t* mask;
  int groups;
  int nearest;  // the distance of the first of these keys to the first of these queries
  int keys;     // of the sequence, from the first of these on
};

// Adds to dq (first_sum) what the tile of keys contributes, or to dk and dv (first_sum and
// second_sum) what the tile of queries does. `head` is that of the queries.
template <class Rows, bool kOwnsKeys>
__device__ __forceinline__ void add_step(float (&first_sum)[Rows::kChunks][4],
                                         float (&second_sum)[kOwnsKeys ? Rows::kChunks : 1][4],
                                         const AttentionShape& shape, const BackwardStep& s,
                                         int head) {
  constexpr int kOther = Rows::kOther, kN = kOther / 8;
  constexpr int kQueries = kOwnsKeys ? kOther : 16, kKeys = kOwnsKeys ? 16 : kOther;
  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
  const uint32_t row_lane = Rows::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const uint32_t transposed_lane = Rows::offset(lane % 16, lane / 16);
  float weight[kN][4] = {}, dscore[kN][4] = {};
  multiply_rows<Rows>(weight, s.own_first, s.first + row_lane);
  multiply_rows<Rows>(dscore, s.own_second, s.second + row_lane);

  // Calls body(weight, dscore, query, key, log_sum_exp, dot, factor) for each of the lane's
  // scores, with query and key as indices in the rows.
  const auto for_each = [&](auto drops, auto body) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int mine = group + j / 2 * 8, theirs = n * 8 + pair + j % 2;
        const int query = kOwnsKeys ? theirs : mine, key = kOwnsKeys ? mine : theirs;
        float factor = 1.0f;
        if constexpr (decltype(drops)::value) {
          const uint32_t kept = s.mask[query * s.groups + key / kDropoutGroup];
          factor = kept >> key % kDropoutGroup & 1 ? shape.dropout.factor : 0.0f;
        }
        body(weight[n][j], dscore[n][j], query, key, s.log_sum_exp[query], s.dots[query], factor);
      }
    }
  };
  // Own keys beyond the sequence need no mask: their results are not stored.
  const bool hides = (!kOwnsKeys && s.keys < kKeys) || s.nearest - (kQueries - 1) < -shape.left ||
                     s.nearest + kKeys - 1 > shape.right;
  const float scale = shape.scale * kLog2E;
  const auto plainly = [&](auto drops, auto hiding) {
    const unsigned wide = static_cast<unsigned>(shape.left) + shape.right;
    for_each(drops, [&](float& product, float& dweight, int query, int key, float sum, float dot,
                        float factor) {
      float w = fast_exp2(fmaf(product, scale, -sum * kLog2E));
      if constexpr (decltype(hiding)::value) {
        const unsigned distance = static_cast<unsigned>(s.nearest + key - query + shape.left);
        w = key < s.keys && distance <= wide ? w : 0.0f;
      }
      product = w * factor;
      dweight = product * dweight - w * dot;
    });
  };
  const auto fully = [&](auto drops) {
    const float* bias = biases_of(shape, head);
    for_each(drops, [&](float& product, float& dweight, int query, int key, float sum, float dot,
                        float factor) {
      const WeightGradient gradient = differentiate(
          shape, bias, s.nearest + key - query, key < s.keys, product, dweight, factor, sum, dot,
          [](float x) {  // 1 - 2 / (e^2x + 1)
            return 1.0f - __fdividef(2.0f, fast_exp2(x * (2.0f * kLog2E)) + 1.0f);
          });
      product = gradient.kept;
      dweight = gradient.dscore;
    });
  };
  const bool direct = !shape.bias && shape.soft_cap <= 0.0f;
  const auto choose = [&](auto drops) {
    if (!direct) {
      fully(drops);
    } else if (hides) {
      plainly(drops, std::true_type());
    } else {
      plainly(drops, std::false_type());
    }
  };
  shape.dropout.any ? choose(std::true_type()) : choose(std::false_type());
  add_rows<Rows>(first_sum, dscore, s.first + transposed_lane);
  if constexpr (kOwnsKeys) add_rows<Rows>(second_sum, weight, s.second + transposed_lane);
}

}  // namespace fusewire::cuda
