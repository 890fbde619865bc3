// What the parts of a stack share while it runs forward or backward.
#pragma once

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/attention.h"
#include "layers/block.h"

namespace fusewire::train {

using layers::Matrix;

// Where a parameter lies in the flat buffer of parameters, and its gradient in that of gradients.
struct Parameter {
  int64_t offset;  // elements
  Shape shape;     // dense

  Tensor of(const Tensor& flat) const;  // of a dry run's flat buffer: without memory
};

// Error when a parameter does not end within the flat buffer.
void expect_within(const Parameter& parameter, const Tensor& flat);

// What a forward computes again in its backward instead of saving it; each includes those before.
enum class Recompute : uint8_t {
  kNone,
  kNorm,        // outputs of norms
  kActivation,  // and what activations and gates make
  kLayer,       // all but the inputs of layers
};

Recompute recompute_named(std::string_view name);

// A matrix of the tape, or one of the caller's.
class Value {
 public:
  explicit Value(const Tensor& callers) : view_(callers) {}
  explicit Value(Matrix matrix) : memory_(std::move(matrix)), view_(*memory_) {}
  operator const Tensor&() const { return view_; }

 private:
  std::optional<Matrix> memory_;
  Tensor view_;
};

// What cross attention reads: the packed output of an encoder.
struct Source {
  Tensor x;             // [source tokens, width]
  SequenceBatch batch;  // a source for each sequence
};

// Where a backward leaves the gradients of parameters.
struct Gradients {
  Tensor flat;
  bool accumulate;                            // adds to what is there
  const std::set<int64_t>* frozen = nullptr;  // offsets of weights without one
  std::optional<Tensor> source = {};  // adds that of Source.x to what is there; none: not wanted
  std::vector<std::optional<Tensor>> biases = {};  // and those of Pass.biases; empty: none wanted
};

struct Pass {
  Scratch& scratch;
  const Stream& stream;
  const SequenceBatch& batch;
  const Tensor* positions;  // int32[tokens], for attentions that rotate; null: none
  const Source* source;     // for cross attentions; null: none
  // Of attentions that have one, in common or of their own: float32[heads, 2 L - 1], by distance.
  const std::vector<Tensor>& biases;
  Tensor parameters;                    // the flat buffer, in the element type of activations
  uint64_t version;                     // of what is in it
  std::optional<int64_t> seed;          // of all dropouts; none: nothing is dropped
  const int64_t* added_seed = nullptr;  // as Dropout.added
  Recompute recompute = Recompute::kNone;
  bool saves = false;     // whether a backward follows
  int64_t block = 0;      // the running one's number in the stack
  Gradients gradients{};  // in a backward

  // Of a packed matrix.
  Matrix matrix(int64_t width) const {
    return {scratch, batch.tokens(), width, parameters.dtype, stream};
  }
  // Of the source's tokens.
  Matrix source_matrix(int64_t width) const {
    return {scratch, source->batch.tokens(), width, parameters.dtype, stream};
  }
  // A block has two places where something is dropped, each with a counter of its own.
  Dropout dropout_inside(float probability) const { return dropout(probability, 0); }
  Dropout dropout_after(float probability) const { return dropout(probability, 1); }

 private:
  Dropout dropout(float probability, int64_t place) const {
    if (!seed || probability == 0) return {};
    return {probability, *seed, 2 * block + place, added_seed};
  }
};

}  // namespace fusewire::train
