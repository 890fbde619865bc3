// Binds the page tables of beams. Each call serves many requests, with arrays in and out.
#include "generation/beam_pages.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "python/register.h"
#include "python/request_arrays.h"

namespace fusewire {
namespace {

namespace py = pybind11;
using namespace py::literals;

// Throws Error unless request i has the rows offsets[i] to offsets[i + 1] of `rows`; rows -1: any
// number.
void expect_offsets(const char* call, const Array<int32_t>& offsets, size_t requests,
                    py::ssize_t rows) {
  bool fits = offsets.ndim() == 1 && offsets.shape(0) == static_cast<py::ssize_t>(requests) + 1 &&
              offsets.at(0) == 0 && (rows < 0 || offsets.at(offsets.shape(0) - 1) == rows);
  for (py::ssize_t i = 0; fits && i + 1 < offsets.shape(0); ++i) {
    fits = offsets.at(i) <= offsets.at(i + 1);
  }
  if (!fits) {
    fail(call, ": offsets: got ", std::string(py::str(offsets)),
         ", wanted ascending ones from 0 for ", requests,
         " requests and as many rows as there are parents");
  }
}

py::array_t<int64_t> wanted_pages(const std::vector<BeamPages*>& pages,
                                  const Array<int32_t>& offsets) {
  expect_all("wanted_pages", pages);
  expect_offsets("wanted_pages", offsets, pages.size(), -1);
  std::vector<int64_t> wanted;
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto at = static_cast<py::ssize_t>(i);
    wanted.push_back(offsets.at(at) < offsets.at(at + 1) ? pages[i]->wanted() : 0);
  }
  return array_of(wanted);
}

// The copies that the rows of the next step need, and the pages that no row reads any more.
struct Forks {
  py::array_t<int64_t> sources, destinations;
  int64_t positions;
  py::array_t<int32_t> released, released_offsets;
};

py::array_t<int32_t> give_pages(const std::vector<BeamPages*>& pages, const Array<int32_t>& offsets,
                                const Array<int32_t>& fresh) {
  expect_offsets("give_pages", offsets, pages.size(), -1);
  const auto each = wanted_pages(pages, offsets).cast<std::vector<int64_t>>();
  const int64_t wanted = std::accumulate(each.begin(), each.end(), int64_t{0});
  if (fresh.ndim() != 1 || fresh.size() != wanted) {
    fail("give_pages: fresh: got ", fresh.size(), " pages, wanted ", wanted,
         ", as wanted_pages says");
  }
  const int32_t* next = fresh.data();
  std::vector<int32_t> of_children;
  for (size_t i = 0; i < pages.size(); ++i) {
    const int32_t children = offsets.data()[i + 1] - offsets.data()[i];
    if (children > 0) pages[i]->give(next);
    next += each[i];
    for (int32_t child = 0; child < children; ++child) {
      of_children.push_back(pages[i]->page_of_child(child));
    }
  }
  return array_of(of_children);
}

Forks fork_pages(const std::vector<BeamPages*>& pages, const Array<int32_t>& offsets,
                 const Array<int32_t>& parents) {
  expect_all("fork_pages", pages);
  expect_offsets("fork_pages", offsets, pages.size(), parents.size());
  std::vector<PageCopy> copies;
  std::vector<int32_t> released, released_offsets{0};
  int64_t positions = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    const int32_t begin = offsets.data()[i], end = offsets.data()[i + 1];
    positions = std::max(positions, pages[i]->length() % pages[i]->page_size());
    if (begin < end) pages[i]->fork(parents.data() + begin, end - begin, copies, released);
    released_offsets.push_back(static_cast<int32_t>(released.size()));
  }
  std::vector<int64_t> from, to;
  for (const PageCopy& copy : copies) {
    from.push_back(copy.from);
    to.push_back(copy.to);
  }
  return {array_of(from), array_of(to), positions, array_of(released), array_of(released_offsets)};
}

py::array_t<int32_t> beam_tables(const std::vector<BeamPages*>& pages,
                                 const Array<int32_t>& offsets) {
  expect_all("beam_tables", pages);
  expect_offsets("beam_tables", offsets, pages.size(), -1);
  int64_t width = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    const int32_t beams = offsets.data()[i + 1] - offsets.data()[i];
    if (beams > pages[i]->running()) {
      fail("beam_tables: offsets: got ", beams, " rows of request ", i, ", wanted at most ",
           pages[i]->running(), ", its beams");
    }
    if (beams > 0) width = std::max(width, pages[i]->width());
  }
  const py::ssize_t rows = offsets.data()[pages.size()];
  py::array_t<int32_t> table(std::vector<py::ssize_t>{rows, static_cast<py::ssize_t>(width)});
  std::memset(table.mutable_data(), 0, static_cast<size_t>(table.nbytes()));
  for (size_t i = 0; i < pages.size(); ++i) {
    for (int32_t row = offsets.data()[i]; row < offsets.data()[i + 1]; ++row) {
      pages[i]->table(row - offsets.data()[i], table.mutable_data() + row * width);
    }
  }
  return table;
}

}  // namespace

void register_beam_pages(py::module_& m) {
  py::class_<BeamPages>(
      m, "BeamPages",
      "The page tables of one request's beams: which pages hold their keys and values. Beams share "
      "the pages of their common prefixes, and each writes to a page of its own.")
      .def(py::init([](int64_t beams, int64_t page_size,
                       const std::vector<std::vector<int32_t>>& tables,
                       int64_t length) { return BeamPages(beams, page_size, tables, length); }),
           py::kw_only(), "beams"_a, "page_size"_a, "tables"_a, "length"_a,
           "tables: the pages of each beam's `length` stored positions; before the first fork one "
           "table, the prompt's. A last page that is not full belongs to its beam alone and will "
           "be written; the others are only read, and other beams may share them.")
      .def_property_readonly("length", &BeamPages::length,
                             "Number of positions, including those that the next step stores.")
      .def_property_readonly(
          "pages", [](const BeamPages& p) { return array_of(p.pages()); },
          "int32[n]: all pages that it was given and has not released.");
  m.def("wanted_pages", &wanted_pages, "pages"_a, "offsets"_a,
        "Returns int64[requests]: the number of pages that each request needs before its fork. "
        "offsets as in BeamStep; a request without rows needs none.");
  m.def("give_pages", &give_pages, "pages"_a, "offsets"_a, "fresh"_a,
        "Gives the wanted pages, before fork_pages. fresh int32: the pages of all requests in "
        "turn. Returns int32[rows]: the page that each row will write to if its request begins a "
        "page with the fork, whichever its parent will be, otherwise -1.");
  py::class_<Forks>(m, "BeamForks", "The copies that a fork needs, and the pages that it releases.")
      .def_readonly("sources", &Forks::sources,
                    "int64[copies]: pages to copy before the step, none of which is a destination.")
      .def_readonly("destinations", &Forks::destinations)
      .def_readonly("positions", &Forks::positions,
                    "The most positions that are stored in any page that is copied.")
      .def_readonly("released", &Forks::released, "int32[n]: pages to free.")
      .def_readonly("released_offsets", &Forks::released_offsets,
                    "int32[requests + 1]: request i releases released_offsets[i] to "
                    "released_offsets[i + 1].");
  m.def("fork_pages", &fork_pages, "pages"_a, "offsets"_a, "parents"_a,
        "Makes every row continue its parent, with room for one more position. All wanted pages "
        "must have been given. offsets and parents as in BeamStep.");
  m.def("beam_tables", &beam_tables, "pages"_a, "offsets"_a,
        "Returns int32[rows, width]: the page table of each row after a fork, 0 beyond a request's "
        "pages. offsets as for that fork.");
}

}  // namespace fusewire
