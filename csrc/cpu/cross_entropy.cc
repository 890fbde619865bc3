// Cross-entropy with label smoothing (Szegedy et al. 2016, section 7) and its gradient, one row at
// a time: loss = (1 - s) (lse - z_label) + s mean(lse - z_j), and its gradient is softmax(z) -
// (1 - s) at the label - s / cols everywhere. The exponentials of the sum are stored where the
// gradient goes.
#include <cmath>

#include "core/error.h"
#include "core/threads.h"
#include "core/training_kernels.h"
#include "cpu/columns.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

// Blocks of a row are summed separately: one chain of additions over a vocabulary would lose
// digits.
constexpr int64_t kBlockColumns = 64 * kLanes;

template <class Map>
FUSEWIRE_INLINE float sum_blocks(int64_t cols, Map&& map) {
  Vec total = {};
  for (int64_t block = 0; block < cols; block += kBlockColumns) {
    Vec sum = {};
    for_columns(cols - block < kBlockColumns ? cols - block : kBlockColumns,
                [&](int64_t c, int64_t count) { sum += map(block + c, count); });
    total += sum;
  }
  return reduce_add(total);
}

// Returns the loss of one row; with a.gradient, replaces its logits by their gradient times
// `scale`.
float row_loss(const CrossEntropyArguments& a, float* z, int64_t label, float scale) {
  const float lowest = -INFINITY;
  Vec tops = broadcast(lowest);
  for_columns(a.cols, [&](int64_t c, int64_t count) {
    tops = max(tops, count == kLanes ? load(z + c) : load_first(z + c, count, lowest));
  });
  const float top = reduce_max(tops);
  const float at_label = z[label];
  const float n = static_cast<float>(a.cols);
  float mean = 0.0f;
  if (a.smoothing > 0.0f) {
    mean = sum_blocks(a.cols, [&](int64_t c, int64_t count) { return read(z + c, count); });
    mean = mean / n - top;
  }
  float sum = sum_blocks(a.cols, [&](int64_t c, int64_t count) {
    const Vec v = count == kLanes ? load(z + c) : load_first(z + c, count, lowest);
    const Vec e = v != v ? v : exp(v - top);
    if (a.gradient) write(z + c, e, count);
    return e;
  });
  sum += top - top;  // NaN if a logit is +inf or all are -inf: no gradient hides it
  const float log_sum = std::log(sum);
  if (a.gradient) {
    const float by = scale / sum, less = scale * a.smoothing / n;
    for_columns(a.cols, [&](int64_t c, int64_t count) {
      write(z + c, read(z + c, count) * by - less, count);
    });
    z[label] -= scale * (1.0f - a.smoothing);
  }
  const float loss = log_sum - (at_label - top);
  if (a.smoothing == 0.0f) return loss;
  return (1.0f - a.smoothing) * loss + a.smoothing * (log_sum - mean);
}

}  // namespace

void cross_entropy(const CrossEntropyArguments& a, const Stream&) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t label = a.labels[r];
    if (label != a.ignore_index && (label < 0 || label >= a.cols)) {
      fail("cross_entropy: labels[", r, "]: got ", label, ", wanted 0 to ", a.cols - 1, " or ",
           a.ignore_index, ", which is ignored");
    }
  }
  const float scale = a.scale ? *a.scale : 1.0f;
  parallel_for(a.rows, rows_of_a_task(a.cols) + 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* z = static_cast<float*>(a.logits) + r * a.stride;
      if (a.labels[r] == a.ignore_index) {
        a.losses[r] = 0.0f;
        if (a.gradient) for_columns(a.cols, [&](int64_t c, int64_t n) { write(z + c, Vec{}, n); });
      } else {
        a.losses[r] = row_loss(a, z, a.labels[r], scale);
      }
    }
  });
}

}  // namespace fusewire::FUSEWIRE_TARGET
