// The contract between ops/ and the targets: a table of kernels for each (device, instruction set,
// element type). A target registers itself when its file is linked in; nothing names the targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/activation.h"
#include "core/attention.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/gemm.h"
#include "core/norm.h"
#include "core/patches.h"
#include "core/pooling.h"
#include "core/stream.h"

namespace fusewire {

// embed: row t of out = word[ids[t]] * scale + position[positions[t]].
// embed_layer_norm: layer_norm(word[ids[t]] + position[positions[t]] + token_type[types[t]]).
// position and token_type (with their index arrays) and bias may be null; embed has no token_type,
// weight, bias and eps, embed_layer_norm no scale.
struct EmbedArguments {
  void* out;
  int64_t out_stride;
  const int64_t* ids;
  const int32_t *positions, *types;
  const void *word, *position, *token_type;
  const float* word_scales;  // null: word is a matrix; else it is packed, Format::kInt8
  int64_t vocabulary, max_positions, type_vocabulary;
  const void *weight, *bias;
  int64_t tokens, hidden;
  float eps;
  float scale;
};

// The first `rotated_heads` heads of a row (q and k) are rotated, of each the first rotary_dim
// values: by the angle of positions[token] in the tables [angles, rotary_dim / 2].
struct RotaryArguments {
  void* qkv;
  int64_t stride;
  const int32_t* positions;
  const float *cos, *sin;
  int64_t angles, tokens, rotated_heads, head_dim, rotary_dim;
};

// Row r of logits gives tokens[r]; every setting has one number a row (ops.def, sample).
struct SampleArguments {
  int64_t* tokens;
  const void* logits;
  int64_t stride, rows, cols;
  const float* temperature;
  const int32_t* top_k;
  const float *top_p, *min_p, *typical_p;
  const int64_t *seeds, *steps;
};

// Rows offsets[g] to offsets[g + 1] of logits are the beams of group g, which gets its counts[g]
// best candidates in row g of the outputs [groups, most] (ops.def, beam_candidates).
struct BeamArguments {
  float *scores, *log_probs;
  int32_t *beams, *tokens;
  const void* logits;
  int64_t stride, rows, cols;
  const int32_t *offsets, *counts;
  const float* beam_scores;
  int64_t groups, most;
  bool normalized;
};

// What a group of `fork_beams` is, a row of its `groups`.
struct ForkedGroup {
  int32_t candidates;  // its row of candidates
  int32_t parents;     // the first row of its beams in the table they come from
  int32_t children;    // and in the one they get
  int32_t beams;
  int32_t place;  // of the page that they write to, in a row of the tables
};

// The outputs of rows [rows], block_table [rows, width] from parent_table [.., width]; candidates
// [.., most]; ends [groups, most_ends] (ops.def, fork_beams).
struct ForkArguments {
  int64_t* ids;
  float* beam_scores;
  int32_t* block_table;
  int64_t *copy_from, *copy_to;
  const float* scores;
  const int32_t *beams, *tokens, *parent_table;
  const ForkedGroup* groups;
  const int32_t *fresh, *ends;
  int64_t rows, parent_rows, width, searches, most, group_count, most_ends;
};

// Where pages are copied: of each head of a page its `leading` elements.
struct CopiedPages {
  void* cache;
  int64_t planes, pages, heads, elements, leading;
};

struct Kernels {
#define KERNEL(result, name, arguments) result(*name) arguments;
#include "core/kernels.inc"
#undef KERNEL
};

struct TrainingKernels;  // core/training_kernels.h

struct Target {
  const char* name;
  DeviceType device;
  int rank;          // of several usable targets of a device the highest is taken
  bool (*usable)();  // by the machine we run on
  DType dtype;
  const Kernels* kernels;
  const TrainingKernels* training = nullptr;  // null: the target does not train
};

void register_target(const Target& target);

// Throws Error when no usable target of the device has kernels for the element type. This and the
// functions below may be called by any thread; a call that is running keeps its kernels.
const Kernels& kernels_for(Device device, DType dtype);

std::vector<std::string> cpu_targets();  // usable here, slowest first
std::string cpu_target();                // in force
void set_cpu_target(std::string_view name);

}  // namespace fusewire
