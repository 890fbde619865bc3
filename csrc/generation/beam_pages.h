// Which pages of the cache hold the keys and values of one request's beams.
//
// Beams share the pages of what they have in common, as a tree of pages with counted uses; each
// writes to a page of its own. When beams fork, the first child of a parent goes on in its page and
// the others copy it to pages of beams that died, in the order of both: no more than `beams` pages
// are written in a span of page_size positions, and a step copies (children - parents with
// children) of them. No page is both read and written by the copies of a step. Where as many beams
// run on, no parents are needed to know which pages a step writes, so a device can fork them by
// itself (ops.def, fork_beams) before this is told.
#pragma once

#include <cstdint>
#include <vector>

namespace fusewire {

struct PageCopy {
  int32_t from, to;
};

class BeamPages {
 public:
  // `tables`: of each running beam (one, the prompt, before the first fork) the pages of its
  // `length` stored positions. The last page of each, where it is not full, is that beam's alone
  // and will be written; the others are only read, and may belong to others too.
  BeamPages(int64_t beams, int64_t page_size, const std::vector<std::vector<int32_t>>& tables,
            int64_t length);

  int64_t running() const { return static_cast<int64_t>(ends_.size()); }
  int64_t length() const { return length_; }
  int64_t page_size() const { return page_size_; }
  // Pages of every table.
  int64_t width() const { return (length_ + page_size_ - 1) / page_size_; }

  // Pages to give before the next fork.
  int64_t wanted() const;
  // Takes wanted() pages.
  void give(const int32_t* fresh);
  // Where a span begins with the next fork, the page of child i, all wanted() being given; else -1.
  int32_t page_of_child(int64_t i) const;
  // Beam i becomes a child of beam parents[i] and has room for one more position; all wanted() are
  // given. Appends copies to make before that position is stored, and pages that no beam needs any
  // more.
  void fork(const int32_t* parents, int64_t count, std::vector<PageCopy>& copies,
            std::vector<int32_t>& released);

  // Writes width() pages.
  void table(int64_t beam, int32_t* to) const;
  // All pages it was given and has not released, each once.
  std::vector<int32_t> pages() const;

 private:
  struct Node {
    int32_t page, parent;  // the page before, kNone at the beginning
    int32_t uses;          // by beams that end here, and nodes behind; 0: not in use
    bool own;              // may be written again when nobody uses it
  };

  int32_t add_node(int32_t page, int32_t parent, bool own);
  void drop(int32_t node, std::vector<int32_t>& released);
  int32_t drop_end(int32_t end, std::vector<int32_t>& released);
  int32_t spare_page();

  int64_t beams_, page_size_, length_;
  std::vector<Node> nodes_;
  std::vector<int32_t> unused_;  // nodes
  std::vector<int32_t> ends_;    // the last node of each running beam
  std::vector<int32_t> spare_;   // pages of its own that nobody uses
  // For the fork that is being made: the next ends, pages of beams without children, who has some.
  std::vector<int32_t> next_, dead_;
  std::vector<char> has_child_;
};

}  // namespace fusewire
