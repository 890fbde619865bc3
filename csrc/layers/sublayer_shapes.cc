#include "layers/sublayer_shapes.h"

#include <cmath>

namespace fusewire::layers {

int64_t complete(HeadOptions& o, const Shape& qkv) {
  if (o.heads < 1) fail("Attention: heads: got ", o.heads, ", wanted 1 or more");
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.kv_heads < 1 || o.heads % o.kv_heads) {
    fail("Attention: kv_heads: got ", o.kv_heads, ", wanted a divisor of heads ", o.heads);
  }
  const int64_t all_heads = o.heads + 2 * o.kv_heads;
  if (qkv[0] % all_heads) {
    fail("Attention: qkv: got Linear", qkv.text(), ", wanted rows for each of ", all_heads,
         " heads of q, k and v");
  }
  if (!(o.soft_cap >= 0)) {
    fail("Attention: soft_cap: got ", o.soft_cap, ", wanted 0 (none) or more");
  }
  const int64_t head_dim = qkv[0] / all_heads;
  if (o.scale == 0) o.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return head_dim;
}

int64_t complete_cross(int64_t heads, float& scale, const Shape& q) {
  if (heads < 1 || q[0] % heads) {
    fail("CrossAttention: heads: got ", heads, ", wanted a divisor of the ", q[0], " rows of q");
  }
  const int64_t head_dim = q[0] / heads;
  if (scale == 0) scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return head_dim;
}

void expect_head_norm(Norm::Kind kind, const Shape& weight, int64_t head_dim) {
  if (kind != Norm::Kind::kRmsNorm || weight != Shape{head_dim}) {
    fail("Attention: q_norm, k_norm: got weight", weight.text(), ", wanted an rms_norm over [",
         head_dim, "], the head_dim");
  }
}

int64_t activated_width(int64_t intermediate, bool gated) {
  if (gated && intermediate % 2) {
    fail("FeedForward: intermediate: got ", intermediate, " rows, wanted as many of a as of b");
  }
  return gated ? intermediate / 2 : intermediate;
}

void expect_output(const char* sublayer, const Shape& output, int64_t hidden, int64_t inner_width) {
  if (output != Shape{hidden, inner_width}) {
    fail(sublayer, ": output: got Linear", output.text(), ", wanted [", hidden, ", ", inner_width,
         "], the width of x and what is computed of it");
  }
}

}  // namespace fusewire::layers
