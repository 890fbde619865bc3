// One thread pool for the process: workers share a loop in chunks taken from a counter.
//
// It does not nest (a loop inside a loop runs in its own thread) and does not oversubscribe (a
// second caller waits for the first). Workers spin for some microseconds after a loop, because the
// next op of a layer follows at once, and then sleep.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fusewire {

int num_threads();                  // the caller included
void set_num_threads(int threads);  // 0 means every core this process may use
constexpr int kMaxThreads = 256;

namespace detail {
using Chunk = void (*)(void* body, int64_t begin, int64_t end, int worker);
void run_parallel(int64_t n, int64_t grain, Chunk chunk, void* body);
}  // namespace detail

// Calls body(begin, end, worker) on disjoint ranges that cover [0, n), each at most `grain` long
// (aligned to it); worker < num_threads() names the thread, for scratch of its own.
template <class Body>
void parallel_for(int64_t n, int64_t grain, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  detail::run_parallel(
      n, grain,
      [](void* erased, int64_t begin, int64_t end, int worker) {
        (*static_cast<Plain*>(erased))(begin, end, worker);
      },
      const_cast<std::remove_const_t<Plain>*>(&body));
}

}  // namespace fusewire
