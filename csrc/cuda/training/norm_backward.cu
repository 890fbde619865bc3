// Gradients of LayerNorm and RMSNorm. With n = (x - mean) / sqrt(variance + eps) and g = dy *
// weight: dx = (g - mean(g) - n * mean(g * n)) / sqrt(variance + eps), dweight = sum of dy * n,
// dbias = sum of dy (Ba et al. 2016). RMSNorm has no mean, neither of x nor of g. Mean and
// deviation are computed again from x, which is in registers anyway.
#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/runtime/kept_memory.h"
#include "cuda/training/column_totals.h"
#include "cuda/training/dropout.h"
#include "cuda/training/norm_backward.h"

namespace fusewire::cuda {
namespace {

template <class L, class T>
__device__ __forceinline__ Pack<T, L::kWidth> weight_of(const T* weight, int i, int cols) {
  Pack<T, L::kWidth> pack = {};
  if (L::column(i) < cols) {
    pack = *reinterpret_cast<const Pack<T, L::kWidth>*>(weight + L::column(i));
  }
  return pack;
}

// The numbers of a block: dweight, of a LayerNorm dbias, and the sums of dz.
template <bool kCentered>
__host__ __device__ __forceinline__ int64_t sums_width(const NormBackwardArguments& a) {
  return a.cols * (1 + kCentered + (a.sums != nullptr));
}

// In fp32 the deviations are from the mean, which takes a pass of its own; of 16-bit elements,
// which are too far apart for rows with a large mean, they are from the first number of the row.
template <class T, class L, bool kCentered>
__device__ __forceinline__ RowStatistics row_statistics(RowPacks<L, T>& x, RowPacks<L, T>& dy,
                                                        const T* weight, int cols, float eps,
                                                        float lead, int& slot) {
  const float per_column = 1.0f / static_cast<float>(cols);
  RowStatistics s = {};
  if constexpr (kCentered && sizeof(T) == 4) {
    float v[L::kElements];
#pragma unroll
    for (int i = 0; i < L::kElements; ++i) v[i] = element<L, T>(x, i);
    float sum[1] = {reduce_thread(v, Sum{})};
    group_sums<L>(sum, slot);
    s.mean = sum[0] * per_column;
    forget_widened<L, T>(x);
  } else if constexpr (kCentered) {
    s.mean = lead;
  }
  float sums[4] = {};  // of d^2, g d, g and d; d = x - mean
#pragma unroll
  for (int i = 0; i < L::kCount; ++i) {
    const Pack<T, L::kWidth> w = weight_of<L>(weight, i, cols);
    float squares = 0.0f, deviations = 0.0f;
#pragma unroll
    for (int j = 0; j < L::kWidth; ++j) {
      const float d = element<L, T>(x, i * L::kWidth + j) - s.mean;
      const float g = element<L, T>(dy, i * L::kWidth + j) * to_float(w.at[j]);
      squares = fmaf(d, d, squares);
      sums[1] = fmaf(g, d, sums[1]);
      if constexpr (kCentered) {
        sums[2] += g;
        deviations += d;
      }
    }
    if (L::column(i) < cols) {
      sums[0] += squares;
      sums[3] += deviations;
    }
  }
  if constexpr (kCentered) {
    group_sums<L>(sums, slot);
  } else {
    float two[2] = {sums[0], sums[1]};
    group_sums<L>(two, slot);
    sums[0] = two[0];
    sums[1] = two[1];
  }
  s.set(sums, kCentered, per_column, eps);
  if constexpr (sizeof(T) == 2) {
    s.mean += s.left;
    s.left = 0.0f;
  }
  return s;
}

// A block leaves its sums in row blockIdx.x of parts[gridDim.x, width]: of dweight, if kCentered of
// dbias, and if they are wanted of dz.
template <class T, class L, bool kCentered, bool kResidual, bool kDrops>
__global__ void __launch_bounds__(NormGroups<L>::kBlock, 1)
    norm_gradients(NormBackwardArguments a, int heads, float* parts) {
  using G = NormGroups<L>;
  using P = Pack<T, L::kWidth>;
  // The next row is on its way while this one is computed, where registers are left for it.
  constexpr bool kAhead = sizeof(P) == 16 && sizeof(T) == 2;
  extern __shared__ float4 shared_memory[];
  let_next_start();
  wait_for_inputs();
  const int width = static_cast<int>(a.cols), group = threadIdx.x / L::kThreads;
  const int64_t step = static_cast<int64_t>(gridDim.x) * G::kCount;
  const T* weight = static_cast<const T*>(a.weight);
  float dweight[L::kElements] = {}, dbias[kCentered ? L::kElements : 1] = {};
  const RowDropout dropout(kDrops ? a.dropout : Dropout{});
  if constexpr (kDrops) SharedSums<L>::clear();
  RowPacks<L, T> x, dy;
  float lead = 0.0f;  // the first number of the row
  const auto fetch = [&](int64_t row) {
    const int cols = row < a.rows ? width : 0;  // no row is one of no columns
    const T* from = static_cast<const T*>(a.x) + row_offset(row, a.x_stride, heads, width);
    if (kCentered && sizeof(T) == 2) lead = cols > 0 ? to_float(from[0]) : 0.0f;
    load_row<L>(x, from, cols, 0.0f);
    load_row<L>(dy, static_cast<const T*>(a.dy) + row_offset(row, a.dy_stride, heads, width), cols,
                0.0f);
  };
  int slot = 0;
  int64_t row = static_cast<int64_t>(group) * gridDim.x + blockIdx.x;
  if (kAhead) fetch(row);
  // As many turns for all threads, as groups may share a warp.
  for (int64_t first = 0; first < a.rows; first += step, row += step) {
    if (!kAhead) fetch(row);
    const int cols = row < a.rows ? width : 0;
    RowPacks<L, T> own_x, own_dy, residual;
    if constexpr (kResidual) {
      const int64_t from = row_offset(row, a.dresidual_stride, heads, width);
      load_row<L>(residual, static_cast<const T*>(a.dresidual) + from, cols, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < L::kCount; ++i) {
      own_x[i] = x[i];
      own_dy[i] = dy[i];
    }
    const float own_lead = lead;
    if (kAhead) fetch(row + step);
    const RowStatistics s =
        row_statistics<T, L, kCentered>(own_x, own_dy, weight, width, a.eps, own_lead, slot);
    forget_widened<L, T>(own_x);
    forget_widened<L, T>(own_dy);
    T* dx = static_cast<T*>(a.dx) + row_offset(row, a.dx_stride, heads, width);
    T* dz = static_cast<T*>(a.dz) + row * a.dz_stride;
#pragma unroll
    for (int i = 0; i < L::kCount; ++i) {
      const P w = weight_of<L>(weight, i, width);
      P out;
#pragma unroll
      for (int j = 0; j < L::kWidth; ++j) {
        const int at = i * L::kWidth + j;
        const float d = element<L, T>(own_dy, at);
        const float n = (element<L, T>(own_x, at) - s.mean - s.left) * s.scale;
        dweight[at] = fmaf(d, n, dweight[at]);
        if constexpr (kCentered) dbias[at] += d;
        float y = s.dx(d, to_float(w.at[j]), n);
        if constexpr (kResidual) y += element<L, T>(residual, at);
        out.at[j] = from_float<T>(y);
      }
      if (L::column(i) < cols) *reinterpret_cast<P*>(dx + L::column(i)) = out;
      if constexpr (kDrops) {
        float v[L::kWidth];
#pragma unroll
        for (int j = 0; j < L::kWidth; ++j) v[j] = to_float(out.at[j]);
        dropout.apply(v, row, L::column(i));
#pragma unroll
        for (int j = 0; j < L::kWidth; ++j) out.at[j] = from_float<T>(v[j]);
        if (L::column(i) < cols) {
          *reinterpret_cast<P*>(dz + L::column(i)) = out;
          widen(out, v);
          SharedSums<L>::add(i, v);
        }
      }
    }
  }
  float* shared = reinterpret_cast<float*>(shared_memory);
  parts += blockIdx.x * sums_width<kCentered>(a);
  if constexpr (kDrops) {
    __syncthreads();  // also where they are not wanted: the memory is used again
    if (a.sums) {
      for (int c = threadIdx.x; c < width; c += G::kBlock) {
        parts[2 * width + c] = SharedSums<L>::of_column(c);
      }
      __syncthreads();
    }
  }
  const auto combine = [&](const float (&sums)[L::kElements], float* to) {
#pragma unroll
    for (int i = 0; i < L::kElements; ++i) {
      shared[group * G::kColumns + L::column(i / L::kWidth) + i % L::kWidth] = sums[i];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < width; c += G::kBlock) {
      float sum = shared[c];
      for (int g = 1; g < G::kCount; ++g) sum += shared[g * G::kColumns + c];
      to[c] = sum;
    }
    __syncthreads();
  };
  combine(dweight, parts);
  if constexpr (kCentered) combine(dbias, parts + width);
}

// It computes dz too where it reads rows as vectors, whose elements share a counter.
template <class T, class L, bool kCentered>
auto gradients_kernel(const NormBackwardArguments& a) {
  if constexpr (kCentered && L::kWidth > 1) {
    if (a.dz) return norm_gradients<T, L, true, false, true>;
  }
  return a.dresidual ? norm_gradients<T, L, kCentered, true, false>
                     : norm_gradients<T, L, kCentered, false, false>;
}

template <class T, bool kCentered>
void backward(NormBackwardArguments a, int heads, const Stream& stream) {
  const bool vectors = a.cols % Vector<T>::kSize == 0 && vectors_fit<T>(a.x, a.x_stride) &&
                       vectors_fit<T>(a.dy, a.dy_stride) && vectors_fit<T>(a.dx, a.dx_stride) &&
                       vectors_fit<T>(a.weight, 0) &&
                       vectors_fit<T>(a.dresidual, a.dresidual_stride) &&
                       vectors_fit<T>(a.dz, a.dz_stride);
  const NormBackwardArguments all = a;
  if (!vectors) {  // then dropout is a kernel of its own
    a.dz = nullptr;
    a.sums = nullptr;
  }
  const bool held = with_norm_layout<T>(a.cols, vectors, [&](auto layout) {
    using L = decltype(layout);
    using G = NormGroups<L>;
    const int64_t blocks = std::clamp<int64_t>(a.rows, 1, multiprocessors());
    const int64_t width = sums_width<kCentered>(a);
    auto* parts = static_cast<float*>(kept_memory(stream, blocks * width * sizeof(float)));
    launch(gradients_kernel<T, L, kCentered>(a), static_cast<unsigned>(blocks), G::kBlock,
           G::kSharedBytes, stream, a, heads, parts);
    add_parts({parts, blocks, width, {a.dweight, a.dbias, a.sums}, a.cols, a.accumulate}, stream);
  });
  if (!held) wide_norm_backward<T>(a, heads, kCentered, stream);
  if (!all.dz || (held && vectors)) return;
  dropout_add<T>(all.dz, all.dz_stride, all.sums, a.dx, a.dx_stride, nullptr, 0, a.rows, a.cols,
                 a.dropout, a.accumulate, stream);
}

}  // namespace

template <class T>
void layer_norm_backward(const NormBackwardArguments& a, const Stream& stream) {
  backward<T, true>(a, 1, stream);
}

template <class T>
void rms_norm_backward(const NormBackwardArguments& a, const Stream& stream) {
  backward<T, false>(a, 1, stream);
}

template <class T>
void rms_norm_heads_backward(void* dx, int64_t dx_stride, float* dweight, const void* x,
                             int64_t x_stride, const void* weight, int64_t tokens, int64_t heads,
                             int64_t head_dim, float eps, bool accumulate, const Stream& stream) {
  NormBackwardArguments a = {};
  a.dx = dx;
  a.dweight = dweight;
  a.dy = dx;
  a.x = x;
  a.weight = weight;
  a.dx_stride = a.dy_stride = dx_stride;
  a.x_stride = x_stride;
  a.rows = tokens * heads;
  a.cols = head_dim;
  a.eps = eps;
  a.accumulate = accumulate;
  backward<T, false>(a, static_cast<int>(heads), stream);
}

#define INSTANTIATE(T)                                                                          \
  template void layer_norm_backward<T>(const NormBackwardArguments&, const Stream&);            \
  template void rms_norm_backward<T>(const NormBackwardArguments&, const Stream&);              \
  template void rms_norm_heads_backward<T>(void*, int64_t, float*, const void*, int64_t,        \
                                           const void*, int64_t, int64_t, int64_t, float, bool, \
                                           const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
