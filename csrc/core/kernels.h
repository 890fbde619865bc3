// The contract between ops/ and the targets: a table of kernels for each (device, instruction set,
// element type). A target registers itself when its file is linked in; no list names the targets.
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
// position and token_type (with their index arrays) and bias may be null. embed does not read
// token_type, weight, bias and eps; embed_layer_norm does not read scale.
struct EmbedArguments {
  void* out;
  int64_t out_stride;
  const int64_t* ids;
  const int32_t *positions, *types;
  const void *word, *position, *token_type;
  const float* word_scales;  // null: word is a matrix; otherwise it is packed in Format::kInt8
  int64_t vocabulary, max_positions, type_vocabulary;
  const void *weight, *bias;
  int64_t tokens, hidden;
  float eps;
  float scale;
};

// Rotates the first `rotated_heads` heads (q and k) of each row in place: the first rotary_dim
// elements of a head, by the angle of positions[token] in the tables cos and sin
// [angles, rotary_dim / 2].
struct RotaryArguments {
  void* qkv;
  int64_t stride;
  const int32_t* positions;
  const float *cos, *sin;
  int64_t angles, tokens, rotated_heads, head_dim, rotary_dim;
};

// tokens[r] is sampled from row r of logits; each setting has one value per row (ops.def, sample).
struct SampleArguments {
  int64_t* tokens;
  const void* logits;
  int64_t stride, rows, cols;
  const float* temperature;
  const int32_t* top_k;
  const float *top_p, *min_p, *typical_p;
  const int64_t *seeds, *steps;
};

// Rows offsets[g] to offsets[g + 1] of logits are the beams of group g. Its counts[g] best
// candidates go to row g of the outputs [groups, most] (ops.def, beam_candidates).
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

// A group of beams in `fork_beams`; one row of its `groups`.
struct ForkedGroup {
  int32_t candidates;  // the group's row of candidates
  int32_t parents;     // first row of its beams in parent_table
  int32_t children;    // first row of its beams in the outputs
  int32_t beams;
  int32_t place;  // index in a row of the tables of the page to write to
};

// Outputs are [rows] and block_table [rows, width]; parent_table is [.., width], the candidates
// (scores, beams, tokens) are [.., most] and ends [groups, most_ends] (ops.def, fork_beams).
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

// The cache in which pages are copied: the first `leading` elements of each head of a page.
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
  int rank;          // the usable target of a device with the highest rank is used
  bool (*usable)();  // on this machine
  DType dtype;
  const Kernels* kernels;
  const TrainingKernels* training = nullptr;  // null: the target does not train
};

void register_target(const Target& target);

// Returns the kernels in use. Error if no usable target of the device has kernels for the element
// type. This and the functions below are thread-safe; a call that is running keeps its kernels.
const Kernels& kernels_for(Device device, DType dtype);

std::vector<std::string> cpu_targets();  // usable on this machine, slowest first
std::string cpu_target();                // the one in use
void set_cpu_target(std::string_view name);

}  // namespace fusewire
