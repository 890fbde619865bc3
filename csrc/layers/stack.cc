#include "layers/stack.h"

#include <mutex>
#include <set>

#include "ops/ops.h"

namespace fusewire::layers {
namespace {

// Returns one address for all layers that create the same temporaries, so that they share their
// workspace plans.
const void* shared_address(std::vector<int64_t> temporaries) {
  static std::mutex mutex;
  static std::set<std::vector<int64_t>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  return &*known.insert(std::move(temporaries)).first;
}

}  // namespace

Layer::Layer(std::vector<Block> blocks, bool parallel)
    : blocks_(std::move(blocks)), together_(parallel ? blocks_.size() : 1) {
  if (blocks_.empty()) fail("Layer: blocks: got none, wanted 1 or more");
  std::vector<int64_t> temporaries{blocks_.front().sublayer->output().out_features(), parallel};
  for (const Block& block : blocks_) {
    const Sublayer& sublayer = *block.sublayer;
    if (block.output_norm && block.output_norm->kind != Norm::Kind::kRmsNorm) {
      fail("Block: output_norm: got a layer_norm, wanted an rms_norm, added as it is made");
    }
    if (parallel && block.residual_norm) {
      fail("Layer: parallel: got a block with a residual_norm, wanted none that norms their sum");
    }
    temporaries.insert(temporaries.end(),
                       {sublayer.inner_width(), sublayer.scratch_width(),
                        block.input_norm.has_value(), block.output_norm.has_value()});
  }
  temporaries_ = shared_address(std::move(temporaries));
}

const Norm* Layer::last_norm() const {
  const auto& norm = blocks_.back().residual_norm;
  return norm ? &*norm : nullptr;
}

int64_t Layer::forward(const Tensor& x, const Norm* pending, const StackInputs& inputs,
                       int64_t attention, Workspace& workspace, const Stream& stream) const {
  int64_t next = attention;
  const WorkspaceKey key{temporaries_, x.shape[0], static_cast<int64_t>(x.dtype), 0};
  workspace.run(key, stream, [&](Scratch& scratch, const Stream& s) {
    Pass pass{x, inputs, attention, scratch, s, nullptr, pending};
    run(pass, pass);
    next = pass.attention;
  });
  return next;
}

void Layer::forward_outputs(const Tensor& out, const Outputs& outputs, const Tensor& x,
                            const Norm* pending, const StackInputs& inputs, int64_t attention,
                            Workspace& workspace, const Stream& stream) const {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].sublayer->attends() != (i == 0)) {
      fail("Layer: outputs: got block ", i, i ? " that attends" : " that does not attend",
           ", wanted attention in the first block alone");
    }
  }
  const WorkspaceKey key{temporaries_, x.shape[0], static_cast<int64_t>(x.dtype), out.shape[0]};
  workspace.run(key, stream, [&](Scratch& scratch, const Stream& s) {
    if (pending) pending->apply(x, x, s);
    ops::gather_rows(out, x, outputs.tokens, s);
    Pass all{x, inputs, attention, scratch, s, &outputs}, pass{out, inputs, attention, scratch, s};
    run(all, pass);
    if (pass.pending) pass.pending->apply(out, out, s);
  });
}

void Layer::run(Pass& all, Pass& pass) const {
  std::vector<Matrix> inner;
  inner.reserve(together_);
  for (size_t first = 0; first < blocks_.size(); first += together_) {
    for (size_t i = 0; i < together_; ++i) {
      const Block& block = blocks_[first + i];
      inner.push_back(pass.matrix(block.sublayer->inner_width()));
      block.compute(inner[i], block.sublayer->attends() ? all : pass);
    }
    for (size_t i = 0; i < together_; ++i) blocks_[first + i].add(inner[i], pass);
    inner.clear();
  }
}

void Stack::forward(const Tensor& x, const StackInputs& inputs, Workspace& workspace,
                    const Stream& stream) const {
  int64_t attention = 0;
  const Norm* pending = nullptr;
  for (const auto& layer : layers_) {
    attention = layer->forward(x, pending, inputs, attention, workspace, stream);
    pending = layer->last_norm();
  }
  if (pending) pending->apply(x, x, stream);
  if (final_norm_) final_norm_->apply(x, x, stream);
}

void Stack::forward_outputs(const Tensor& out, const Outputs& outputs, const Tensor& x,
                            const StackInputs& inputs, Workspace& workspace,
                            const Stream& stream) const {
  if (layers_.empty()) fail("Stack: layers: got none, wanted 1 or more, the last for its outputs");
  int64_t attention = 0;
  const Norm* pending = nullptr;
  for (size_t i = 0; i + 1 < layers_.size(); ++i) {
    attention = layers_[i]->forward(x, pending, inputs, attention, workspace, stream);
    pending = layers_[i]->last_norm();
  }
  layers_.back()->forward_outputs(out, outputs, x, pending, inputs, attention, workspace, stream);
  if (final_norm_) final_norm_->apply(out, out, stream);
}

}  // namespace fusewire::layers
