#include "train/stack.h"

#include <algorithm>

#include "core/allocator.h"
#include "core/check.h"
#include "core/error.h"
#include "ops/ops.h"

namespace fusewire::train {
namespace {

void expect_trainable(Check& check, const Stream& stream, const Tensor& parameters, Dim* numbers) {
  if (stream.device.type == DeviceType::kCpu) {
    check.is("parameters", parameters, DType::kFloat32, {numbers});
  } else {
    check.floats("parameters", parameters, {numbers});
  }
}

}  // namespace

Stack::Stack(std::vector<std::vector<Block>> layers, std::optional<Norm> final_norm, bool parallel)
    : final_norm_(std::move(final_norm)), parallel_(parallel) {
  if (layers.empty()) fail("Stack: layers: got none, wanted 1 or more");
  for (std::vector<Block>& layer : layers) {
    if (layer.empty()) fail("Stack: got a layer without a block, wanted 1 or more");
    begins_.push_back(blocks_.size());
    for (Block& block : layer) blocks_.push_back(std::move(block));
  }
  begins_.push_back(blocks_.size());
  for (const Block& block : blocks_) {
    if (parallel && block.residual_norm()) {
      fail("Stack: parallel: got a block with a residual_norm, wanted none that norms their sum");
    }
    if (block.hidden() != blocks_.front().hidden()) {
      fail("Stack: got blocks of hidden size ", blocks_.front().hidden(), " and ", block.hidden(),
           ", wanted one size");
    }
  }
}

std::unique_ptr<Activations> Stack::forward(
    const Tensor& out, const Tensor& x, const Tensor& parameters, const SequenceBatch& batch,
    std::optional<Tensor> positions, std::optional<Source> source, std::vector<Tensor> biases,
    const ForwardOptions& options, const Stream& stream) const {
  Check check("Stack.forward", stream);
  Dim tokens("tokens", batch.tokens()), hidden("hidden", blocks_.front().hidden());
  Dim numbers("numbers");
  expect_trainable(check, stream, parameters, &numbers);
  check.is("x", x, parameters.dtype, {&tokens, &hidden});
  check.is("out", out, parameters.dtype, {&tokens, &hidden});
  check.require(options.first_trained >= 0 && options.first_trained <= layers(),
                "first_trained: got ", options.first_trained, ", wanted 0 to ", layers());
  if (source) {
    Dim source_tokens("source tokens", source->batch.tokens()), width("width");
    check.is("source", source->x, parameters.dtype, {&source_tokens, &width});
    check.require(source->batch.sequences() == batch.sequences(), "source: got ",
                  source->batch.sequences(), " sequences, wanted ", batch.sequences(),
                  ", one for each of the batch");
  }
  for (const Tensor& bias : biases) {
    Dim heads("heads"), width("2 L - 1");
    check.is("biases", bias, DType::kFloat32, {&heads, &width});
    check.contiguous("biases", bias);
  }
  if (options.added_seed) {
    Dim one("seed", 1);
    check.is("added_seed", *options.added_seed, DType::kInt64, {&one});
  }
  for (const Block& block : blocks_) block.expect_within(parameters);
  if (final_norm_) final_norm_->expect_within(parameters);

  const std::lock_guard<std::mutex> lock(mutex_);
  const bool saves = options.first_trained < layers();
  TapePlans::Key key{batch.tokens(),
                     source ? source->batch.tokens() : 0,
                     options.first_trained,
                     static_cast<int64_t>(options.recompute),
                     options.dropout_seed.has_value(),
                     static_cast<int64_t>(parameters.dtype)};
  for (const Tensor& bias : biases) key.push_back(bias.shape.elements());
  const auto activations = [&] {
    return std::unique_ptr<Activations>(new Activations(batch, positions, source, biases, options,
                                                        parameters.dtype, blocks_.size()));
  };
  const TapePlans::Program program = plans_.plan(key, [&] {
    const auto dry = activations();
    dry->tape = std::make_unique<Tape>(stream);
    run(*dry, out, x, parameters);
    if (saves) {
      const Tensor gradients(nullptr, parameters.shape, DType::kFloat32, stream.device);
      run_back(*dry, out, parameters, {gradients, false});
    }
    return dry->tape->take_recorded();
  });
  auto a = activations();
  const size_t bytes = program->plan.peak;
  auto block = options.blocks
                   ? options.blocks->take(bytes, stream)
                   : default_allocator(stream.device).allocate(bytes, "training", stream);
  a->tape = std::make_unique<Tape>(program, std::move(block), stream);
  run(*a, out, x, parameters);
  if (saves) return a;
  a->tape->finish();
  return nullptr;
}

void Stack::backward(Activations& a, const Tensor& gradient, const Tensor& parameters,
                     const Gradients& gradients, uint64_t version, const Stream& stream) const {
  Check check("Stack.backward", stream);
  Dim tokens("tokens", a.batch.tokens()), hidden("hidden", blocks_.front().hidden());
  Dim numbers("numbers");
  expect_trainable(check, stream, parameters, &numbers);
  check.is("gradient", gradient, parameters.dtype, {&tokens, &hidden});
  check.is("gradients", gradients.flat, DType::kFloat32, {&numbers});
  if (gradients.source) {
    check.require(a.source.has_value(),
                  "source_gradient: got one, wanted none, as forward got no source");
    Dim source_tokens("source tokens", a.source->x.dim(0)), width("width", a.source->x.dim(1));
    check.is("source_gradient", *gradients.source, parameters.dtype, {&source_tokens, &width});
  }
  check.require(gradients.biases.empty() || gradients.biases.size() == a.biases.size(),
                "bias_gradients: got ", gradients.biases.size(), ", wanted one for each of ",
                a.biases.size(), " biases, or none");
  for (size_t i = 0; i < gradients.biases.size(); ++i) {
    if (const auto& dbias = gradients.biases[i]) {
      Dim heads("heads", a.biases[i].dim(0)), width("2 L - 1", a.biases[i].dim(1));
      check.is("bias_gradients", *dbias, DType::kFloat32, {&heads, &width});
      check.contiguous("bias_gradients", *dbias);
    }
  }
  for (const Block& block : blocks_) block.expect_within(parameters);
  if (final_norm_) final_norm_->expect_within(parameters);

  const std::lock_guard<std::mutex> lock(mutex_);
  check.require(!a.spent_,
                "got activations that a backward has used up, wanted those of a new forward; "
                "retain_graph is not supported, call forward again");
  check.require(a.options.version == version,
                "got parameters that were written since the forward, wanted its own; call "
                "optimizer.step() after backward()");
  check.require(a.dtype == parameters.dtype, "parameters: got ", name_of(parameters.dtype),
                ", wanted ", name_of(a.dtype), " as in the forward");
  a.spent_ = true;
  run_back(a, gradient, parameters, gradients);
  a.tape->finish();
  a.tape.reset();
}

TapeStats Stack::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plans_.stats();
}

Pass Stack::pass_of(const Activations& a, const Tensor& parameters) const {
  Pass pass{a.tape->scratch(),
            a.tape->stream(),
            a.batch,
            a.positions ? &*a.positions : nullptr,
            a.source ? &*a.source : nullptr,
            a.biases,
            parameters,
            a.options.version,
            a.options.dropout_seed,
            a.options.added_seed ? a.options.added_seed->as<int64_t>() : nullptr};
  pass.recompute = a.options.recompute;
  return pass;
}

bool Stack::begins_layer(size_t block) const {
  return std::binary_search(begins_.begin(), begins_.end(), block);
}

bool Stack::remade(const Activations& a, size_t block) const {
  const Recompute recompute = a.options.recompute;
  return (recompute == Recompute::kNorm || recompute == Recompute::kActivation) &&
         block > first_block(a) && blocks_[block - 1].residual_norm();
}

void Stack::run(Activations& a, const Tensor& out, const Tensor& x,
                const Tensor& parameters) const {
  Pass pass = pass_of(a, parameters);
  const size_t first = first_block(a), end = blocks_.size();
  const bool by_layer = a.options.recompute == Recompute::kLayer;
  Value value(x);
  std::optional<Value> input;  // of a parallel layer, which nothing keeps
  size_t begin = 0;
  for (size_t b = 0; b < end; ++b) {
    if (begins_layer(b)) {
      begin = b;
      input.reset();
    }
    const bool apart = parallel_ && b > begin;
    pass.block = static_cast<int64_t>(b);
    pass.saves = b >= first && !by_layer;
    BlockActivations passing;
    const bool last = b + 1 == end && !final_norm_;
    const Tensor& read = !apart ? value : input ? *input : *a.of[begin].x;
    BlockActivations& saved = pass.saves ? a.of[b] : passing;
    Value next = blocks_[b].forward(read, value, saved, last ? &out : nullptr, pass);
    const bool keeps = b >= first && !apart && (by_layer ? b == begin : !remade(a, b));
    if (keeps) {
      a.of[b].x = std::move(value);
    } else if (parallel_ && b == begin) {
      input = std::move(value);
    }
    value = std::move(next);
  }
  if (!final_norm_) return;
  final_norm_->forward(out, value, pass);
  if (first < end) a.last = std::move(value);
}

void Stack::recompute(Activations& a, int64_t layer, Pass& pass) const {
  const size_t begin = begins_[layer], end = begins_[layer + 1];
  for (size_t b = begin; b < end; ++b) {
    pass.block = static_cast<int64_t>(b);
    const Tensor& x = *a.of[parallel_ ? begin : b].x;
    if (parallel_ || b + 1 == end) {
      blocks_[b].recompute(x, a.of[b], pass);
    } else {
      a.of[b + 1].x = blocks_[b].forward(x, x, a.of[b], nullptr, pass);
    }
  }
}

void Stack::run_back(Activations& a, const Tensor& gradient, const Tensor& parameters,
                     const Gradients& gradients) const {
  Pass pass = pass_of(a, parameters);
  pass.gradients = gradients;
  pass.saves = true;
  // A layer that is computed again keeps all that its backward reads.
  const bool by_layer = pass.recompute == Recompute::kLayer;
  if (by_layer) pass.recompute = Recompute::kNone;
  if (final_norm_) {
    final_norm_->backward(gradient, gradient, *a.last, nullptr, pass);
    a.last.reset();
  }
  for (int64_t layer = layers() - 1; layer >= a.options.first_trained; --layer) {
    if (by_layer) recompute(a, layer, pass);
    const size_t begin = begins_[layer];
    std::optional<Matrix> dout;  // that the blocks of a parallel layer share
    if (parallel_ && begins_[layer + 1] - begin > 1) {
      dout = pass.matrix(gradient.shape[1]);
      ops::dropout_add(*dout, nullptr, gradient, nullptr, 0, 0, 0, false, pass.stream);
    }
    for (size_t b = begins_[layer + 1]; b-- > begin;) {
      pass.block = static_cast<int64_t>(b);
      BlockActivations& saved = a.of[b];
      std::optional<Value> x = std::move(saved.x);
      if (parallel_ && b > begin) {
        x = Value(static_cast<const Tensor&>(*a.of[begin].x));
      } else if (remade(a, b)) {
        x = Value(pass.matrix(gradient.shape[1]));
        blocks_[b - 1].residual_norm()->forward(*x, *a.of[b - 1].sum, pass);
      }
      const Tensor& of_output = dout ? static_cast<const Tensor&>(*dout) : gradient;
      blocks_[b].backward(gradient, of_output, *x, std::move(saved), pass);
      saved = {};
    }
  }
}

}  // namespace fusewire::train
