// The binding of the allocator, the plan and the workspace.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/allocator.h"
#include "core/workspace.h"
#include "python/buffer.h"
#include "python/device.h"
#include "python/register.h"

namespace py = pybind11;

namespace fusewire {
namespace {

// Scratch as seen by a Python forward. `scratch` is null once its pass of the forward is over, so
// that a Python object that lives on cannot reach into a later one.
struct PythonPass {
  Scratch* scratch;
  py::object workspace;  // outlives every tensor of the pass

  Scratch& get() const {
    if (!scratch) fail("scratch: got a use after its run, wanted one inside forward; run again");
    return *scratch;
  }
};

struct PythonScratchTensor {
  std::shared_ptr<PythonPass> pass;
  std::unique_ptr<ScratchTensor> tensor;

  void release() {
    if (pass->scratch) tensor->release();
  }
  uintptr_t address() const {
    pass->get();
    return reinterpret_cast<uintptr_t>((*tensor)->data);
  }
};

// `stream`, or the device's default one.
Stream stream_on(const CachingAllocator& allocator, const Stream* stream) {
  return stream ? *stream : Stream{allocator.device()};
}

py::dict stats_of(const CachingAllocator& allocator) {
  AllocatorStats stats = allocator.stats();
  py::dict holders;
  for (const HolderStats& holder : allocator.holders()) {
    holders[py::str(holder.tag)] = py::make_tuple(holder.bytes, holder.blocks);
  }
  using py::operator""_a;
  return py::dict(
      "allocated_bytes"_a = stats.allocated_bytes, "reserved_bytes"_a = stats.reserved_bytes,
      "peak_allocated_bytes"_a = stats.peak_allocated_bytes,
      "peak_reserved_bytes"_a = stats.peak_reserved_bytes, "cap_bytes"_a = stats.cap_bytes,
      "live_blocks"_a = stats.live_blocks, "segments"_a = stats.segments,
      "raw_allocations"_a = stats.raw_allocations, "raw_releases"_a = stats.raw_releases,
      "cache_hits"_a = stats.cache_hits, "splits"_a = stats.splits, "merges"_a = stats.merges,
      "segments_adopted"_a = stats.segments_adopted, "blocks_lent"_a = stats.blocks_lent,
      "stream_waits"_a = stats.stream_waits, "waiting_blocks"_a = stats.waiting_blocks,
      "waiting_bytes"_a = stats.waiting_bytes, "holders"_a = holders);
}

py::dict stats_of(const Workspace& workspace) {
  WorkspaceStats stats = workspace.stats();
  using py::operator""_a;
  return py::dict("arena_bytes"_a = stats.arena_bytes, "peak_bytes"_a = stats.peak_bytes,
                  "lower_bound_bytes"_a = stats.lower_bound_bytes,
                  "worst_ratio"_a = stats.worst_ratio, "runs"_a = stats.runs,
                  "plans"_a = stats.plans, "plans_recorded"_a = stats.plans_recorded,
                  "growths"_a = stats.growths, "shrinks"_a = stats.shrinks);
}

using LifetimeTuple = std::tuple<size_t, int64_t, int64_t>;

py::list programs_of(const Workspace& workspace) {
  std::vector<std::pair<WorkspaceKey, WorkspaceProgram>> programs;
  {
    py::gil_scoped_release release;
    programs = workspace.programs();
  }
  py::list result;
  for (const auto& [key, program] : programs) {
    std::vector<LifetimeTuple> records;
    for (const Lifetime& life : program.lifetimes) {
      records.emplace_back(life.bytes, life.first_use, life.last_use);
    }
    using py::operator""_a;
    result.append(py::dict(
        "key"_a = py::make_tuple(reinterpret_cast<uintptr_t>(key.layer), key.a, key.b, key.c),
        "records"_a = records, "offsets"_a = program.plan.offsets,
        "peak_bytes"_a = program.plan.peak, "lower_bound_bytes"_a = program.plan.lower_bound));
  }
  return result;
}

void run_python(Workspace& workspace, std::tuple<uintptr_t, int64_t, int64_t, int64_t> key,
                const py::function& forward) {
  auto [layer, a, b, c] = key;
  // Another thread may hold the workspace and wait for the interpreter.
  py::gil_scoped_release release;
  workspace.run({reinterpret_cast<const void*>(layer), a, b, c}, Stream{},
                [&](Scratch& scratch, const Stream&) {
                  py::gil_scoped_acquire acquire;
                  auto pass =
                      std::make_shared<PythonPass>(PythonPass{&scratch, py::cast(&workspace)});
                  struct End {
                    PythonPass& pass;
                    ~End() { pass.scratch = nullptr; }
                  } end{*pass};
                  forward(pass);
                });
}

void register_allocator(py::module_& m) {
  py::class_<Buffer>(m, "Buffer", "A block of memory; free() or the end of the object frees it.")
      .def_property_readonly("data", &Buffer::data, "Address.")
      .def_readonly("nbytes", &Buffer::bytes)
      .def("free", [](Buffer& self) { self.block.reset(); });

  py::class_<CachingAllocator>(m, "CachingAllocator",
                               "Memory of one device: cached, capped, counted, tagged by purpose.")
      .def(py::init([](const std::string& device, size_t cap_bytes) {
             return std::make_unique<CachingAllocator>(raw_memory(device_named(device)), cap_bytes);
           }),
           py::arg("device") = "cpu", py::arg("cap_bytes") = 0)
      .def(
          "allocate",
          [](CachingAllocator& self, size_t bytes, const std::string& tag, const Stream* stream) {
            py::gil_scoped_release release;
            return Buffer{self.allocate(bytes, tag, stream_on(self, stream)), bytes};
          },
          py::arg("bytes"), py::arg("tag") = "", py::arg("stream") = py::none(),
          "Raises Error naming the largest holders when the cap or the device allows no more.")
      .def(
          "allocate_uncached",
          [](CachingAllocator& self, size_t bytes, const std::string& tag, const Stream* stream) {
            py::gil_scoped_release release;
            return Buffer{self.allocate_uncached(bytes, tag, stream_on(self, stream)), bytes};
          },
          py::arg("bytes"), py::arg("tag") = "", py::arg("stream") = py::none(),
          "A segment of its own, never cached.")
      .def(
          "used_by",
          [](CachingAllocator& self, const Buffer& buffer, const Stream& stream) {
            self.used_by(buffer.block, stream);
          },
          py::arg("buffer"), py::arg("stream"),
          "The buffer is reused only when the stream's work until then is finished.")
      .def("trim", &CachingAllocator::trim, "Returns what is free to the device; bytes.")
      .def("free_bytes", &CachingAllocator::free_bytes,
           "What the device could still give, to anybody; what is cached here is not counted.")
      .def("set_cap", &CachingAllocator::set_cap, py::arg("bytes"), "Of reserved bytes; 0: none.")
      .def("reset_peaks", &CachingAllocator::reset_peaks)
      .def(
          "stats", [](const CachingAllocator& self) { return stats_of(self); },
          "Bytes, counts, and holders: tag -> (bytes, blocks).");

  m.def(
      "default_allocator",
      [](const std::string& device) -> CachingAllocator& {
        return default_allocator(device_named(device));
      },
      py::arg("device") = "cpu", py::return_value_policy::reference,
      "The process's allocator of a device.");
}

void register_workspace(py::module_& m) {
  m.def(
      "plan_workspace",
      [](const std::vector<LifetimeTuple>& records) {
        std::vector<Lifetime> lifetimes;
        for (auto [bytes, first, last] : records) lifetimes.push_back({bytes, first, last});
        WorkspacePlan plan = plan_workspace(lifetimes);
        return std::make_tuple(plan.offsets, plan.peak, plan.lower_bound);
      },
      py::arg("records"),
      "(bytes, first_use, last_use) each, last inclusive -> (offsets, peak, lower_bound), greedy "
      "by "
      "size (arXiv 2001.03288).");

  py::class_<PythonPass, std::shared_ptr<PythonPass>>(m, "Scratch")
      .def_property_readonly("recording",
                             [](const PythonPass& self) { return self.get().recording(); })
      .def(
          "tensor",
          [](const std::shared_ptr<PythonPass>& self, const std::vector<int64_t>& dims,
             const std::string& dtype) {
            Shape shape;
            for (int64_t dim : dims) shape.push_back(dim);
            auto tensor = self->get().tensor(shape, dtype_named(dtype));
            return PythonScratchTensor{self, std::make_unique<ScratchTensor>(std::move(tensor))};
          },
          py::arg("shape"), py::arg("dtype") = "float32");

  py::class_<PythonScratchTensor>(m, "ScratchTensor")
      .def_property_readonly("address", &PythonScratchTensor::address, "0 in a dry run.")
      .def_property_readonly(
          "nbytes", [](const PythonScratchTensor& self) { return (*self.tensor)->bytes(); })
      .def("release", &PythonScratchTensor::release);

  py::class_<Workspace>(m, "Workspace",
                        "Temporaries in one arena, placed by the lifetimes of a dry run; one a "
                        "stream, runs are serial.")
      .def(py::init([](CachingAllocator* allocator, int shrink_after, size_t max_plans) {
             return std::make_unique<Workspace>(allocator ? *allocator : default_allocator(),
                                                shrink_after, max_plans);
           }),
           py::arg("allocator") = nullptr, py::kw_only(), py::arg("shrink_after") = 1024,
           py::arg("max_plans") = 8192, py::keep_alive<1, 2>())
      .def("run", &run_python, py::arg("key"), py::arg("forward"),
           "Calls forward(scratch): twice for a new key (four integers), first dry; else once.")
      .def("programs", &programs_of, "The cached plans: key, records, offsets, peak, lower bound.")
      .def_property_readonly("generation", &Workspace::generation,
                             "Changes whenever the arena moves.")
      .def("stats", [](const Workspace& self) { return stats_of(self); });
}

}  // namespace

void register_memory(py::module_& m) {
  register_allocator(m);
  register_workspace(m);
}

}  // namespace fusewire
