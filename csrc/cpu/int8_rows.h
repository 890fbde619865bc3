// Rows of x, quantised to 8 bits once per product and laid out as its tiles read them.
#pragma once

#include "core/thread_buffer.h"
#include "cpu/gemm_tasks.h"
#include "cpu/int8_scale.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

typedef uint32_t UnsignedVec __attribute__((vector_size(FUSEWIRE_VEC_BYTES), may_alias));

// How a micro-kernel reads the four elements of a group: as bytes in order, or as two pairs of 16
// bits, the even ones first.
struct Bytes {
  using Number = int8_t;
  template <int... kLane>
  FUSEWIRE_INLINE static IntVec ordered(IntVec v, std::integer_sequence<int, kLane...>) {
    return v;
  }
};
struct Pairs {
  using Number = int16_t;
  template <int... kLane>
  FUSEWIRE_INLINE static IntVec ordered(IntVec v, std::integer_sequence<int, kLane...>) {
    constexpr int kFrom[] = {0, 2, 1, 3};
    return __builtin_shufflevector(v, v, (kLane / 4 * 4 + kFrom[kLane % 4])...);
  }
};

// The rows in blocks as tiles read them, each [k / 4][rows of the block][4], zeros beyond k.
template <class Order>
struct QuantizedRows {
  using Number = typename Order::Number;

  int64_t k;
  Number* numbers;
  float* scales;     // [m]: 0 for a row of zeros, NaN for a row with an infinity or a NaN
  uint32_t* starts;  // [m]: initial value of a row's sums (cpu/gemm_int8.h)
  float* more;       // [m, more_a_row]: what else a product needs of its rows

  // Returns the block that begins with this row.
  const Number* block(int64_t row) const { return numbers + row * groups_of(k) * kGroup; }
};

// Returns the elements of a row at these indices.
FUSEWIRE_INLINE Vec load_at(const float* x, const int32_t* places) {
  Vec v;
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) v[lane] = x[places[lane]];
  return v;
}

// Quantises one row of a block of `rows` rows: groups are rows * kGroup elements apart. With
// `order`, element i is x[order[i]], and k must be a multiple of kLanes.
template <class Order>
FUSEWIRE_INLINE void quantize_row(typename Order::Number* to, int64_t rows, float* scale,
                                  uint32_t* start, const float* x, int64_t k,
                                  const int32_t* order) {
  using Number = typename Order::Number;
  typedef Number Numbers __attribute__((vector_size(kLanes * sizeof(Number))));
  const int64_t whole = k / kLanes * kLanes;
  const Vec last = load_first(x + whole, k - whole, 0.0f);
  IntVec largest = magnitude_bits(last);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const IntVec bits = magnitude_bits(load(x + i));
    largest = bits > largest ? bits : largest;
  }
  int32_t largest_bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (largest[lane] > largest_bits) largest_bits = largest[lane];
  }
  float magnitude;
  __builtin_memcpy(&magnitude, &largest_bits, sizeof(magnitude));
  *scale = scale_of(largest_bits);
  const Vec inverse = broadcast(*scale > 0.0f ? kLargestInt8 / magnitude : 0.0f);

  // Adding kRoundToInteger leaves the integer in the low bits; their byte is its two's complement.
  UnsignedVec sum = {};
  const auto write = [&](Vec v, int64_t i, int64_t present) {
    const Vec shifted = v * inverse + kRoundToInteger;
    const Vec zero = broadcast(kRoundToInteger);
    const IntVec integers =
        reinterpret_cast<const IntVec&>(shifted) - reinterpret_cast<const IntVec&>(zero);
    sum += reinterpret_cast<const UnsignedVec&>(integers);
    const Numbers numbers = __builtin_convertvector(
        Order::ordered(integers, std::make_integer_sequence<int, kLanes>{}), Numbers);
    Number* group = to + i * rows;
    for (int64_t lane = 0; lane < present; lane += kGroup) {
      __builtin_memcpy(group + lane * rows, reinterpret_cast<const Number*>(&numbers) + lane,
                       kGroup * sizeof(Number));
    }
  };
  if (order) {
    for (int64_t i = 0; i < whole; i += kLanes) write(load_at(x, order + i), i, kLanes);
  } else {
    for (int64_t i = 0; i < whole; i += kLanes) write(load(x + i), i, kLanes);
  }
  if (whole < k) write(last, whole, k - whole);
  uint32_t total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  *start = 0u - 128u * total;
}

// Quantises x into scratch memory of the calling thread, for tiles of at most kMost rows.
template <class Order, int kMost>
QuantizedRows<Order> quantized(const GemmArguments& a, int64_t more_a_row = 0) {
  using Number = typename Order::Number;
  const size_t m = static_cast<size_t>(a.m);
  const size_t bytes = m * static_cast<size_t>(groups_of(a.k) * kGroup) * sizeof(Number);
  QuantizedRows<Order> to;
  to.k = a.k;
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(1 + more_a_row) + sizeof(uint32_t);
  to.numbers = static_cast<Number*>(thread_buffer(bytes + m * row_bytes));
  to.scales = reinterpret_cast<float*>(reinterpret_cast<char*>(to.numbers) + bytes);
  to.starts = reinterpret_cast<uint32_t*>(to.scales + m);
  to.more = reinterpret_cast<float*>(to.starts + m);
  parallel_for(row_tasks_of(a.m), 1, [&](int64_t task, int64_t, int) {
    const RowTask rows = row_task(a.m, task);
    for_row_blocks<kMost>(rows.last - rows.first, [&](auto count, int64_t from) {
      constexpr int64_t kRows = decltype(count)::value;
      const int64_t first = rows.first + from;
      Number* block = to.numbers + first * groups_of(a.k) * kGroup;
      for (int64_t r = 0; r < kRows; ++r) {
        const float* x = static_cast<const float*>(a.x.data) + (first + r) * a.x.stride;
        quantize_row<Order>(block + r * kGroup, kRows, to.scales + first + r, to.starts + first + r,
                            x, a.k, a.weight.order);
      }
    });
  });
  return to;
}

}  // namespace
}  // namespace fusewire::FUSEWIRE_TARGET
