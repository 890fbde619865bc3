// Binds blocks, layers and stacks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "layers/attention.h"
#include "layers/cross_attention.h"
#include "layers/feed_forward.h"
#include "layers/stack.h"
#include "python/casters.h"
#include "python/register.h"

namespace fusewire {
namespace layers {
namespace {

namespace py = pybind11;
using namespace py::literals;
using LinearPointer = std::shared_ptr<Linear>;
using NormOrNone = std::optional<Norm>;

Norm new_norm(Tensor weight, std::optional<Tensor> bias, float eps, std::string_view kind) {
  return {norm_named(kind, bias.has_value()), std::move(weight), std::move(bias), eps};
}

std::shared_ptr<Attention> new_attention(LinearPointer qkv, LinearPointer output, int64_t heads,
                                         int64_t kv_heads, std::optional<int64_t> left,
                                         std::optional<int64_t> right, float scale, float soft_cap,
                                         NormOrNone q_norm, NormOrNone k_norm,
                                         std::optional<std::pair<Tensor, Tensor>> rope,
                                         std::optional<Tensor> position_bias, float k_scale,
                                         float v_scale) {
  const AttentionMask mask{left.value_or(kUnlimited), right.value_or(kUnlimited)};
  AttentionOptions options{{heads, kv_heads, mask, scale, soft_cap},
                           q_norm,
                           k_norm,
                           std::nullopt,
                           std::move(position_bias),
                           k_scale,
                           v_scale};
  if (rope) options.rope = Rope{rope->first, rope->second};
  return std::make_shared<Attention>(std::move(qkv), std::move(output), std::move(options));
}

void register_blocks(py::module_& m) {
  py::class_<Norm>(m, "Norm", "A norm over the features of each row.")
      .def(py::init(&new_norm), "weight"_a, "bias"_a = py::none(), "eps"_a = 1e-12f,
           "kind"_a = "layer_norm", "kind: layer_norm, or rms_norm, which has no bias.")
      .def("apply", &Norm::apply, "out"_a, "x"_a, py::arg_v("stream", Stream{}, "Stream()"),
           "Computes out = norm(x), in place allowed.");

  py::class_<Sublayer, std::shared_ptr<Sublayer>>(m, "Sublayer", "What a block adds to x.");
  py::class_<Attention, Sublayer, std::shared_ptr<Attention>>(
      m, "Attention", "Self-attention over a packed batch or over a KV cache.")
      .def(py::init(&new_attention), py::kw_only(), py::arg("qkv").none(false),
           py::arg("output").none(false), "heads"_a, "kv_heads"_a = 0, "left"_a = py::none(),
           "right"_a = py::none(), "scale"_a = 0.0f, "soft_cap"_a = 0.0f, "q_norm"_a = py::none(),
           "k_norm"_a = py::none(), "rope"_a = py::none(), "position_bias"_a = py::none(),
           "k_scale"_a = 1.0f, "v_scale"_a = 1.0f,
           "qkv: rows q | k | v. kv_heads: 0: as many as heads. left, right: a token attends to at "
           "most so many tokens before and after it; None: to all. scale: 0: 1 / sqrt(head_dim). "
           "rope: (cos, sin) float32[positions, rotary_dim / 2]. position_bias: float32[heads, 2 L "
           "- 1]. k_scale, v_scale: multiply the keys and values of a cache in float8.");
  py::class_<CrossAttention, Sublayer, std::shared_ptr<CrossAttention>>(
      m, "CrossAttention",
      "Attention to sources in a KV cache, after the self-attention of a layer.")
      .def(py::init([](LinearPointer q, LinearPointer output, int64_t heads, float scale) {
             return std::make_shared<CrossAttention>(std::move(q), std::move(output), heads, scale);
           }),
           py::kw_only(), py::arg("q").none(false), py::arg("output").none(false), "heads"_a,
           "scale"_a = 0.0f,
           "It reads the planes of the attention before it. scale: 0: 1 / sqrt(head_dim).");
  py::class_<FeedForward, Sublayer, std::shared_ptr<FeedForward>>(m, "FeedForward",
                                                                  "A feed-forward, dense or gated.")
      .def(py::init([](LinearPointer intermediate, LinearPointer output, Activation activation,
                       bool gated) {
             return std::make_shared<FeedForward>(std::move(intermediate), std::move(output),
                                                  activation, gated);
           }),
           py::kw_only(), py::arg("intermediate").none(false), py::arg("output").none(false),
           "activation"_a = "gelu_erf", "gated"_a = false,
           "gated: intermediate has rows a | b, and activation(a) * b is computed.");
  py::class_<Block>(m, "Block", "A sublayer with its norms and residual.")
      .def(py::init([](std::shared_ptr<Sublayer> sublayer, NormOrNone input_norm,
                       NormOrNone output_norm, NormOrNone residual_norm) {
             return Block{std::move(sublayer), std::move(input_norm), std::move(output_norm),
                          std::move(residual_norm)};
           }),
           py::arg("sublayer").none(false), py::kw_only(), "input_norm"_a = py::none(),
           "output_norm"_a = py::none(), "residual_norm"_a = py::none(),
           "x = residual_norm(x + output_norm(sublayer(input_norm(x)))).");
}

void register_stacks(py::module_& m) {
  py::class_<Layer, std::shared_ptr<Layer>>(m, "Layer", "Blocks in order, or in parallel.")
      .def(py::init([](std::vector<Block> blocks, bool parallel) {
             return std::make_shared<Layer>(std::move(blocks), parallel);
           }),
           "blocks"_a, py::kw_only(), "parallel"_a = false,
           "parallel: all blocks read the layer's input.");
  py::class_<Stack>(m, "Stack", "Layers, and a norm at their end, as a single call.")
      .def(py::init([](const std::vector<std::shared_ptr<Layer>>& layers, NormOrNone final_norm) {
             return Stack({layers.begin(), layers.end()}, std::move(final_norm));
           }),
           "layers"_a, "final_norm"_a = py::none())
      .def(
          "forward",
          [](const Stack& stack, const Tensor& x, const SequenceBatch& batch, Workspace& workspace,
             const Tensor* positions, const Stream& stream) {
            py::gil_scoped_release release;
            stack.forward(x, {batch, positions}, workspace, stream);
          },
          "x"_a, "batch"_a, "workspace"_a, "positions"_a = py::none(),
          py::arg_v("stream", Stream{}, "Stream()"),
          "Replaces x[tokens, hidden] by the stack's output. positions: int32[tokens], for RoPE.")
      .def(
          "forward_outputs",
          [](const Stack& stack, const Tensor& out, const Tensor& tokens,
             const SequenceBatch& outputs, const Tensor& x, const SequenceBatch& batch,
             Workspace& workspace, const Tensor* positions, const Stream& stream) {
            py::gil_scoped_release release;
            stack.forward_outputs(out, {tokens, outputs}, x, {batch, positions}, workspace, stream);
          },
          "out"_a, "tokens"_a, "outputs"_a, "x"_a, "batch"_a, "workspace"_a,
          "positions"_a = py::none(), py::arg_v("stream", Stream{}, "Stream()"),
          "As forward, but computes only the outputs of `tokens` int64[n], in the order of their "
          "sequences, whose offsets `outputs` has: writes out[n, hidden] and overwrites x. "
          "Attention must see all tokens of a sequence alike.")
      .def(
          "forward_cached",
          [](const Stack& stack, const Tensor& x, const PagedBatch& batch, const Tensor& planes,
             Workspace& workspace, const Tensor* positions, const Stream& stream,
             const PagedBatch* sources) {
            py::gil_scoped_release release;
            stack.forward(x, {batch.batch(), positions, &batch, &planes, sources}, workspace,
                          stream);
          },
          "x"_a, "batch"_a, "planes"_a, "workspace"_a, "positions"_a = py::none(),
          py::arg_v("stream", Stream{}, "Stream()"), "sources"_a = py::none(),
          "As forward, for new tokens of sequences whose keys and values are in pages: planes 2 i "
          "and 2 i + 1 [pages, kv_heads * page_size * head_dim] for attention i. The keys and "
          "values of new tokens are stored there, and each token attends to those up to itself. "
          "sources: for the same new tokens the pages of each sequence's source, which cross "
          "attention reads in the same planes.");
}

}  // namespace
}  // namespace layers

void register_layers(pybind11::module_& m) {
  layers::register_blocks(m);
  layers::register_stacks(m);
}

}  // namespace fusewire
