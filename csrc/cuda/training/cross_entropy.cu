// Cross-entropy with label smoothing (Szegedy et al. 2016, section 7) and its gradient: loss = (1 -
// s) (lse - z_label) + s mean(lse - z_j), and the gradient is softmax(z) - (1 - s) at the label - s
// / cols everywhere.
#include "cuda/activation.h"
#include "cuda/kernels.h"
#include "cuda/rows/row.h"

namespace fusewire::cuda {
namespace {

// Returns e^(x - top), and 0 for x = top = -inf: a thread may see such elements before any other of
// its row.
template <class T>
__device__ __forceinline__ float exp_below(float x, float top) {
  return exp_for<T>(x - (top == -INFINITY ? 0.0f : top));
}

int shared_memory_of_a_block() {
  static const int bytes = attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return bytes;
}

template <class T>
__device__ __forceinline__ void fill_row(T* row, int cols, float value) {
  constexpr int n = Vector<T>::kSize;
  for_vectors(row, cols, [&](int c) {
    float v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = value;
    write_part(row, v, c, cols);
  });
}

// A row has kThreads threads. It is read twice: from memory, and for the gradient from shared
// memory if kHeld, otherwise from the caches. The sum of exponentials is kept relative to the
// largest element so far (Milakov & Gimelshein 2018).
template <class T, int kThreads, bool kHeld>
__global__ void __launch_bounds__(kThreads) cross_entropy_rows(CrossEntropyArguments a) {
  constexpr int n = Vector<T>::kSize;
  extern __shared__ float4 held_vectors[];
  Vector<T>* held = reinterpret_cast<Vector<T>*>(held_vectors);
  let_next_start();
  wait_for_inputs();
  const int cols = static_cast<int>(a.cols);
  const int64_t given = a.labels[blockIdx.x];
  T* z = static_cast<T*>(a.logits) + blockIdx.x * a.stride;
  if (given == a.ignore_index || given < 0 || given >= cols) {
    const float value = given == a.ignore_index ? 0.0f : NAN;
    if (threadIdx.x == 0) a.losses[blockIdx.x] = value;
    if (a.gradient) fill_row(z, cols, value);
    return;
  }
  const int label = static_cast<int>(given);
  const int before = static_cast<int>(reinterpret_cast<uintptr_t>(z) % 16 / sizeof(T));
  float top = -INFINITY, sums[3] = {};  // sums of exponentials and of logits, the label's logit
  for_values<4>(z, cols, -INFINITY, [&](int c, float (&v)[n]) {
    if constexpr (kHeld) {
      Vector<T> vector;
#pragma unroll
      for (int j = 0; j < n; ++j) vector.at[j] = from_float<T>(v[j]);
      held[(c + before) / n] = vector;
    }
    const float former = top;
#pragma unroll
    for (int j = 0; j < n; ++j) top = fmaxf(top, v[j]);
    if (c >= 0 && c + n <= cols) {
      sums[1] += reduce_thread(v, Sum{});
    } else {
#pragma unroll
      for (int j = 0; j < n; ++j) sums[1] += c + j >= 0 && c + j < cols ? v[j] : 0.0f;
    }
    if (label >= c && label < c + n) {
#pragma unroll
      for (int j = 0; j < n; ++j) sums[2] = c + j == label ? v[j] : sums[2];
    }
    float e[n];
#pragma unroll
    for (int j = 0; j < n; ++j) e[j] = exp_below<T>(v[j], top);
    sums[0] = sums[0] * exp_below<T>(former, top) + reduce_thread(e, Sum{});
  });
  const float own = top;
  top = reduce<kThreads, 0>(top, Max{});
  sums[0] *= exp_below<T>(own, top);
  reduce<kThreads, 1>(sums, Sum{});
  const float sum = sums[0] + (top - top);  // NaN if a logit is +inf or NaN, or if all are -inf
  const float width = static_cast<float>(cols), log_sum = logf(sum);
  if (threadIdx.x == 0) {
    float loss = log_sum - (sums[2] - top);
    if (a.smoothing > 0.0f) {
      loss = (1.0f - a.smoothing) * loss + a.smoothing * (log_sum - (sums[1] / width - top));
    }
    a.losses[blockIdx.x] = loss;
  }
  if (!a.gradient) return;
  const float scale = a.scale ? *a.scale : 1.0f;
  const float by = scale / sum, less = scale * a.smoothing / width;
  const float at_label = scale * (1.0f - a.smoothing);
  const auto gradient = [&](int c, float (&v)[n]) {
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = fmaf(exp_for<T>(v[j] - top), by, -less);
    if (label >= c && label < c + n) {
#pragma unroll
      for (int j = 0; j < n; ++j) v[j] -= c + j == label ? at_label : 0.0f;
    }
    write_part(z, v, c, cols);
  };
  if constexpr (kHeld) {  // a thread reads only what it wrote
    for_vectors(z, cols, [&](int c) {
      const Vector<T> vector = held[(c + before) / n];
      float v[n];
#pragma unroll
      for (int j = 0; j < n; ++j) v[j] = to_float(vector.at[j]);
      gradient(c, v);
    });
  } else {
    for_values<2>(z, cols, -INFINITY, gradient);
  }
}

}  // namespace

template <class T>
void cross_entropy(const CrossEntropyArguments& a, const Stream& stream) {
  const dim3 rows(static_cast<unsigned>(a.rows));
  // Two rows of this size fit in the shared memory of a multiprocessor on Hopper. Narrower rows
  // gain little from it: their second reading is from L1.
  constexpr size_t kHeldBytes = 110 * 1024;
  const size_t bytes = a.cols * sizeof(T);
  if (a.cols <= 1024) {
    launch(cross_entropy_rows<T, 32, false>, rows, 32, 0, stream, a);
  } else if (bytes <= 16 * 1024) {
    launch(cross_entropy_rows<T, 128, false>, rows, 128, 0, stream, a);
  } else if (a.gradient && bytes + 2 * sizeof(Vector<T>) <= kHeldBytes &&
             shared_memory_of_a_block() >= static_cast<int>(kHeldBytes)) {
    constexpr auto kernel = cross_entropy_rows<T, 512, true>;
    allow_shared_memory<kernel>(kHeldBytes, stream);
    launch(kernel, rows, 512, bytes + 2 * sizeof(Vector<T>), stream, a);
  } else {
    launch(cross_entropy_rows<T, 512, false>, rows, 512, 0, stream, a);
  }
}

#define INSTANTIATE(T) template void cross_entropy<T>(const CrossEntropyArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
