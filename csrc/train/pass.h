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

// The position of a parameter in the flat buffer of parameters, and of its gradient in that of
// gradients.
struct Parameter {
  int64_t offset;  // in elements
  Shape shape;     // dense

  Tensor of(const Tensor& flat) const;  // without memory if `flat` is that of a dry run
};

// Throws Error if a parameter does not lie within the flat buffer.
void expect_within(const Parameter& parameter, const Tensor& flat);

// What a backward computes again instead of saving it in the forward; each includes the ones
// before.
enum class Recompute : uint8_t {
  kNone,
  kNorm,        // outputs of norms
  kActivation,  // and outputs of activations and gates
  kLayer,       // everything except the inputs of layers
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

// The input of cross attention: the packed output of an encoder.
struct Source {
  Tensor x;             // [source tokens, width]
  SequenceBatch batch;  // one source per sequence
};

// Where a backward writes the gradients of parameters.
struct Gradients {
  Tensor flat;
  bool accumulate;                            // adds to the values in `flat`
  const std::set<int64_t>* frozen = nullptr;  // offsets of weights without a gradient
  std::optional<Tensor> source = {};  // the gradient of Source.x is added to it; none: not wanted
  std::vector<std::optional<Tensor>> biases = {};  // those of Pass.biases, likewise; empty: not
                                                   // wanted
};

struct Pass {
  Scratch& scratch;
  const Stream& stream;
  const SequenceBatch& batch;
  const Tensor* positions;  // int32[tokens], for attentions with RoPE; null: none
  const Source* source;     // for cross attention; null: none
  // The position biases of attentions, which may share them: float32[heads, 2 L - 1], by distance.
  const std::vector<Tensor>& biases;
  Tensor parameters;                    // the flat buffer, in the element type of activations
  uint64_t version;                     // of the values in `parameters`
  std::optional<int64_t> seed;          // of all dropouts; none: no dropout
  const int64_t* added_seed = nullptr;  // as Dropout.added
  Recompute recompute = Recompute::kNone;
  bool saves = false;     // whether a backward follows
  int64_t block = 0;      // index of the running block in the stack
  Gradients gradients{};  // only in a backward

  // Returns a packed matrix for the tokens.
  Matrix matrix(int64_t width) const {
    return {scratch, batch.tokens(), width, parameters.dtype, stream};
  }
  // Returns a packed matrix for the source's tokens.
  Matrix source_matrix(int64_t width) const {
    return {scratch, source->batch.tokens(), width, parameters.dtype, stream};
  }
  // A block has two dropouts, each with a counter of its own.
  Dropout dropout_inside(float probability) const { return dropout(probability, 0); }
  Dropout dropout_after(float probability) const { return dropout(probability, 1); }

 private:
  Dropout dropout(float probability, int64_t place) const {
    if (!seed || probability == 0) return {};
    return {probability, *seed, 2 * block + place, added_seed};
  }
};

}  // namespace fusewire::train
