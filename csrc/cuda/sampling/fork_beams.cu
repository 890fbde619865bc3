// Computes the next rows of groups of beams (ops.def, fork_beams) without the host. One block
// computes a group. The ranks of candidates, children and dead beams are prefix sums over the
// block, so that a few passes suffice for all of them.
#include "cuda/element.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMostBeams = 512;

struct Beams {
  int parent[kMostBeams];       // the parent of each child
  int first_child[kMostBeams];  // the first child of each parent
  int dead[kMostBeams];         // beams without children, in order
  int warps[kWarps];
};

// Returns how many threads before this one pass true, and sets `total` to how many of all do.
__device__ int rank_among(bool yes, int* warps, int& total) {
  const unsigned mask = __ballot_sync(~0u, yes);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // `warps` may still be read for the last call
  if (lane == 0) warps[warp] = __popc(mask);
  __syncthreads();
  int before = 0;
  total = 0;
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before += warps[i];
    total += warps[i];
  }
  return before + __popc(mask & ((1u << lane) - 1));
}

__device__ bool ends_text(const ForkArguments& a, int token) {
  for (int i = 0; i < a.most_ends; ++i) {
    if (a.ends[blockIdx.x * a.most_ends + i] == token) return true;
  }
  return false;
}

__global__ void __launch_bounds__(kThreads) fork_kernel(ForkArguments a) {
  // No let_next_start(): the next kernels copy pages and read tables.
  __shared__ Beams shared;
  wait_for_inputs();
  if (blockIdx.x == gridDim.x - 1) {
    // Rows that belong to no group copy nothing. Those of a group are written by its block.
    for (int64_t row = threadIdx.x; row < a.rows; row += kThreads) {
      bool own = false;
      for (int64_t g = 0; g < a.group_count; ++g) {
        const int begin = a.groups[g].children;
        own |= row >= begin && row < begin + a.groups[g].beams;
      }
      if (!own) a.copy_from[row] = a.copy_to[row] = -1;
    }
    return;
  }
  const ForkedGroup group = a.groups[blockIdx.x];
  const int beams = group.beams, child = threadIdx.x;
  const bool fits = beams >= 1 && beams <= kMostBeams && group.candidates >= 0 &&
                    group.candidates < a.searches && group.parents >= 0 &&
                    group.parents + beams <= a.parent_rows && group.children >= 0 &&
                    group.children + beams <= a.rows && group.place >= 0 && group.place < a.width;
  if (!fits) return;  // the CPU kernel raises an error

  // Candidates whose token does not end the text become children, in order.
  int children = 0;
  for (int64_t first = 0; first < a.most && children < beams; first += kThreads) {
    const int64_t i = first + threadIdx.x, at = group.candidates * a.most + i;
    const int parent = i < a.most ? a.beams[at] : -1;
    const bool goes_on = parent >= 0 && parent < beams && !ends_text(a, a.tokens[at]);
    int found;
    const int rank = children + rank_among(goes_on, shared.warps, found);
    if (goes_on && rank < beams) {
      shared.parent[rank] = parent;
      a.ids[group.children + rank] = a.tokens[at];
      a.beam_scores[group.children + rank] = a.scores[at];
    }
    children += found;
  }
  if (child >= children && child < beams) {
    shared.parent[child] = child;
    a.ids[group.children + child] = 0;
    a.beam_scores[group.children + child] = -INFINITY;
  }
  if (child < beams) shared.first_child[child] = kMostBeams;
  __syncthreads();
  if (child < beams) atomicMin(&shared.first_child[shared.parent[child]], child);
  __syncthreads();
  int count;
  const bool dead = child < beams && shared.first_child[child] == kMostBeams;
  const int rank_of_dead = rank_among(dead, shared.warps, count);
  if (dead) shared.dead[rank_of_dead] = child;
  const bool later = child < beams && shared.first_child[shared.parent[child]] != child;
  const int rank_of_later = rank_among(later, shared.warps, count);
  __syncthreads();

  const int32_t* const table = a.parent_table + int64_t{group.parents} * a.width;
  const int64_t row = group.children + child;
  if (child < beams) {
    const int32_t from = table[shared.parent[child] * a.width + group.place];
    const bool copies = later && a.fresh[row] < 0;
    const int32_t to = copies ? table[shared.dead[rank_of_later] * a.width + group.place]
                              : (a.fresh[row] >= 0 ? a.fresh[row] : from);
    a.block_table[row * a.width + group.place] = to;
    a.copy_from[row] = copies ? from : -1;
    a.copy_to[row] = copies ? to : -1;
  }
  for (int64_t i = threadIdx.x; i < beams * a.width; i += kThreads) {
    const int64_t of = i / a.width, place = i % a.width;
    if (place == group.place) continue;
    a.block_table[(group.children + of) * a.width + place] =
        table[shared.parent[of] * a.width + place];
  }
}

}  // namespace

template <class T>
void fork_beams(const ForkArguments& a, const Stream& stream) {
  launch(fork_kernel, dim3(static_cast<unsigned>(a.group_count + 1)), kThreads, 0, stream, a);
}

#define INSTANTIATE(T) template void fork_beams<T>(const ForkArguments&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)

}  // namespace fusewire::cuda
