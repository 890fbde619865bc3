#include "core/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"

namespace fusewire {
namespace {

// Long enough to bridge the gap between two ops of a layer, short enough not to burn an idle core.
constexpr int kSpins = 4000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int usable_cores() {
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return std::min(cores, kMaxThreads);
}

// The worker index of this thread while it runs a loop, -1 otherwise.
thread_local int current_worker = -1;

class Pool {
 public:
  explicit Pool(int threads) {
    for (int worker = 1; worker < threads; ++worker) {
      workers_.emplace_back([this, worker] { work(worker); });
    }
  }

  ~Pool() {
    stopping_ = true;
    publish(/*open=*/0);
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void run(int64_t n, int64_t grain, detail::Chunk chunk, void* body) {
    n_ = n;
    grain_ = grain;
    chunk_ = chunk;
    body_ = body;
    error_ = nullptr;
    next_.store(0, std::memory_order_relaxed);
    publish(kOpen);
    take_chunks(0);
    // Close the loop and wait for the workers that joined it. A worker that wakes up later finds it
    // closed, so the caller never waits for a thread that the system has not scheduled yet.
    state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    while (state_.load(std::memory_order_acquire) & kJoined) pause();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  // state_: loop number | open flag | number of workers inside.
  static constexpr uint64_t kJoined = 0xFFFF;
  static constexpr uint64_t kOpen = 0x10000;
  static constexpr uint64_t kLoop = 0x20000;

  static uint64_t loop_of(uint64_t state) { return state / kLoop; }

  void publish(uint64_t open) {
    {
      std::lock_guard<std::mutex> lock(sleep_mutex_);
      const uint64_t loop = loop_of(state_.load(std::memory_order_relaxed)) + 1;
      state_.store(loop * kLoop | open, std::memory_order_release);
    }
    if (sleepers_.load(std::memory_order_acquire) > 0) wake_.notify_all();
  }

  void take_chunks(int worker) {
    current_worker = worker;
    try {
      for (;;) {
        const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
        if (begin >= n_) break;
        chunk_(body_, begin, std::min(begin + grain_, n_), worker);
      }
    } catch (...) {
      std::lock_guard<std::mutex> lock(sleep_mutex_);
      error_ = std::current_exception();
    }
    current_worker = -1;
  }

  uint64_t wait_for_loop_after(uint64_t seen) {
    for (int spins = 0; spins < kSpins; ++spins) {
      const uint64_t state = state_.load(std::memory_order_acquire);
      if (loop_of(state) != seen) return state;
      pause();
    }
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    sleepers_.fetch_add(1, std::memory_order_release);
    wake_.wait(lock, [&] { return loop_of(state_.load(std::memory_order_acquire)) != seen; });
    sleepers_.fetch_sub(1, std::memory_order_release);
    return state_.load(std::memory_order_acquire);
  }

  void work(int worker) {
    uint64_t seen = 0;
    for (;;) {
      uint64_t state = wait_for_loop_after(seen);
      seen = loop_of(state);
      if (stopping_) return;
      bool joined = false;
      while ((state & kOpen) && loop_of(state) == seen && !joined) {
        joined = state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel);
      }
      if (!joined) continue;
      take_chunks(worker);
      state_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  std::vector<std::thread> workers_;
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  int64_t n_ = 0, grain_ = 1;
  detail::Chunk chunk_ = nullptr;
  void* body_ = nullptr;
  std::exception_ptr error_;
};

std::mutex& pool_mutex() {
  static std::mutex mutex;
  return mutex;
}

// Leaked on purpose: joining threads during static destruction is a classic hang at exit.
std::unique_ptr<Pool>& pool() {
  static auto* instance = new std::unique_ptr<Pool>(std::make_unique<Pool>(usable_cores()));
  return *instance;
}

}  // namespace

int num_threads() {
  return pool()->threads();
}

void set_num_threads(int threads) {
  if (threads < 0 || threads > kMaxThreads) {
    fail("threads: got ", threads, ", wanted 1 to ", kMaxThreads, " or 0 for every core");
  }
  if (threads == 0) threads = usable_cores();
  std::lock_guard<std::mutex> lock(pool_mutex());
  if (threads != pool()->threads()) {
    pool().reset();
    pool() = std::make_unique<Pool>(threads);
  }
}

namespace detail {

void run_parallel(int64_t n, int64_t grain, Chunk chunk, void* body) {
  grain = std::max<int64_t>(grain, 1);
  if (n <= grain || current_worker >= 0) {
    const int worker = std::max(current_worker, 0);
    for (int64_t begin = 0; begin < n; begin += grain) {
      chunk(body, begin, std::min(begin + grain, n), worker);
    }
    return;
  }
  std::lock_guard<std::mutex> lock(pool_mutex());
  pool()->run(n, grain, chunk, body);
}

}  // namespace detail
}  // namespace fusewire
