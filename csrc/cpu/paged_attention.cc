// Attention of new tokens over the pages of their sequences. A few queries are computed in parts of
// the context (cpu/paged_few.h); those of a prompt, and of beams that read one source, in blocks
// (cpu/paged_block.h). Both add in the same order (cpu/paged_order.h), so the result depends
// neither on the batch nor on how a prompt was chunked.
#include <cstring>
#include <new>

#include "core/kernels.h"
#include "core/thread_buffer.h"
#include "core/threads.h"
#include "cpu/paged_block.h"
#include "cpu/paged_few.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

constexpr int64_t kFewRows = 8;  // with more, blocks of kColumns queries are faster

// A sequence, or several adjacent ones that read the same keys.
struct Task {
  CachedSequence cached;
  int64_t first, last;  // keys that any of its queries attends to, from first_key on
  bool few;
  int64_t rows, pieces;  // per kv head: queries, and parts or blocks
  int64_t begin;         // index of its first unit
  float* parts;          // its partial results, if it has more than one part
};

int64_t padded(int64_t dim) {
  return (dim + kLanes - 1) / kLanes * kLanes;
}

// Writes q of a block's queries, row by row and scaled, with zeros up to `stride`.
void read_queries(const AttentionArguments& a, const Task& task, int64_t kv_head, int64_t first_row,
                  int64_t rows, int64_t stride, float* to) {
  const int64_t group = a.heads / a.kv_heads;
  const float scale = query_scale(a);
  for (int64_t i = 0; i < rows; ++i, to += stride) {
    const int64_t row = first_row + i, token = task.cached.first_token + row / group;
    const float* from = static_cast<const float*>(a.q.data) + token * a.q.stride +
                        (kv_head * group + row % group) * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; ++d) to[d] = from[d] * scale;
    for (int64_t d = a.head_dim; d < stride; ++d) to[d] = 0.0f;
  }
}

float* output_row(const AttentionArguments& a, const Task& task, int64_t kv_head, int64_t row) {
  const int64_t group = a.heads / a.kv_heads;
  return static_cast<float*>(a.out) + (task.cached.first_token + row / group) * a.out_stride +
         (kv_head * group + row % group) * a.head_dim;
}

// Returns null if log_sum_exp is not computed.
float* log_sum_exp_at(const AttentionArguments& a, const Task& task, int64_t kv_head, int64_t row) {
  if (!a.log_sum_exp) return nullptr;
  const int64_t group = a.heads / a.kv_heads;
  return a.log_sum_exp + (kv_head * group + row % group) * a.log_sum_exp_stride +
         task.cached.first_token + row / group;
}

void join_queries(const AttentionArguments& a, const Task& task, int64_t kv_head,
                  const float* parts) {
  const int64_t width = padded(a.head_dim), stride = partial_stride(width);
  for (int64_t row = 0; row < task.rows; ++row) {
    join_parts(parts + row * stride, task.pieces, task.rows * stride, width, a.head_dim,
               output_row(a, task, kv_head, row), log_sum_exp_at(a, task, kv_head, row));
  }
}

__attribute__((noinline)) void attend_few(const AttentionArguments& a, const Task& task,
                                          int64_t kv_head, int64_t piece) {
  const int64_t width = padded(a.head_dim), floats = task.rows * partial_stride(width);
  float* query = static_cast<float*>(__builtin_alloca_with_align(
      static_cast<size_t>(task.rows * width + floats) * sizeof(float), 512));
  read_queries(a, task, kv_head, 0, task.rows, width, query);
  const FewQueries queries = {kv_head, a.heads / a.kv_heads, task.rows, query, width};
  const int64_t split = task.first / kSplitKeys + piece;
  const int64_t first = piece == 0 ? task.first : split * kSplitKeys;
  const int64_t last = lesser(task.last, (split + 1) * kSplitKeys);
  float* partial = task.pieces == 1 ? query + task.rows * width
                                    : task.parts + (kv_head * task.pieces + piece) * floats;
  attend_part(a, task.cached, queries, first, last, partial);
  if (task.pieces == 1) join_queries(a, task, kv_head, partial);
}

__attribute__((noinline)) void attend_block(const AttentionArguments& a, const Task& task,
                                            int64_t kv_head, int64_t block) {
  const int64_t dim = a.head_dim, group = a.heads / a.kv_heads;
  const int64_t first_row = block * kColumns;
  const int64_t rows = lesser(task.rows - first_row, kColumns);
  const CachedSequence& cached = task.cached;
  const int64_t wide = dim * kColumns;
  float* query = static_cast<float*>(__builtin_alloca_with_align(
      static_cast<size_t>(3 * wide + kPagedTile * (kColumns + 2 * dim)) * sizeof(float), 512));
  float* out = query + wide;
  float* part_out = out + wide;
  float* scores = part_out + wide;
  float* keys = scores + kPagedTile * kColumns;
  float* values = keys + kPagedTile * dim;

  read_queries(a, task, kv_head, first_row, rows, dim, out);  // as rows, then transposed
  for (int64_t i = 0; i < kColumns; i += kLanes) {
    for (int64_t d = 0; d < dim; d += kLanes) {
      transpose_block(query + d * kColumns + i, kColumns, out + i * dim + d, dim, rows - i, dim - d,
                      [](Vec v) { return v; });
    }
  }
  Vec position[2];
  int64_t head[kColumns];
  for (int64_t i = 0; i < kColumns; ++i) {  // columns beyond the last row repeat it
    const int64_t row = first_row + lesser(i, rows - 1);
    position[i / kLanes][i % kLanes] =
        static_cast<float>(cached.context - cached.added + row / group);
    head[i] = kv_head * group + row % group;
  }
  const int64_t nearest = cached.context - cached.added + first_row / group;
  const int64_t furthest = cached.context - cached.added + (first_row + rows - 1) / group;
  const int64_t last_key = lesser(cached.context, furthest + a.mask.right + 1);

  const auto read_tile = [&](int64_t tile, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t at = cached.row(kv_head, tile + j);
      const size_t bytes = static_cast<size_t>(dim) * sizeof(float);
      std::memcpy(keys + j * dim, static_cast<const float*>(a.key_cache) + at, bytes);
      std::memcpy(values + j * dim, static_cast<const float*>(a.value_cache) + at, bytes);
    }
  };
  PartSums sums = {out};
  for (int64_t d = 0; d < wide; ++d) out[d] = 0.0f;
  int64_t tile = first_key(a, nearest);
  while (tile < last_key) {
    const int64_t part_end = piece_end(tile, kSplitKeys, last_key);
    PartSums part = {part_out};
    for (int64_t d = 0; d < wide; ++d) part_out[d] = 0.0f;
    while (tile < part_end) {
      const int64_t count = piece_end(tile, kPagedTile, part_end) - tile;
      read_tile(tile, count);
      score_by_lane(keys, query, count, dim, scores);
      for (int64_t j = 0; j < count; ++j) {
        for (int half = 0; half < 2; ++half) {
          float* s = scores + j * kColumns + half * kLanes;
          const Vec distance = static_cast<float>(tile + j) - position[half];
          store(s, adjusted(a, load(s), distance, [&](int i) { return head[half * kLanes + i]; }));
        }
      }
      part.add(scores, values, count, dim);
      tile += count;
    }
    sums.join(part, dim);
  }

  float* rows_of_out = part_out;
  for (int64_t i = 0; i < rows; i += kLanes) {
    const Vec inverse = 1.0f / sums.total[i / kLanes];
    for (int64_t d = 0; d < dim; d += kLanes) {
      write_block(rows_of_out + i * dim + d, dim, out + d * kColumns + i, inverse, rows - i,
                  dim - d);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(output_row(a, task, kv_head, first_row + i), rows_of_out + i * dim,
                static_cast<size_t>(dim) * sizeof(float));
    float* const log_sum_exp = log_sum_exp_at(a, task, kv_head, first_row + i);
    if (!log_sum_exp) continue;
    const int64_t half = i / kLanes, lane = i % kLanes;
    *log_sum_exp = log_sum_exp_of(sums.highest[half][lane], sums.total[half][lane]);
  }
}

// Returns the end of the sequences that read the same keys as `first`, if every query attends to
// all of them: the beams of a request and its source (cross-attention), which is read once for all.
int64_t end_of_shared(const AttentionArguments& a, int64_t first) {
  int64_t end = first + 1;
  if (!a.mask.full() || a.bias) return end;
  const PagedBatch& pages = *a.pages;
  const int64_t context = pages.context_lengths()[first], width = pages.table_width();
  const int64_t used = (context + pages.page_size() - 1) / pages.page_size();
  const int32_t* table = pages.block_table() + first * width;
  while (end < pages.sequences() && pages.context_lengths()[end] == context &&
         std::memcmp(table, pages.block_table() + end * width,
                     static_cast<size_t>(used) * sizeof(int32_t)) == 0) {
    ++end;
  }
  return end;
}

Task task_of(const AttentionArguments& a, int64_t first, int64_t end) {
  Task task = {
      CachedSequence(*a.pages, first, a.kv_heads, a.head_dim), 0, 0, false, 0, 0, 0, nullptr};
  task.cached.added = a.pages->batch().begin()[end] - task.cached.first_token;
  task.rows = task.cached.added * (a.heads / a.kv_heads);
  task.first = first_key(a, task.cached.context - task.cached.added);
  task.last = task.cached.context;
  task.few = task.cached.added == 1 || task.rows <= kFewRows;
  task.pieces = task.few ? (task.last - 1) / kSplitKeys - task.first / kSplitKeys + 1
                         : (task.rows + kColumns - 1) / kColumns;
  return task;
}

// Returns the floats of the partial results of a kv head; 0 if there is nothing to join.
int64_t part_floats(const AttentionArguments& a, const Task& task) {
  if (!task.few || task.pieces == 1) return 0;
  return task.pieces * task.rows * partial_stride(padded(a.head_dim));
}

// Returns the task that a unit belongs to: the last one that begins at or before it.
const Task& task_at(const Task* tasks, int64_t count, int64_t unit) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (tasks[middle].begin <= unit ? low : high) = middle;
  }
  return tasks[low];
}

}  // namespace

void paged_attention(const AttentionArguments& a, const Stream&) {
  const int64_t sequences = a.pages->sequences();
  int64_t units = 0, floats = 0, count = 0;
  for (int64_t i = 0, end = 0; i < sequences; i = end) {
    end = end_of_shared(a, i);
    floats += a.kv_heads * part_floats(a, task_of(a, i, end));
  }
  const size_t task_bytes = static_cast<size_t>(sequences) * sizeof(Task);
  char* memory =
      static_cast<char*>(thread_buffer(task_bytes + static_cast<size_t>(floats) * sizeof(float)));
  Task* tasks = reinterpret_cast<Task*>(memory);
  float* parts = reinterpret_cast<float*>(memory + task_bytes);
  for (int64_t i = 0, end = 0; i < sequences; i = end, ++count) {
    end = end_of_shared(a, i);
    Task& task = *new (tasks + count) Task(task_of(a, i, end));
    task.begin = units;
    task.parts = parts;
    units += a.kv_heads * task.pieces;
    parts += a.kv_heads * part_floats(a, task);
  }
  parallel_for(units, 1, [&](int64_t unit, int64_t, int) {
    const Task& task = task_at(tasks, count, unit);
    const int64_t kv_head = (unit - task.begin) / task.pieces;
    const int64_t piece = (unit - task.begin) % task.pieces;
    task.few ? attend_few(a, task, kv_head, piece) : attend_block(a, task, kv_head, piece);
  });
  if (floats == 0) return;
  parallel_for(count, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t each = part_floats(a, tasks[i]);
      for (int64_t head = 0; each > 0 && head < a.kv_heads; ++head) {
        join_queries(a, tasks[i], head, tasks[i].parts + head * each);
      }
    }
  });
}

// On the CPU a kernel costs nothing to launch, so nothing is fused.
bool cached_attention(const AttentionArguments&, const RotaryArguments*, const Stream&) {
  return false;
}

}  // namespace fusewire::FUSEWIRE_TARGET
