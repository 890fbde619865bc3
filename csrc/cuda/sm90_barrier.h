// Synchronisation of Hopper's asynchronous units: shared-memory barriers that count arrivals and
// bytes (PTX ISA, "mbarrier"), named barriers, thread-block clusters and register reallocation.
//
// A pipeline of stages uses two barriers per stage. `full` completes when TMA has written the
// expected bytes, `empty` when all readers have arrived. The phases of a barrier alternate in
// parity and begin with 0. barrier_wait(b, p) returns once the phase of parity p has completed, so
// waiting for parity 1 on a fresh barrier returns at once.
#pragma once

#include <cstdint>

namespace fusewire::cuda::sm90 {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

// Makes initialised barriers visible to TMA and to the cluster. The thread that initialised them
// calls it after the last barrier_init() and before the __syncthreads() (or cluster_wait()) that
// makes them visible to other threads.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives once and adds `bytes`, to be written by TMA, to what the current phase waits for.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Returns the address of the copy of a shared variable in block `rank` of the cluster.
__device__ __forceinline__ uint32_t cluster_address(const void* pointer, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(pointer)), "r"(rank));
  return address;
}

// Arrives at the same barrier in block `rank` of the cluster, which may be this one. The arrival
// releases no writes to that block and need not: it frees memory that wgmma and TMA have already
// read. A release at cluster scope would cost a fence of all device memory.
__device__ __forceinline__ void barrier_arrive_at(uint64_t* barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(barrier, rank))
               : "memory");
}

__device__ __forceinline__ bool barrier_try_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

// Orders this thread's generic accesses to shared memory before later accesses by TMA and wgmma.
// Every writing thread calls it; after a barrier among them, the asynchronous instruction may be
// issued.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A barrier among `threads` threads (whole warps) of the block. Ids are 1 to 15; 0 is
// __syncthreads().
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// A barrier of all threads of the cluster in two steps. It synchronises execution alone, which is
// cheaper than making writes visible, and suffices to know that the blocks have started (and
// executed their barrier_init_fence()) or have finished reading.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Returns true in one thread of the warp. All threads of the warp must call it.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Reduces or raises the number of registers of a thread; all threads of a warpgroup call it.
// kRegisters is a multiple of 8 from 24 to 240, and the sum over the block must not exceed what it
// was launched with. The kernel needs __launch_bounds__(n, 1).
template <int kRegisters>
__device__ __forceinline__ void registers_shrink_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_grow_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace fusewire::cuda::sm90
