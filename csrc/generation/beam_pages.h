// The page tables of one request's beams: which pages of the KV cache hold their keys and values.
//
// Beams share the pages of their common prefixes, in a tree of pages with reference counts; each
// beam writes to a page of its own. When beams fork, the first child of a parent continues in its
// parent's page and the other children copy that page to pages of beams that ended, both in
// ascending order. So at most `beams` pages are written in a span of page_size positions, and a
// step copies (children - parents with children) pages. No page is both read and written by the
// copies of a step. While as many beams run on, the pages that a step writes are known without the
// parents, so a device can fork beams itself (ops.def, fork_beams) before fork() is called here.
#pragma once

#include <cstdint>
#include <vector>

namespace fusewire {

struct PageCopy {
  int32_t from, to;
};

class BeamPages {
 public:
  // `tables`: for each running beam (before the first fork one, the prompt) the pages of its
  // `length` stored positions. The last page of each table, if it is not full, belongs to that beam
  // alone and will be written; the others are only read, and other beams may share them.
  BeamPages(int64_t beams, int64_t page_size, const std::vector<std::vector<int32_t>>& tables,
            int64_t length);

  int64_t running() const { return static_cast<int64_t>(ends_.size()); }
  int64_t length() const { return length_; }
  int64_t page_size() const { return page_size_; }
  // Returns the number of pages in each table.
  int64_t width() const { return (length_ + page_size_ - 1) / page_size_; }

  // Returns the number of pages that must be given before the next fork.
  int64_t wanted() const;
  // Takes wanted() pages.
  void give(const int32_t* fresh);
  // Returns the page that child i will write to, if the next fork begins a span and all wanted()
  // pages were given; otherwise -1.
  int32_t page_of_child(int64_t i) const;
  // Makes beam i a child of beam parents[i], with room for one more position. All wanted() pages
  // must have been given. Appends the copies that must be made before that position is stored, and
  // the pages that no beam needs any more.
  void fork(const int32_t* parents, int64_t count, std::vector<PageCopy>& copies,
            std::vector<int32_t>& released);

  // Writes the width() pages of a beam's table.
  void table(int64_t beam, int32_t* to) const;
  // Returns all pages that were given and not released, each once.
  std::vector<int32_t> pages() const;

 private:
  struct Node {
    int32_t page, parent;  // parent: the node of the page before, kNone at the beginning
    int32_t uses;          // beams that end here, and child nodes; 0: the node is free
    bool own;              // may be written again when it is free
  };

  int32_t add_node(int32_t page, int32_t parent, bool own);
  void drop(int32_t node, std::vector<int32_t>& released);
  int32_t drop_end(int32_t end, std::vector<int32_t>& released);
  int32_t spare_page();

  int64_t beams_, page_size_, length_;
  std::vector<Node> nodes_;
  std::vector<int32_t> unused_;  // free nodes
  std::vector<int32_t> ends_;    // the last node of each running beam
  std::vector<int32_t> spare_;   // free pages of its own
  // Scratch of fork(): the next ends, the pages of beams without children, and which beams have
  // children.
  std::vector<int32_t> next_, dead_;
  std::vector<char> has_child_;
};

}  // namespace fusewire
