// Workspace: the temporaries of a computation in one arena, without a list of them written by hand.
//
// The first run of a key is a dry run: `forward` gets a recording stream, on which ops launch
// nothing, and the workspace records which scratch tensors it creates and releases. Their offsets
// are planned from these lifetimes (core/workspace_plan.h) and cached. Then, and in every later run
// of that key, the same calls return memory of the arena and allocate nothing.
//
//   workspace.run({&kKind, tokens, hidden}, stream, [&](Scratch& scratch, const Stream& stream) {
//     ScratchTensor qkv = scratch.tensor({tokens, 3 * hidden}, DType::kFloat32);
//     linear(*qkv, x, qkv_, stream);
//     ...
// from here its memory may be reused
//   });
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "core/workspace_plan.h"

namespace fusewire {

// What decides which tensors `forward` creates: whose forward it is, and the sizes it depends on.
struct WorkspaceKey {
  // The address of an object that outlives the workspace, such as a static variable of a kind of
  // layer; with the specification in the numbers, equal layers share their plans. Not the layer
  // itself: a later one at the same address would find the plans of the old one.
  const void* layer = nullptr;
  int64_t a = 0;
  int64_t b = 0;
  int64_t c = 0;

  bool operator==(const WorkspaceKey& other) const {
    return layer == other.layer && a == other.a && b == other.b && c == other.c;
  }
};

// What a dry run recorded, and the plan made from it.
struct WorkspaceProgram {
  std::vector<Lifetime> lifetimes;  // in order of creation
  std::vector<int32_t> events;      // i: tensor i is created, ~i: it is released
  WorkspacePlan plan;
};

class Scratch;

// A tensor in the arena, from its creation until `release` or destruction, and never beyond the
// run. `data` is null in a dry run.
class ScratchTensor {
 public:
  ScratchTensor(ScratchTensor&& other) noexcept { *this = std::move(other); }
  ScratchTensor& operator=(ScratchTensor&& other) noexcept;
  ~ScratchTensor() { release(); }

  void release() noexcept;
  const Tensor& operator*() const { return tensor_; }
  const Tensor* operator->() const { return &tensor_; }
  operator const Tensor&() const { return tensor_; }

 private:
  friend class Scratch;
  ScratchTensor(Scratch* scratch, uint64_t run, int32_t index, Tensor tensor)
      : scratch_(scratch), run_(run), index_(index), tensor_(std::move(tensor)) {}

  Scratch* scratch_ = nullptr;  // null once released
  uint64_t run_ = 0;
  int32_t index_ = 0;
  Tensor tensor_;
};

class Scratch {
 public:
  // Returns a tensor of the arena. Error if this run creates or releases other tensors, or in
  // another order, than the dry run did.
  ScratchTensor tensor(const Shape& shape, DType dtype = DType::kFloat32);
  bool recording() const { return !planned_; }

  // For the owner of the memory: a Workspace, or a tape (train/tape.h).
  void begin_recording(Device device);
  void begin(const WorkspaceProgram* planned, char* arena, Device device);
  void finish() const;      // Error if the run was not the planned one or left a tensor behind
  void close() { ++run_; }  // invalidates handles that outlive the run
  WorkspaceProgram take_recorded();

 private:
  friend class ScratchTensor;

  void release(int32_t index, uint64_t run) noexcept;
  [[noreturn]] void fail_diverged(const std::string& what) const;

  const WorkspaceProgram* planned_ = nullptr;  // null: recording
  WorkspaceProgram recorded_;
  char* arena_ = nullptr;
  Device device_;
  uint64_t run_ = 0;  // handles of other runs are invalid
  size_t event_ = 0;  // index of the next event of this run
  int32_t created_ = 0;
  int32_t open_ = 0;
  bool diverged_ = false;  // a release did not match the dry run
};

struct WorkspaceStats {
  size_t arena_bytes = 0;
  size_t peak_bytes = 0;  // of the largest plan so far, and its liveness lower bound
  size_t lower_bound_bytes = 0;
  double worst_ratio = 1;  // the largest ratio of peak to lower bound of all plans so far
  uint64_t runs = 0;
  uint64_t plans = 0;  // cached now
  uint64_t plans_recorded = 0;
  uint64_t growths = 0;  // attempts; one that finds no memory leaves no arena
  uint64_t shrinks = 0;
};

// One arena. Runs are serial (concurrent callers wait), so concurrent work needs a workspace each.
// All runs are in the order of one stream: another stream needs another workspace.
class Workspace {
 public:
  // The arena shrinks after `shrink_after` runs that never used half of it. `max_plans` plans are
  // cached; the least recently used is evicted. The allocator must live longer.
  explicit Workspace(CachingAllocator& allocator, int shrink_after = 1024, size_t max_plans = 8192);

  // Calls forward(Scratch&, const Stream&): twice for a new key (first dry), else once. If `stream`
  // is recording, only the dry run of a new key is called. Error for a run inside a run, or on
  // another stream than before.
  template <class Forward>
  void run(const WorkspaceKey& key, const Stream& stream, Forward&& forward) {
    Turn turn(*this, stream);
    const WorkspaceProgram* program = find(key);
    if (!program) {
      Stream dry = stream;
      dry.recording = true;
      scratch_.begin_recording(allocator_.device());
      forward(scratch_, static_cast<const Stream&>(dry));
      scratch_.finish();
      program = remember(key, scratch_.take_recorded());
    }
    if (stream.recording) return;
    fit(program->plan.peak);
    scratch_.begin(program, static_cast<char*>(arena_.get()), allocator_.device());
    forward(scratch_, stream);
    scratch_.finish();
  }

  // Changes whenever the arena is reallocated: addresses of an earlier run are then invalid.
  uint64_t generation() const;
  WorkspaceStats stats() const;  // as of the end of the last run; never waits for a run
  // Returns the cached plans, for inspection; most recently used first.
  std::vector<std::pair<WorkspaceKey, WorkspaceProgram>> programs() const;

 private:
  struct KeyHash {
    size_t operator()(const WorkspaceKey& key) const;
  };
  using Entry = std::pair<WorkspaceKey, WorkspaceProgram>;

  // Holds the workspace's lock for the length of a run.
  class Turn {
   public:
    Turn(Workspace& workspace, const Stream& stream);
    ~Turn();

   private:
    Workspace& workspace_;
    std::unique_lock<std::mutex> lock_;
  };

  std::unique_lock<std::mutex> wait_for_turn() const;
  const WorkspaceProgram* find(const WorkspaceKey& key);
  const WorkspaceProgram* remember(const WorkspaceKey& key, WorkspaceProgram program);
  void fit(size_t bytes);
  void grow(size_t bytes);
  void resize(size_t bytes);

  CachingAllocator& allocator_;
  const int shrink_after_;
  const size_t max_plans_;
  mutable std::mutex mutex_;
  std::atomic<std::thread::id> runner_{};
  Stream stream_;
  Scratch scratch_;
  std::list<Entry> programs_;  // most recently used first
  std::unordered_map<WorkspaceKey, std::list<Entry>::iterator, KeyHash> by_key_;
  std::shared_ptr<void> arena_;
  size_t high_water_ = 0;  // largest need in the current window of runs
  int window_runs_ = 0;
  WorkspaceStats stats_;
  mutable std::mutex published_mutex_;
  WorkspaceStats published_;
};

}  // namespace fusewire
