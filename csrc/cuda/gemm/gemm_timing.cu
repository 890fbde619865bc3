#include <algorithm>
#include <memory>

#include "core/allocator.h"
#include "core/gemm_part.h"
#include "cuda/element.h"
#include "cuda/gemm/gemm_rounding.h"
#include "cuda/gemm/gemm_timing.h"
#include "cuda/gemm/quantize_rows.h"
#include "cuda/launch.h"
#include "cuda/runtime/relaxed_capture.h"

namespace fusewire::cuda {
namespace {

constexpr int64_t kLine = 512;          // bytes; each operand is aligned to it
constexpr int64_t kRowBytes = 1 << 20;  // of activations, written before each product
constexpr double kRunSeconds = 1e-4;    // of products in one timing
constexpr int kLeastProducts = 3, kMostProducts = 12;
constexpr int kFirstLook = 4;   // a first timing has this many times fewer products
constexpr double kFinal = 1.2;  // times the fastest: those within it are timed again, kRounds times
constexpr int kRounds = 3;
constexpr double kNoise = 1.01;  // choices within this factor of the fastest count as equal
// Products that take long and are computed for long are limited by the device's power, which is
// averaged over tens of milliseconds: the fastest at first may not be the fastest then.
constexpr uint64_t kLongNanoseconds = 100'000;
constexpr double kSustainedNanoseconds = 5e7;  // until the clock has settled, and then timed
constexpr double kSustainedFinal = 1.05;       // times the fastest: those within it run so long

template <class T>
__device__ T filled(float x) {
  return from_float<T>(x);
}
template <>
__device__ int8_t filled<int8_t>(float x) {
  return static_cast<int8_t>(254.0f * x);
}

// Fills data with uniform values in (-1/2, 1/2), or in the whole range of int8: products of zeros
// run faster than products of data.
template <class T>
__global__ void fill_kernel(T* data, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    uint32_t h = static_cast<uint32_t>(i) * 0x9E3779B9u;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    data[i] = filled<T>(static_cast<float>(h >> 8) * 0x1p-24f - 0.5f);
  }
}

// Stands for the kernel before a product in a model: a short kernel that writes the activations,
// here without changing them. The timing thus shows what a product does not fetch while that kernel
// runs, and whether it begins late after it.
__global__ void row_kernel(uint4* x, int64_t count) {
  let_next_start();
  wait_for_inputs();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) __stcg(x + i, __ldcg(x + i));
}

// Keeps the stream busy while the host queues what is timed.
__global__ void pause_kernel(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

int64_t lines(int64_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

// The operands of one product, with so many copies of the weight that none is still in the L2 cache
// when its turn comes.
template <class T>
class Operands {
 public:
  Operands(const GemmArguments& shape, const Stream& stream) : a_(shape) {
    constexpr int64_t kSize = sizeof(T);
    const int64_t operand = operand_bytes<T>(shape);
    // As aligned as the caller's, not more: an address with a smaller alignment is that many bytes
    // past the beginning of a line.
    const int x_alignment = alignment_of(shape.x.data, shape.x.stride * operand);
    const int out_alignment =
        std::min({alignment_of(shape.out, shape.out_stride * kSize),
                  shape.residual ? alignment_of(shape.residual, shape.residual_stride * kSize) : 16,
                  shape.both ? alignment_of(shape.both, shape.both_stride * kSize) : 16});
    const auto stride = [](int64_t width, int64_t unit) {
      return (width + unit - 1) / unit * unit;
    };
    const auto shift = [](int alignment) { return alignment < 16 ? alignment : 0; };
    a_.x.stride = stride(a_.k, std::max<int64_t>(1, x_alignment / operand));
    a_.weight.stride = a_.weight.transposed ? a_.n : a_.k;
    const int64_t out_unit = std::max<int64_t>(1, out_alignment / kSize);
    a_.both_stride = stride(a_.n, out_unit);
    a_.out_stride = a_.residual_stride = stride(a_.both ? a_.n / 2 : a_.n, out_unit);

    int cache_bytes = 0;
    check(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, stream.device.index),
          "cache size");
    weight_bytes_ = lines(a_.n * a_.k * operand);
    weights_ = (2 * int64_t{cache_bytes} + weight_bytes_ - 1) / weight_bytes_;
    const int64_t x_bytes = lines(a_.m * a_.x.stride * operand + kLine);
    const int64_t out_bytes = lines(a_.m * a_.out_stride * kSize + kLine);
    const int64_t both_bytes = a_.both ? lines(a_.m * a_.both_stride * kSize + kLine) : 0;
    const int64_t bias_bytes = lines(a_.n * kSize);
    const int64_t x_scales =
        kScalesBeyond + (a_.blocks ? float8_blocks(a_.k) * block_scale_stride(a_.m) : a_.m);
    const int64_t weight_scales = a_.blocks ? float8_blocks(a_.n) * float8_blocks(a_.k) : a_.n;
    const int64_t scales = shape.x.scales ? x_scales + weight_scales : 0;
    const int64_t filled = weights_ * weight_bytes_ + x_bytes + bias_bytes +
                           (a_.residual ? out_bytes : 0) + lines(scales * sizeof(float));
    memory_ = default_allocator(stream.device)
                  .allocate_uncached(static_cast<size_t>(filled + out_bytes + both_bytes), "tuning",
                                     stream);
    char* at = static_cast<char*>(memory_.get());
    fill<T>(at, filled / kSize, stream);
    if (shape.x.scales) {
      const auto fill_codes = shape.integers ? fill<int8_t> : fill<__nv_fp8_e4m3>;
      fill_codes(at, weights_ * weight_bytes_ + x_bytes, stream);
      char* last = at + filled - lines(scales * sizeof(float));
      fill<float>(last, scales, stream);
      a_.x.scales = last;
      a_.weight.scales = reinterpret_cast<float*>(last) + x_scales;
    }
    first_weight_ = at;
    at += weights_ * weight_bytes_;
    rows_ = at;
    row_bytes_ = std::min(x_bytes, kRowBytes);
    a_.x.data = at + shift(x_alignment);
    at += x_bytes;
    bias_ = at;
    if (a_.bias) a_.bias = at;
    at += bias_bytes;
    // In place stays in place: cuBLASLt has different kernels for it.
    const bool in_place = a_.residual == a_.out;
    if (a_.residual) {
      a_.residual = at + shift(out_alignment);
      if (!in_place) at += out_bytes;
    }
    a_.out = at + shift(out_alignment);
    if (a_.both) a_.both = at + out_bytes + shift(out_alignment);
    next();
  }

  template <class Element>
  static void fill(void* memory, int64_t count, const Stream& stream) {
    fill_kernel<<<1024, 256, 0, handle(stream)>>>(static_cast<Element*>(memory), count);
    check(cudaGetLastError(), "fill");
  }

  void run_rows(const Stream& stream) const {
    constexpr int kThreads = 256;
    const int64_t count = row_bytes_ / sizeof(uint4);
    launch(row_kernel, static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
           stream, reinterpret_cast<uint4*>(rows_), count);
  }

  const GemmArguments& next() {
    a_.weight.data = first_weight_ + turn_++ % weights_ * weight_bytes_;
    return a_;
  }

  const void* bias() const { return bias_; }  // also if the product has none

 private:
  GemmArguments a_;
  const void* bias_ = nullptr;
  std::shared_ptr<void> memory_;
  char* first_weight_ = nullptr;
  char* rows_ = nullptr;
  int64_t row_bytes_ = 0;
  int64_t weights_ = 1, weight_bytes_ = 0, turn_ = 0;
};

template <class T>
class Trial {
 public:
  Trial(const GemmArguments& shape, const Stream& stream)
      : operands_(shape, stream), stream_(stream) {
    const double operations = 2.0 * shape.m * shape.n * shape.k;
    const double guess = 4e-6 + operations / 4e14;  // seconds; determines how many products fit in
                                                    // a timing
    products_ = std::clamp(static_cast<int>(kRunSeconds / guess), kLeastProducts, kMostProducts);
  }

  int products() const { return products_; }

  // Loads the kernel. Returns false if it cannot compute the product.
  bool warm(const GemmChoice& choice) { return run_gemm<T>(operands_.next(), choice, stream_); }

  // Our kernels round once by design, and so does a product that adds nothing to the sum. A
  // residual that is out may be added to the rounded sum (gemm_choice.h) and is not tested.
  bool rounds_once(const GemmChoice& choice) {
    GemmArguments a = ungated(operands_.next());
    if (a.residual == a.out) a.residual = nullptr;
    const bool fused = a.activation != Activation::kNone && !choice.algorithm.activation_apart;
    if (fused && !a.bias) a.bias = operands_.bias();
    if (choice.kernel != GemmKernel::kCublaslt || !(a.bias || a.residual)) return true;
    return cuda::rounds_once<T>(a, choice, stream_);
  }

  uint64_t nanoseconds(const GemmChoice& choice, int products) {
    constexpr long long kCyclesToQueueOne = 24000;  // 12 us, as cuBLASLt needs on a slow host
    pause_kernel<<<1, 1, 0, handle(stream_)>>>((products + 1) * kCyclesToQueueOne);
    check(cudaGetLastError(), "pause");
    return timed(choice, products);
  }

  // The time of a product among many of its kind, which take `each` nanoseconds alone.
  uint64_t sustained_nanoseconds(const GemmChoice& choice, uint64_t each) {
    const int products = static_cast<int>(kSustainedNanoseconds / static_cast<double>(each)) + 1;
    run(choice, products);
    return timed(choice, products);
  }

 private:
  void run(const GemmChoice& choice, int products) {
    for (int i = 0; i < products; ++i) {
      operands_.run_rows(stream_);
      run_gemm<T>(operands_.next(), choice, stream_);
    }
  }

  uint64_t timed(const GemmChoice& choice, int products) {
    check(cudaEventRecord(begin_, handle(stream_)), "event");
    run(choice, products);
    check(cudaEventRecord(end_, handle(stream_)), "event");
    check(cudaEventSynchronize(end_), "timing");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing");
    return std::max<uint64_t>(1, static_cast<uint64_t>(milliseconds * 1e6f / products));
  }

  Operands<T> operands_;
  const Stream& stream_;
  Event begin_, end_;
  int products_;
};

using Finalists = std::vector<GemmChoice*>;

// Keeps those within the factor of the fastest.
void keep(Finalists& choices, double factor) {
  uint64_t best = ~uint64_t{0};
  for (const GemmChoice* choice : choices) best = std::min(best, choice->nanoseconds);
  const auto limit = static_cast<uint64_t>(static_cast<double>(best) * factor);
  const auto slow = [&](const GemmChoice* choice) { return choice->nanoseconds > limit; };
  choices.erase(std::remove_if(choices.begin(), choices.end(), slow), choices.end());
}

// Times those that may be fastest again and returns the fastest of all.
template <class T>
GemmChoice& fastest(Trial<T>& trial, std::vector<GemmChoice>& timed, bool full_step) {
  Finalists finalists;
  for (GemmChoice& choice : timed) finalists.push_back(&choice);
  keep(finalists, kFinal);
  // In turn: disturbances only make a timing longer.
  for (int round = 0; round < kRounds; ++round) {
    for (GemmChoice* choice : finalists) {
      const uint64_t again = trial.nanoseconds(*choice, trial.products());
      choice->nanoseconds = round == 0 ? again : std::min(choice->nanoseconds, again);
    }
  }
  keep(finalists, kSustainedFinal);
  if (full_step && finalists[0]->nanoseconds >= kLongNanoseconds) {
    for (GemmChoice* choice : finalists) {
      choice->nanoseconds = trial.sustained_nanoseconds(*choice, choice->nanoseconds);
    }
    keep(finalists, 1.0);
  }
  keep(finalists, kNoise);
  return *finalists[0];
}

}  // namespace

template <class T>
std::optional<GemmChoice> time_gemm(const GemmArguments& shape,
                                    const std::vector<GemmChoice>& candidates,
                                    const Stream& stream) {
  const RelaxedCapture relaxed;  // another thread may be capturing
  std::unique_ptr<Trial<T>> trial;
  try {
    trial = std::make_unique<Trial<T>>(shape, stream);
  } catch (const Error&) {
    return {};
  }
  std::vector<GemmChoice> timed;
  for (const GemmChoice& candidate : candidates) {
    if (trial->warm(candidate)) timed.push_back(candidate);
  }
  if (timed.empty()) return {};
  check(cudaStreamSynchronize(handle(stream)), "timing");
  const int few = std::max(1, trial->products() / kFirstLook);
  for (GemmChoice& choice : timed) {
    choice.nanoseconds = trial->nanoseconds(choice, few);
    choice.nanoseconds = std::min(choice.nanoseconds, trial->nanoseconds(choice, few));
  }
  // Steps under load are as large as max_batch_tokens, mostly a power of two. Only these are timed
  // for long, so that a model still loads in seconds.
  const bool full_step = (shape.m & (shape.m - 1)) == 0;
  while (!timed.empty()) {
    const GemmChoice& best = fastest(*trial, timed, full_step);
    if (trial->rounds_once(best)) return best;
    timed.erase(timed.begin() + (&best - timed.data()));
  }
  return {};
}

#define INSTANTIATE(T)                                                  \
  template std::optional<GemmChoice> time_gemm<T>(const GemmArguments&, \
                                                  const std::vector<GemmChoice>&, const Stream&);
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
