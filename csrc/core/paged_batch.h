// The new tokens of sequences with a paged KV cache: the current length of each sequence and its
// row of the page table.
//
// The cache of one layer is two tensors, keys and values [pages, kv_heads, page_size, head_dim].
// Position p of a sequence is in page block_table[sequence, p / page_size], row p % page_size.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/sequence_batch.h"

namespace fusewire {

class PagedBatch {
 public:
  // `batch` packs the new tokens. context_lengths int32[sequences], on the host: the positions of
  // each sequence that the cache holds once the new ones are stored, so that new token i of n is at
  // position context - n + i. It is less than n only where nothing is stored: in cross-attention,
  // whose queries are not among its keys. block_table int32[sequences, width], on the host; entries
  // beyond a sequence's context are not read. page_size is a power of two. The device tensors are
  // copies in the memory of the device whose kernels read them; if they are left out, the kernels
  // run on the host.
  PagedBatch(SequenceBatch batch, Tensor context_lengths, Tensor block_table, int64_t page_size,
             Tensor device_context_lengths = {}, Tensor device_block_table = {})
      : batch_(std::move(batch)),
        contexts_(std::move(context_lengths)),
        table_(std::move(block_table)),
        device_contexts_(std::move(device_context_lengths)),
        device_table_(std::move(device_block_table)),
        page_size_(page_size) {
    if (!batch_.begin()) fail("PagedBatch: got a bucket, wanted a batch; use PagedBatch.bucket");
    expect("context_lengths", contexts_, 1, Device{});
    expect("block_table", table_, 2, Device{});
    expect_page_size();
    for (int64_t i = 0; i < sequences(); ++i) check_sequence(i);
    if (!device_contexts_.data) device_contexts_ = contexts_;
    if (!device_table_.data) device_table_ = table_;
    expect_copies();
  }

  // Returns a batch for capture and replay (a CUDA graph), from the batch of a bucket. Context
  // lengths and page tables are read from the device at every replay, without checks; max_context
  // is an upper bound. A sequence without new tokens is idle: its context and its pages are not
  // read.
  static PagedBatch bucket(SequenceBatch batch, Tensor device_context_lengths,
                           Tensor device_block_table, int64_t page_size, int64_t max_context) {
    return {std::move(batch), std::move(device_context_lengths), std::move(device_block_table),
            page_size, max_context};
  }

  // Returns the first `count` sequences of a batch.
  PagedBatch first(int64_t count) const {
    PagedBatch some = *this;
    some.batch_ = batch_.section(0, count);
    for (Tensor* each :
         {&some.contexts_, &some.table_, &some.device_contexts_, &some.device_table_}) {
      *each = each->first(count);
    }
    some.max_context_ = *std::max_element(context_lengths(), context_lengths() + count);
    return some;
  }

  const SequenceBatch& batch() const { return batch_; }
  int64_t tokens() const { return batch_.tokens(); }
  int64_t sequences() const { return batch_.sequences(); }
  int64_t page_size() const { return page_size_; }
  int64_t table_width() const { return device_table_.shape[1]; }  // entries per row
  int64_t max_context() const { return max_context_; }
  int64_t pages_needed() const { return pages_needed_; }  // 1 + the largest page in use; 0: bucket
  // Returns the most new tokens that a sequence has beyond its context, at least 0; not known of a
  // bucket.
  int64_t excess() const { return excess_; }

  const int32_t* context_lengths() const { return contexts_.as<int32_t>(); }  // null for a bucket
  const int32_t* block_table() const { return table_.as<int32_t>(); }         // null for a bucket
  const int32_t* device_context_lengths() const { return device_contexts_.as<int32_t>(); }
  const int32_t* device_block_table() const { return device_table_.as<int32_t>(); }

 private:
  PagedBatch(SequenceBatch bucket, Tensor device_contexts, Tensor device_table, int64_t page_size,
             int64_t max_context)
      : batch_(std::move(bucket)),
        device_contexts_(std::move(device_contexts)),
        device_table_(std::move(device_table)),
        page_size_(page_size),
        max_context_(max_context) {
    if (batch_.begin()) fail("PagedBatch.bucket: got a batch, wanted SequenceBatch.bucket");
    if (batch_.device().type == DeviceType::kCpu) {
      fail("PagedBatch.bucket: got one on the cpu, where nothing is recorded; use PagedBatch");
    }
    expect("device_context_lengths", device_contexts_, 1, batch_.device());
    expect("device_block_table", device_table_, 2, batch_.device());
    expect_page_size();
    const int64_t room = table_width() * page_size_;
    if (max_context_ < 1 || max_context_ > room) {
      fail("PagedBatch.bucket: max_context: got ", max_context_, ", wanted 1 to ", room,
           ", the table's pages");
    }
  }

  void expect(const char* name, const Tensor& tensor, int rank, Device device) const {
    const bool fits = tensor.dtype == DType::kInt32 && tensor.shape.rank() == rank &&
                      tensor.shape[0] == sequences() && (rank == 1 || tensor.shape[1] > 0) &&
                      tensor.device == device && tensor.contiguous();
    if (!fits) {
      fail("PagedBatch: ", name, ": got ", name_of(tensor.dtype), tensor.shape.text(), " on ",
           tensor.device.text(), ", wanted int32[", sequences(), rank == 1 ? "" : ", pages",
           "], dense, on ", device.text());
    }
  }

  void expect_page_size() const {
    if (page_size_ < 1 || (page_size_ & (page_size_ - 1)) != 0) {
      fail("PagedBatch: page_size: got ", page_size_, ", wanted a power of two");
    }
  }

  void expect_copies() const {
    expect("device_context_lengths", device_contexts_, 1, batch_.device());
    expect("device_block_table", device_table_, 2, batch_.device());
    if (device_table_.shape != table_.shape) {
      fail("PagedBatch: device_block_table: got ", device_table_.shape.text(), ", wanted ",
           table_.shape.text(), ", a copy of block_table");
    }
  }

  void check_sequence(int64_t i) {
    const int64_t added = batch_.begin()[i + 1] - batch_.begin()[i];
    const int64_t context = context_lengths()[i], room = table_.shape[1] * page_size_;
    if (context < 1 || context > room) {
      fail("PagedBatch: context_lengths[", i, "]: got ", context, ", wanted 1 to ", room,
           ", the positions of the table's pages");
    }
    excess_ = std::max(excess_, added - context);
    const int32_t* pages = block_table() + i * table_.shape[1];
    for (int64_t p = 0; p * page_size_ < context; ++p) {
      if (pages[p] < 0) {
        fail("PagedBatch: block_table[", i, ", ", p, "]: got ", pages[p], ", wanted a page");
      }
      pages_needed_ = std::max(pages_needed_, int64_t{pages[p]} + 1);
    }
    max_context_ = std::max(max_context_, context);
  }

  SequenceBatch batch_;
  Tensor contexts_, table_, device_contexts_, device_table_;
  int64_t page_size_ = 0, max_context_ = 0, pages_needed_ = 0, excess_ = 0;
};

}  // namespace fusewire
