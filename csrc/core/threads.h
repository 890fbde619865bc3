// One thread pool for the process: workers share a loop in chunks taken from a counter.
//
// Loops do not nest (an inner loop runs in the thread that calls it) and do not oversubscribe (a
// second caller waits for the first). Workers spin for some microseconds after a loop, because the
// next op of a layer follows at once, and then sleep.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fusewire {

int num_threads();                  // including the caller
void set_num_threads(int threads);  // 0: every core this process may use
constexpr int kMaxThreads = 256;

namespace detail {
using Chunk = void (*)(void* body, int64_t begin, int64_t end, int worker);
void run_parallel(int64_t n, int64_t grain, Chunk chunk, void* body);
}  // namespace detail

// Calls body(begin, end, worker) on disjoint ranges that cover [0, n). Each begins at a multiple of
// `grain` and is at most `grain` long. `worker` < num_threads() identifies the thread, for scratch
// of its own.
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
