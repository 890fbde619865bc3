// Stacks that train.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/buffer.h"
#include "python/casters.h"
#include "python/register.h"
#include "train/attention.h"
#include "train/cross_attention.h"
#include "train/feed_forward.h"
#include "train/stack.h"

namespace fusewire {
namespace train {
namespace {

namespace py = pybind11;
using namespace py::literals;
using LinearPointer = std::shared_ptr<Linear>;
using NormOrNone = std::optional<Norm>;

Norm new_norm(Parameter weight, std::optional<Parameter> bias, float eps, std::string_view kind,
              bool one_plus) {
  return {layers::norm_named(kind, bias.has_value()), weight, bias, eps,
          one_plus ? std::make_shared<OnePlus>() : nullptr};
}

std::shared_ptr<Attention> new_attention(LinearPointer qkv, LinearPointer output, int64_t heads,
                                         int64_t kv_heads, std::optional<int64_t> left,
                                         std::optional<int64_t> right, float scale, float soft_cap,
                                         float dropout, NormOrNone q_norm, NormOrNone k_norm,
                                         std::optional<std::tuple<Tensor, Tensor, Tensor>> rope,
                                         std::optional<int64_t> position_bias) {
  const AttentionMask mask{left.value_or(kUnlimited), right.value_or(kUnlimited)};
  AttentionOptions options{{heads, kv_heads, mask, scale, soft_cap},
                           dropout,
                           q_norm,
                           k_norm,
                           std::nullopt,
                           {},
                           position_bias};
  if (rope) {
    auto& [cos, sin, negative_sin] = *rope;
    options.rope = layers::Rope{cos, sin};
    options.negative_sin = negative_sin;
  }
  return std::make_shared<Attention>(std::move(qkv), std::move(output), std::move(options));
}

void register_parts(py::module_& m) {
  py::class_<Parameter>(m, "Parameter",
                        "Where a parameter lies in the flat buffer of parameters, and its gradient "
                        "in that of gradients.")
      .def(py::init([](int64_t offset, const std::vector<int64_t>& shape) {
             Parameter parameter{offset, {}};
             for (int64_t dim : shape) parameter.shape.push_back(dim);
             return parameter;
           }),
           "offset"_a, "shape"_a, "offset: of its first number, in numbers.");
  py::class_<Norm>(m, "Norm", "A norm over the features of each row.")
      .def(py::init(&new_norm), "weight"_a, "bias"_a = py::none(), "eps"_a = 1e-12f,
           "kind"_a = "layer_norm", "one_plus"_a = false,
           "kind: layer_norm, or rms_norm, which has no bias. one_plus: the parameter is the "
           "weight's difference from 1.");
  py::class_<Linear, LinearPointer>(m, "Linear", "A linear layer whose weight changes.")
      .def(py::init([](Parameter weight, std::optional<Parameter> bias, bool transposed,
                       std::optional<Tensor> rows) {
             return std::make_shared<Linear>(weight, bias, transposed, std::move(rows));
           }),
           "weight"_a, "bias"_a = py::none(), "transposed"_a = false, "rows"_a = py::none(),
           "weight: [out_features, in_features], or the other way round where it is transposed. "
           "rows: int64[out_features], of each row of the product the one that the parameters have "
           "it in, each once.");
  py::class_<Sublayer, std::shared_ptr<Sublayer>>(m, "Sublayer", "What a block adds to x.");
  py::class_<Attention, Sublayer, std::shared_ptr<Attention>>(m, "Attention",
                                                              "Self-attention, packed.")
      .def(py::init(&new_attention), py::kw_only(), py::arg("qkv").none(false),
           py::arg("output").none(false), "heads"_a, "kv_heads"_a = 0, "left"_a = py::none(),
           "right"_a = py::none(), "scale"_a = 0.0f, "soft_cap"_a = 0.0f, "dropout"_a = 0.0f,
           "q_norm"_a = py::none(), "k_norm"_a = py::none(), "rope"_a = py::none(),
           "position_bias"_a = py::none(),
           "As fusewire.kernels.Attention; dropout: of attention weights; rope: cos, sin and -sin, "
           "which turns gradients back; position_bias: the number of one of Stack.forward's "
           "biases.");
  py::class_<CrossAttention, Sublayer, std::shared_ptr<CrossAttention>>(
      m, "CrossAttention", "Attention to the packed output of an encoder.")
      .def(py::init([](LinearPointer q, LinearPointer kv, LinearPointer output, int64_t heads,
                       float scale, float dropout) {
             return std::make_shared<CrossAttention>(std::move(q), std::move(kv), std::move(output),
                                                     heads, scale, dropout);
           }),
           py::kw_only(), py::arg("q").none(false), py::arg("kv").none(false),
           py::arg("output").none(false), "heads"_a, "scale"_a = 0.0f, "dropout"_a = 0.0f,
           "As fusewire.kernels.CrossAttention; kv rows k | v; dropout: of attention weights.");
  py::class_<FeedForward, Sublayer, std::shared_ptr<FeedForward>>(m, "FeedForward",
                                                                  "Dense or gated.")
      .def(py::init([](LinearPointer intermediate, LinearPointer output, Activation activation,
                       bool gated, float dropout) {
             return std::make_shared<FeedForward>(std::move(intermediate), std::move(output),
                                                  activation, gated, dropout);
           }),
           py::kw_only(), py::arg("intermediate").none(false), py::arg("output").none(false),
           "activation"_a = "gelu_erf", "gated"_a = false, "dropout"_a = 0.0f,
           "As fusewire.kernels.FeedForward; dropout: of what the activation makes.");
  py::class_<Block>(m, "Block", "A sublayer among norms, with its residual.")
      .def(py::init([](std::shared_ptr<Sublayer> sublayer, NormOrNone input_norm,
                       NormOrNone output_norm, NormOrNone residual_norm, float dropout) {
             return Block(std::move(sublayer), std::move(input_norm), std::move(output_norm),
                          std::move(residual_norm), dropout);
           }),
           py::arg("sublayer").none(false), py::kw_only(), "input_norm"_a = py::none(),
           "output_norm"_a = py::none(), "residual_norm"_a = py::none(), "dropout"_a = 0.0f,
           "x = residual_norm(x + dropout(output_norm(sublayer(input_norm(x))))); a dropout beside "
           "an output_norm is refused.");
}

py::dict stats_of(const Stack& stack) {
  const TapeStats stats = stack.stats();
  return py::dict("peak_bytes"_a = stats.peak_bytes,
                  "lower_bound_bytes"_a = stats.lower_bound_bytes,
                  "worst_ratio"_a = stats.worst_ratio, "plans_recorded"_a = stats.plans_recorded);
}

void register_stack(py::module_& m) {
  py::class_<TapeBlocks, std::shared_ptr<TapeBlocks>>(
      m, "TapeBlocks",
      "Memory for what forwards save until their backwards, on one stream. Passes that are alive "
      "at the same time have memory apart; the same passes in the same order have the same memory.")
      .def(py::init<>())
      .def(
          "take",
          [](TapeBlocks& self, size_t bytes, const Stream& stream) {
            py::gil_scoped_release release;
            return Buffer{self.take(bytes, stream), bytes};
          },
          "bytes"_a, py::arg_v("stream", Stream{}, "Stream()"))
      .def_property_readonly("generation", &TapeBlocks::generation,
                             "Changes when memory is freed for larger memory: recordings that hold "
                             "its addresses are then invalid.")
      .def_property_readonly("bytes", &TapeBlocks::bytes);
  py::class_<Activations>(m, "Activations", "What a forward saved for its backward.")
      .def_property_readonly("spent", &Activations::spent);
  py::class_<Stack>(m, "Stack", "Layers, and a norm at their end, that train.")
      .def(py::init<std::vector<std::vector<Block>>, NormOrNone, bool>(), "layers"_a,
           "final_norm"_a = py::none(), "parallel"_a = false,
           "parallel: all blocks of a layer read its input, and what they make of it is added up.")
      .def_property_readonly("layers", &Stack::layers)
      .def(
          "forward",
          [](const Stack& stack, const Tensor& out, const Tensor& x, const Tensor& parameters,
             const SequenceBatch& batch, std::optional<Tensor> positions,
             std::optional<std::pair<Tensor, SequenceBatch>> source, std::vector<Tensor> biases,
             int64_t first_trained, std::string_view recompute, std::optional<int64_t> dropout_seed,
             std::optional<Tensor> added_seed, uint64_t version, std::shared_ptr<TapeBlocks> blocks,
             const Stream& stream) {
            const ForwardOptions options{first_trained, recompute_named(recompute),
                                         dropout_seed,  std::move(added_seed),
                                         version,       std::move(blocks)};
            std::optional<Source> read;
            if (source) read = Source{source->first, source->second};
            py::gil_scoped_release release;
            return stack.forward(out, x, parameters, batch, std::move(positions), std::move(read),
                                 std::move(biases), options, stream);
          },
          "out"_a, "x"_a, "parameters"_a, "batch"_a, py::kw_only(), "positions"_a = py::none(),
          "source"_a = py::none(), "biases"_a = std::vector<Tensor>(), "first_trained"_a = 0,
          "recompute"_a = "none", "dropout_seed"_a = py::none(), "added_seed"_a = py::none(),
          "version"_a = 0, "blocks"_a = py::none(), py::arg_v("stream", Stream{}, "Stream()"),
          "Fills out[tokens, hidden] with the stack's output for x[tokens, hidden]. parameters: "
          "the flat buffer in the element type of x (float32 on the CPU), of which another version "
          "is packed anew. source: of cross attentions, "
          "the encoder's output [source tokens, width] and its sequences, which have to stay as x "
          "has. biases: of attentions with a position_bias, float32[heads, 2 L - 1] by distance, "
          "which have to stay too. Backward stops below the layer "
          "first_trained; for the number of layers none follows, and the result is None. "
          "recompute: none, norm, activation or layer. dropout_seed None: nothing is dropped. "
          "added_seed int64[1]: "
          "added to it when kernels run, so that replays of a graph drop different numbers. "
          "blocks: TapeBlocks to take the memory from; None: the allocator.")
      .def(
          "backward",
          [](const Stack& stack, Activations& activations, const Tensor& gradient,
             const Tensor& parameters, const Tensor& gradients, bool accumulate,
             const std::set<int64_t>& frozen, std::optional<Tensor> source_gradient,
             std::vector<std::optional<Tensor>> bias_gradients, uint64_t version,
             const Stream& stream) {
            py::gil_scoped_release release;
            stack.backward(activations, gradient, parameters,
                           {gradients, accumulate, &frozen, std::move(source_gradient),
                            std::move(bias_gradients)},
                           version, stream);
          },
          "activations"_a, "gradient"_a, "parameters"_a, "gradients"_a, py::kw_only(),
          "accumulate"_a = false, "frozen"_a = std::set<int64_t>(),
          "source_gradient"_a = py::none(),
          "bias_gradients"_a = std::vector<std::optional<Tensor>>(), "version"_a = 0,
          py::arg_v("stream", Stream{}, "Stream()"),
          "gradient[tokens, hidden] in place: of the output, then of x. gradients: float32, laid "
          "out "
          "as parameters. accumulate: adds to what is there. frozen: offsets of weights whose "
          "gradient nobody wants. source_gradient: the gradient of the source is added to it. "
          "bias_gradients: to each the gradient of one of the biases, but for those that are "
          "None.")
      .def("stats", &stats_of);
}

}  // namespace
}  // namespace train

void register_training(pybind11::module_& m) {
  pybind11::module_ training = m.def_submodule("training", "Stacks that train.");
  train::register_parts(training);
  train::register_stack(training);
}

}  // namespace fusewire
