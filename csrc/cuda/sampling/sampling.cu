// The kernels between logits and tokens: penalties, biases, sampling and ranks. Most use one block
// per row; where rows are few, several find the largest element. Rows that are read again come from
// the L2 cache.
#include <cfloat>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/sampling/draw.h"
#include "cuda/sampling/shared_row.h"

namespace fusewire::cuda {
namespace {

// Indices come from the host; those that are out of range are ignored.
template <class T>
__global__ void __launch_bounds__(256)
    penalize_rows(T* logits, int64_t stride, int cols, const int32_t* offsets,
                  const int32_t* tokens, const int32_t* counts, int n, const float* repetition,
                  const float* presence, const float* frequency) {
  let_next_start();
  wait_for_inputs();
  const int r = blockIdx.x;
  T* row = logits + r * stride;
  const int end = min(offsets[r + 1], n);
  for (int i = max(offsets[r], 0) + threadIdx.x; i < end; i += blockDim.x) {
    const int token = tokens[i], count = counts[i];
    if (token < 0 || token >= cols) continue;
    float x = to_float(row[token]);
    x = x < 0.0f ? x * repetition[r] : x / repetition[r];
    if (count > 0) x -= presence[r] + static_cast<float>(count) * frequency[r];
    row[token] = from_float<T>(x);
  }
}

template <class T>
__global__ void __launch_bounds__(256)
    add_biases(T* logits, int64_t stride, int64_t rows, int cols, const int32_t* at_rows,
               const int32_t* tokens, const float* values, int64_t n) {
  let_next_start();
  wait_for_inputs();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int row = at_rows[i], token = tokens[i];
  if (row < 0 || row >= rows || token < 0 || token >= cols) return;
  T& x = logits[row * stride + token];
  x = from_float<T>(to_float(x) + values[i]);
}

template <class T>
__global__ void __launch_bounds__(kDrawThreads, 1)
    draw_tokens(const SampleArguments a, const int blocks) {
  let_next_start();
  wait_for_inputs();
  const int r = blockIdx.x / blocks, rank = blockIdx.x % blocks, cols = static_cast<int>(a.cols);
  const T* row = static_cast<const T*>(a.logits) + r * a.stride;
  int64_t* token = a.tokens + r;

  const Range range = range_of(row, cols, rank, blocks);
  if (rank > 0) return;
  const float most = range.most, least = range.least, temperature = a.temperature[r];
  if (!range.sound || temperature == 0.0f) {
    if (threadIdx.x == 0) *token = range.sound ? range.first : -1;
    return;
  }

  Candidates candidates{most, fminf(1.0f / temperature, FLT_MAX)};
  const auto value_itself = [](float value, int) { return value; };
  const auto weight = [&](float value, int column) { return candidates.weight(value, column); };
  const auto sum_of = [&](auto&& term) {
    float sum = 0.0f;
    for_elements(row, cols, [&](float value, int column) { sum += term(value, column); });
    return reduce_block(sum, Sum{});
  };

  if (const int k = a.top_k[r]; k > 0 && k < cols) {
    candidates.least =
        threshold_of(row, cols, static_cast<float>(k), least, most, value_itself, [](float, int) {
          return 1.0f;
        }).value;
  }
  if (const float top_p = a.top_p[r]; top_p < 1.0f) {
    const float target = top_p * sum_of(weight);
    const float drawable = most - 88.0f * temperature;  // the weight of lower logits vanishes
    const float from = fmaxf(fmaxf(least, candidates.least), drawable);
    const Threshold t = threshold_of(row, cols, target, from, most, value_itself, weight);
    const float each = expf(candidates.log_weight(t.value));
    const auto equal = [&](float value, int) { return value == t.value ? 1.0f : 0.0f; };
    const float wanted = fmaxf(ceilf((target - t.above) / each), 1.0f);
    candidates.least = t.value;
    if (sum_of(equal) > wanted) {
      const Threshold last = threshold_of(
          row, cols, wanted, -static_cast<float>(cols), 0.0f,
          [](float, int column) { return -static_cast<float>(column); }, equal);
      candidates.tie = t.value;
      candidates.last_tie = static_cast<int>(-last.value);
    }
  }
  candidates.least_weight = fmaxf(a.min_p[r], 0.0f);
  if (const float typical_p = a.typical_p[r]; typical_p < 1.0f) {
    const float total = sum_of(weight);
    const float mean = sum_of([&](float value, int column) {
                         const float w = candidates.weight(value, column);
                         return w > 0.0f ? w * candidates.log_weight(value) : 0.0f;
                       }) /
                       total;
    candidates.mean = mean;
    const auto near = [&](float value, int) { return candidates.near(value); };
    candidates.closeness =
        threshold_of(row, cols, typical_p * total, -88.0f, 0.0f, near, weight).value;
  }
  pick(token, row, cols, candidates,
       philox_uniform(static_cast<uint64_t>(a.seeds[r]), static_cast<uint64_t>(a.steps[r])));
}

template <class T>
__global__ void __launch_bounds__(256)
    gather_from_rows(float* out, const T* x, int64_t x_stride, const int64_t* columns, int64_t rows,
                     int64_t cols) {
  let_next_start();
  wait_for_inputs();
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  const int64_t column = columns[r];
  out[r] = column >= 0 && column < cols ? to_float(x[r * x_stride + column]) : NAN;
}

template <class T>
__global__ void __launch_bounds__(kDrawThreads)
    rank_in_rows(int32_t* out, const T* x, int64_t x_stride, const int64_t* columns, int cols) {
  let_next_start();
  wait_for_inputs();
  const int64_t column = columns[blockIdx.x];
  if (column < 0 || column >= cols) {
    if (threadIdx.x == 0) out[blockIdx.x] = 0;
    return;
  }
  const T* row = x + blockIdx.x * x_stride;
  const float own = to_float(row[column]);
  float before = 0.0f;  // exact: cols is bounded (ops/sampling.cc)
  for_elements<4>(row, cols, [&](float value, int c) {
    before += value > own || (value == own && c < column) ? 1.0f : 0.0f;
  });
  before = reduce_block(before, Sum{});
  if (threadIdx.x == 0) out[blockIdx.x] = 1 + static_cast<int32_t>(before);
}

}  // namespace

template <class T>
void penalize(void* logits, int64_t stride, int64_t rows, int64_t cols, const int32_t* offsets,
              const int32_t* tokens, const int32_t* counts, int64_t n, const float* repetition,
              const float* presence, const float* frequency, const Stream& stream) {
  launch(penalize_rows<T>, dim3(static_cast<unsigned>(rows)), 256, 0, stream,
         static_cast<T*>(logits), stride, static_cast<int>(cols), offsets, tokens, counts,
         static_cast<int>(n), repetition, presence, frequency);
}

template <class T>
void bias_logits(void* logits, int64_t stride, int64_t rows, int64_t cols, const int32_t* at_rows,
                 const int32_t* tokens, const float* values, int64_t n, const Stream& stream) {
  launch(add_biases<T>, dim3(static_cast<unsigned>((n + 255) / 256)), 256, 0, stream,
         static_cast<T*>(logits), stride, rows, static_cast<int>(cols), at_rows, tokens, values, n);
}

template <class T>
void sample(const SampleArguments& a, const Stream& stream) {
  const int blocks = blocks_per_row<T>(a.rows, a.cols, multiprocessors());
  launch_clusters(draw_tokens<T>, blocks, dim3(static_cast<unsigned>(a.rows * blocks)),
                  kDrawThreads, 0, stream, a, blocks);
}

template <class T>
void gather_columns(float* out, const void* x, int64_t x_stride, const int64_t* columns,
                    int64_t rows, int64_t cols, const Stream& stream) {
  launch(gather_from_rows<T>, dim3(static_cast<unsigned>((rows + 255) / 256)), 256, 0, stream, out,
         static_cast<const T*>(x), x_stride, columns, rows, cols);
}

template <class T>
void rank_columns(int32_t* out, const void* x, int64_t x_stride, const int64_t* columns,
                  int64_t rows, int64_t cols, const Stream& stream) {
  launch(rank_in_rows<T>, dim3(static_cast<unsigned>(rows)), kDrawThreads, 0, stream, out,
         static_cast<const T*>(x), x_stride, columns, static_cast<int>(cols));
}

#define INSTANTIATE(T)                                                                            \
  template void penalize<T>(void*, int64_t, int64_t, int64_t, const int32_t*, const int32_t*,     \
                            const int32_t*, int64_t, const float*, const float*, const float*,    \
                            const Stream&);                                                       \
  template void bias_logits<T>(void*, int64_t, int64_t, int64_t, const int32_t*, const int32_t*,  \
                               const float*, int64_t, const Stream&);                             \
  template void sample<T>(const SampleArguments&, const Stream&);                                 \
  template void gather_columns<T>(float*, const void*, int64_t, const int64_t*, int64_t, int64_t, \
                                  const Stream&);                                                 \
  template void rank_columns<T>(int32_t*, const void*, int64_t, const int64_t*, int64_t, int64_t, \
                                const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
