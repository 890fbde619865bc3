#include "generation/beam_pages.h"

#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "core/error.h"

namespace fusewire {
namespace {

constexpr int32_t kNone = -1;

size_t at(int64_t index) {
  return static_cast<size_t>(index);
}

}  // namespace

BeamPages::BeamPages(int64_t beams, int64_t page_size,
                     const std::vector<std::vector<int32_t>>& tables, int64_t length)
    : beams_(beams), page_size_(page_size), length_(length) {
  if (beams < 1 || page_size < 1 || length < 0) {
    fail("BeamPages: got ", beams, " beams, pages of ", page_size, " and length ", length,
         ", wanted 1 or more, 1 or more and 0 or more");
  }
  const auto running = static_cast<int64_t>(tables.size());
  if (running < 1 || running > beams) {
    fail("BeamPages: tables: got ", running, ", wanted 1 to ", beams, ", one for each beam");
  }
  const bool partial = length % page_size != 0;
  std::map<std::pair<int32_t, int32_t>, int32_t> known;  // (parent, page) -> node
  std::set<int32_t> written;
  for (const std::vector<int32_t>& table : tables) {
    if (static_cast<int64_t>(table.size()) != width()) {
      fail("BeamPages: tables: got one of ", table.size(), " pages for ", length,
           " positions, wanted ", width());
    }
    int32_t end = kNone;
    for (size_t i = 0; i < table.size(); ++i) {
      const bool own = partial && i + 1 == table.size();
      if (own && !written.insert(table[i]).second) {
        fail("BeamPages: tables: got page ", table[i],
             " at the end of two, wanted one that is "
             "partly filled to belong to one beam; copy it");
      }
      const auto place = std::make_pair(end, table[i]);
      const auto found = known.find(place);
      if (found != known.end()) {
        end = found->second;
      } else {
        end = known[place] = add_node(table[i], end, own);
        if (place.first != kNone) ++nodes_[at(place.first)].uses;
      }
    }
    if (end != kNone) ++nodes_[at(end)].uses;
    ends_.push_back(end);
  }
}

int64_t BeamPages::wanted() const {
  const int64_t written = length_ % page_size_ ? running() : 0;
  const int64_t missing = beams_ - written - static_cast<int64_t>(spare_.size());
  return missing > 0 ? missing : 0;
}

void BeamPages::give(const int32_t* fresh) {
  for (int64_t left = wanted(); left > 0; --left) spare_.push_back(*fresh++);
}

int32_t BeamPages::page_of_child(int64_t i) const {
  if (length_ % page_size_) return kNone;
  if (i < 0 || i >= static_cast<int64_t>(spare_.size())) {
    fail("BeamPages: page_of_child: got ", i, ", wanted 0 to ", spare_.size(),
         " less one; give the wanted pages first");
  }
  return spare_[spare_.size() - 1 - at(i)];
}

void BeamPages::fork(const int32_t* parents, int64_t count, std::vector<PageCopy>& copies,
                     std::vector<int32_t>& released) {
  if (count < 1 || count > beams_) {
    fail("BeamPages: fork: got ", count, " children, wanted 1 to ", beams_);
  }
  next_.clear();
  dead_.clear();
  has_child_.assign(ends_.size(), 0);
  for (int64_t i = 0; i < count; ++i) {
    if (parents[i] < 0 || parents[i] >= running()) {
      fail("BeamPages: fork: parents[", i, "]: got ", parents[i], ", wanted 0 to ", running() - 1);
    }
    has_child_[at(parents[i])] = 1;
  }
  if (length_ % page_size_ == 0) {
    for (int64_t i = 0; i < count; ++i) {
      const int32_t end = ends_[at(parents[i])];
      next_.push_back(add_node(spare_page(), end, true));
      ++nodes_[at(next_.back())].uses;
      if (end != kNone) ++nodes_[at(end)].uses;
    }
    // A parent does not end any more where its children begin.
    for (const int32_t end : ends_) drop(end, released);
  } else {
    for (size_t beam = 0; beam < ends_.size(); ++beam) {
      if (!has_child_[beam]) dead_.push_back(drop_end(ends_[beam], released));
    }
    size_t taken = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t end = ends_[at(parents[i])];
      if (has_child_[at(parents[i])]) {
        has_child_[at(parents[i])] = 0;  // the first child continues in the same page
        next_.push_back(end);
        continue;
      }
      const Node copied = nodes_[at(end)];
      const int32_t page = taken < dead_.size() ? dead_[taken++] : spare_page();
      next_.push_back(add_node(page, copied.parent, true));
      ++nodes_[at(next_.back())].uses;
      if (copied.parent != kNone) ++nodes_[at(copied.parent)].uses;
      copies.push_back({copied.page, page});
    }
    for (; taken < dead_.size(); ++taken) spare_.push_back(dead_[taken]);
  }
  ends_.swap(next_);
  ++length_;
  // A span needs at most `beams` pages.
  for (; static_cast<int64_t>(spare_.size()) > beams_; spare_.pop_back()) {
    released.push_back(spare_.back());
  }
}

void BeamPages::table(int64_t beam, int32_t* to) const {
  int32_t node = ends_[at(beam)];
  for (int64_t i = width() - 1; i >= 0; --i) {
    to[i] = nodes_[at(node)].page;
    node = nodes_[at(node)].parent;
  }
}

std::vector<int32_t> BeamPages::pages() const {
  std::set<int32_t> all(spare_.begin(), spare_.end());
  for (const Node& node : nodes_) {
    if (node.uses > 0) all.insert(node.page);
  }
  return {all.begin(), all.end()};
}

int32_t BeamPages::add_node(int32_t page, int32_t parent, bool own) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<int32_t>(nodes_.size()));
    nodes_.emplace_back();
  }
  const int32_t node = unused_.back();
  unused_.pop_back();
  nodes_[at(node)] = {page, parent, 0, own};
  return node;
}

void BeamPages::drop(int32_t node, std::vector<int32_t>& released) {
  while (node != kNone && --nodes_[at(node)].uses == 0) {
    (nodes_[at(node)].own ? spare_ : released).push_back(nodes_[at(node)].page);
    unused_.push_back(node);
    node = nodes_[at(node)].parent;
  }
}

// Drops an end whose page is being written, and returns that page, which is then free.
int32_t BeamPages::drop_end(int32_t end, std::vector<int32_t>& released) {
  const auto first = static_cast<std::ptrdiff_t>(spare_.size());
  drop(end, released);
  const int32_t page = spare_[static_cast<size_t>(first)];
  spare_.erase(spare_.begin() + first);
  return page;
}

int32_t BeamPages::spare_page() {
  if (spare_.empty()) fail("BeamPages: got no page to write to; this is an error in fusewire");
  const int32_t page = spare_.back();
  spare_.pop_back();
  return page;
}

}  // namespace fusewire
