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
      "Which pages hold the keys and values of one request's beams: shared where they have the "
      "same past, and a page of its own for each to write to.")
      .def(py::init([](int64_t beams, int64_t page_size,
                       const std::vector<std::vector<int32_t>>& tables,
                       int64_t length) { return BeamPages(beams, page_size, tables, length); }),
           py::kw_only(), "beams"_a, "page_size"_a, "tables"_a, "length"_a,
           "tables: the pages of each beam's `length` stored positions; one table, the prompt's, "
           "before the first fork. A last page that is not full is its beam's alone and will be "
           "written; the others are only read, and may belong to others too.")
      .def_property_readonly("length", &BeamPages::length,
                             "Positions, with those that the coming step stores.")
      .def_property_readonly(
          "pages", [](const BeamPages& p) { return array_of(p.pages()); },
          "int32[n]: all that it was given and has not released.");
  m.def(
      "wanted_pages", &wanted_pages, "pages"_a, "offsets"_a,
      "int64[requests]: pages to give to each before its fork; offsets as BeamStep's, and none for "
      "a request without rows.");
  m.def(
      "give_pages", &give_pages, "pages"_a, "offsets"_a, "fresh"_a,
      "Before fork_pages: fresh int32, the wanted pages of all requests, one after the other. "
      "int32[rows]: the page that each row will write to where its request's page begins with the "
      "fork, whoever its parent will be, else -1.");
  py::class_<Forks>(m, "BeamForks", "What a fork leaves to do.")
      .def_readonly("sources", &Forks::sources,
                    "int64[copies]: pages to copy before the step, none of which is a destination.")
      .def_readonly("destinations", &Forks::destinations)
      .def_readonly("positions", &Forks::positions,
                    "Of each page that is copied no more than so many are stored.")
      .def_readonly("released", &Forks::released, "int32[n]: pages to free.")
      .def_readonly("released_offsets", &Forks::released_offsets,
                    "int32[requests + 1]: of request i from released_offsets[i] to "
                    "released_offsets[i + 1].");
  m.def("fork_pages", &fork_pages, "pages"_a, "offsets"_a, "parents"_a,
        "Gives every row the past of its parent and room for one more position, all wanted pages "
        "being given. offsets and parents as BeamStep's.");
  m.def("beam_tables", &beam_tables, "pages"_a, "offsets"_a,
        "int32[rows, width]: where the rows read and write behind a fork, 0 beyond a request's "
        "pages. offsets as for that fork.");
}

}  // namespace fusewire
