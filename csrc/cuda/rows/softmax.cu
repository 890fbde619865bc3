// Softmax and L2 normalisation of rows: each divides a row by a sum over it.
#include "cuda/activation.h"
#include "cuda/kernels.h"
#include "cuda/rows/row.h"

namespace fusewire::cuda {
namespace {

struct RowsArguments {
  void* out;
  const void* x;
  int64_t out_stride, x_stride, rows, cols;
};

// The widest row that a block holds in registers, unconverted: the vocabulary of BERT has 30522.
constexpr int kHeldColumns = 32768;

// Returns one over the L2 norm, which is at least 1e-12.
__device__ __forceinline__ float l2_scale(float sum_of_squares) {
  const float norm = sqrtf(sum_of_squares);
  return 1.0f / (norm < 1e-12f ? 1e-12f : norm);  // a NaN stays NaN
}

// Returns e^(x - top), and 0 for x = top = -inf: a thread may see such elements before any other of
// its row.
template <class T>
__device__ __forceinline__ float exp_below(float x, float top) {
  return exp_for<T>(x - (top == -INFINITY ? 0.0f : top));
}

template <class T, class L, bool kSoftmax>
__global__ void __launch_bounds__(L::kBlock, L::kBlocksPerSm) scale_rows(RowsArguments a) {
  let_next_start();
  wait_for_inputs();
  const int cols = static_cast<int>(a.cols);
  const int64_t row = L::row();
  if (row >= a.rows) return;
  RowPacks<L, T> x;
  load_row<L>(x, static_cast<const T*>(a.x) + row * a.x_stride, cols, kSoftmax ? -INFINITY : 0.0f);
  float v[L::kElements], scale;
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) v[i] = element<L, T>(x, i);
  if constexpr (kSoftmax) {
    const float top = reduce<L::kThreads, 0>(reduce_thread(v, Max{}), Max{});
#pragma unroll
    for (int i = 0; i < L::kElements; ++i) v[i] = exp_for<T>(v[i] - top);
    scale = 1.0f / reduce<L::kThreads, 1>(reduce_thread(v, Sum{}), Sum{});
  } else {
    float squares[L::kElements];
#pragma unroll
    for (int i = 0; i < L::kElements; ++i) squares[i] = v[i] * v[i];
    scale = l2_scale(reduce<L::kThreads, 0>(reduce_thread(squares, Sum{}), Sum{}));
  }
#pragma unroll
  for (int i = 0; i < L::kElements; ++i) v[i] *= scale;
  store_row<L>(static_cast<T*>(a.out) + row * a.out_stride, v, cols);
}

// Holds a row, as it is in memory, in the registers of a block: the vectors between its first and
// its last 16-byte boundary, and the elements around them, fewer than two vectors, one per thread.
template <class T, int kThreads>
struct HeldRow {
  static constexpr int n = Vector<T>::kSize, kVectors = kHeldColumns / n / kThreads;
  int first, vectors, edge_column;
  bool has_edge;
  uint4 held[kVectors];
  float edge;

  __device__ __forceinline__ void load(const T* row, int cols, float fill) {
    const int misaligned = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
    first = misaligned ? n - misaligned : 0;
    vectors = (cols - first) / n;
    Vector<T> filled;
#pragma unroll
    for (int j = 0; j < n; ++j) filled.at[j] = from_float<T>(fill);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      held[i] = reinterpret_cast<const uint4&>(filled);
      if (index(i) < vectors) held[i] = *reinterpret_cast<const uint4*>(row + column(i));
    }
    const int t = threadIdx.x;
    edge_column = t < n ? t : first + vectors * n + t - n;
    has_edge = edge_column < (t < n ? first : cols);
    edge = has_edge ? to_float(row[edge_column]) : fill;
  }
  __device__ __forceinline__ int index(int i) const { return threadIdx.x + i * kThreads; }
  __device__ __forceinline__ int column(int i) const { return first + index(i) * n; }

  // Calls body(i, v) for each vector. The fp32 values are not kept: they take twice the registers.
  template <class Body>
  __device__ __forceinline__ void for_each(Body&& body) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      asm volatile("" : "+r"(held[i].x), "+r"(held[i].y), "+r"(held[i].z), "+r"(held[i].w));
      float v[n];
#pragma unroll
      for (int j = 0; j < n; ++j) v[j] = to_float(reinterpret_cast<const T*>(&held[i])[j]);
      body(i, v);
    }
  }
};

// With 512 threads (16-bit elements) two blocks fit on a multiprocessor, and the arithmetic of one
// overlaps the memory accesses of the other; 1024 threads are faster for a single row.
template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) softmax_held_rows(RowsArguments a) {
  constexpr int n = Vector<T>::kSize;
  let_next_start();
  wait_for_inputs();
  HeldRow<T, kThreads> row;
  row.load(static_cast<const T*>(a.x) + blockIdx.x * a.x_stride, static_cast<int>(a.cols),
           -INFINITY);
  float tops[4] = {row.edge, -INFINITY, -INFINITY, -INFINITY};
  row.for_each([&](int, const float (&v)[n]) {
#pragma unroll
    for (int j = 0; j < n; ++j) tops[j % 4] = fmaxf(tops[j % 4], v[j]);
  });
  const float top = reduce<kThreads, 0>(reduce_thread(tops, Max{}), Max{});
  row.edge = exp_for<T>(row.edge - top);
  float sums[4] = {row.edge};
  row.for_each([&](int, const float (&v)[n]) {
#pragma unroll
    for (int j = 0; j < n; ++j) sums[j % 4] += exp_for<T>(v[j] - top);
  });
  const float scale = 1.0f / reduce<kThreads, 1>(reduce_thread(sums, Sum{}), Sum{});
  T* out = static_cast<T*>(a.out) + blockIdx.x * a.out_stride;
  row.for_each([&](int i, float (&v)[n]) {
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = exp_for<T>(v[j] - top) * scale;
    if (row.index(i) < row.vectors) write_part(out, v, row.column(i), static_cast<int>(a.cols));
  });
  if (row.has_edge) out[row.edge_column] = from_float<T>(row.edge * scale);
}

// Reads rows that do not fit in registers twice, the second time from the caches. The sum of
// exponentials is kept relative to the largest element so far (Milakov & Gimelshein 2018).
template <class T, bool kSoftmax>
__global__ void __launch_bounds__(kWideBlock, 3) scale_wide_rows(RowsArguments a) {
  constexpr int n = Vector<T>::kSize;
  let_next_start();
  wait_for_inputs();
  const int cols = static_cast<int>(a.cols);
  const T* x = static_cast<const T*>(a.x) + blockIdx.x * a.x_stride;
  T* out = static_cast<T*>(a.out) + blockIdx.x * a.out_stride;
  float top = kSoftmax ? -INFINITY : 0.0f, sum = 0.0f;
  for_values<2>(x, cols, kSoftmax ? -INFINITY : 0.0f, [&](int, float (&v)[n]) {
    if constexpr (kSoftmax) {
      const float before = top;
#pragma unroll
      for (int j = 0; j < n; ++j) top = fmaxf(top, v[j]);
      sum *= exp_below<T>(before, top);
#pragma unroll
      for (int j = 0; j < n; ++j) v[j] = exp_below<T>(v[j], top);
    } else {
#pragma unroll
      for (int j = 0; j < n; ++j) v[j] *= v[j];
    }
    sum += reduce_thread(v, Sum{});
  });
  float scale;
  if constexpr (kSoftmax) {
    const float before = top;
    top = reduce<kWideBlock, 0>(top, Max{});
    scale = 1.0f / reduce<kWideBlock, 1>(sum * exp_below<T>(before, top), Sum{});
  } else {
    scale = l2_scale(reduce<kWideBlock, 0>(sum, Sum{}));
  }
  for_values<2>(x, cols, 0.0f, [&](int c, float (&v)[n]) {
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = (kSoftmax ? exp_for<T>(v[j] - top) : v[j]) * scale;
    write_part(out, v, c, cols);
  });
}

template <class T, bool kSoftmax>
void scale(const RowsArguments& a, const Stream& stream) {
  const bool vectors = a.cols % Vector<T>::kSize == 0 && vectors_fit<T>(a.x, a.x_stride) &&
                       vectors_fit<T>(a.out, a.out_stride);
  const bool held = with_row_layout<T>(a.cols, vectors, [&](auto layout) {
    using L = decltype(layout);
    launch(scale_rows<T, L, kSoftmax>, L::grid(a.rows), L::kBlock, 0, stream, a);
  });
  if (held) return;
  if (!kSoftmax || a.cols <= kHeldColumns / 2 || a.cols > kHeldColumns) {
    launch(scale_wide_rows<T, kSoftmax>, a.rows, kWideBlock, 0, stream, a);
  } else if (a.rows > multiprocessors()) {
    constexpr int kHalf = sizeof(T) == 2 ? 512 : 1024;
    launch(softmax_held_rows<T, kHalf>, a.rows, kHalf, 0, stream, a);
  } else {
    launch(softmax_held_rows<T, 1024>, a.rows, 1024, 0, stream, a);
  }
}

}  // namespace

template <class T>
void softmax(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
             int64_t cols, const Stream& stream) {
  scale<T, true>({out, x, out_stride, x_stride, rows, cols}, stream);
}

template <class T>
void l2_normalize(void* out, int64_t out_stride, const void* x, int64_t x_stride, int64_t rows,
                  int64_t cols, const Stream& stream) {
  scale<T, false>({out, x, out_stride, x_stride, rows, cols}, stream);
}

#define INSTANTIATE(T)                                                                             \
  template void softmax<T>(void*, int64_t, const void*, int64_t, int64_t, int64_t, const Stream&); \
  template void l2_normalize<T>(void*, int64_t, const void*, int64_t, int64_t, int64_t,            \
                                const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
