// The fused layers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "layers/encoder_layer.h"
#include "python/casters.h"
#include "python/register.h"

namespace fusewire {
namespace {

namespace py = pybind11;
using namespace py::literals;

Norm norm_named(std::string_view name) {
  if (name == "layer_norm") return Norm::kLayerNorm;
  if (name == "rms_norm") return Norm::kRmsNorm;
  fail("LayerSpec: norm: got '", name, "', wanted layer_norm or rms_norm");
}

NormWeights norm_weights(const py::handle& pair) {
  const auto [weight, bias] = pair.cast<std::pair<Tensor, std::optional<Tensor>>>();
  return {weight, bias};
}

LayerWeights layer_weights(const py::dict& weights) {
  LayerWeights out;
  for (const auto& [key, value] : weights) {
    const auto name = key.cast<std::string>();
    const auto linear = [&, &value = value] { return value.cast<std::shared_ptr<Linear>>(); };
    if (name == "qkv") {
      out.qkv = linear();
    } else if (name == "attention_output") {
      out.attention_output = linear();
    } else if (name == "intermediate") {
      out.intermediate = linear();
    } else if (name == "output") {
      out.output = linear();
    } else if (name == "attention_norm") {
      if (!value.is_none()) out.attention_norm = norm_weights(value);
    } else if (name == "output_norm") {
      out.output_norm = norm_weights(value);
    } else {
      fail("EncoderLayer: weights: got '", name,
           "', wanted qkv, attention_output, attention_norm, intermediate, output, output_norm");
    }
  }
  if (!out.output_norm.weight.data) fail("EncoderLayer: output_norm: got none, wanted weights");
  return out;
}

}  // namespace

void register_layers(py::module_& m) {
  py::class_<LayerSpec>(m, "LayerSpec", "What kind of Transformer layer it is.")
      .def(py::init([](int64_t hidden, int64_t intermediate, int64_t heads, int64_t head_dim,
                       Activation activation, bool gated, std::string_view norm, float norm_eps,
                       bool pre_norm, int64_t window) {
             if (head_dim == 0 && heads > 0) {
               if (hidden % heads) {
                 fail("LayerSpec: heads: got ", heads, ", wanted a divisor of hidden ", hidden,
                      "; or give head_dim");
               }
               head_dim = hidden / heads;
             }
             return LayerSpec{hidden, intermediate,     heads,    head_dim, activation,
                              gated,  norm_named(norm), norm_eps, pre_norm, window};
           }),
           py::kw_only(), "hidden"_a, "intermediate"_a, "heads"_a, "head_dim"_a = 0,
           "activation"_a = "gelu_erf", "gated"_a = false, "norm"_a = "layer_norm",
           "norm_eps"_a = 1e-12f, "pre_norm"_a = false, "window"_a = 0)
      .def_readonly("hidden", &LayerSpec::hidden)
      .def_readonly("intermediate", &LayerSpec::intermediate)
      .def_readonly("heads", &LayerSpec::heads)
      .def_readonly("head_dim", &LayerSpec::head_dim)
      .def_readonly("window", &LayerSpec::window);

  py::class_<EncoderLayer>(m, "EncoderLayer", "One encoder layer as a single call.")
      .def_property_readonly("spec", &EncoderLayer::spec)
      .def(py::init([](const LayerSpec& spec, const py::dict& weights) {
             return EncoderLayer(spec, layer_weights(weights));
           }),
           "spec"_a, "weights"_a)
      .def(
          "forward",
          [](const EncoderLayer& layer, const Tensor& x, const SequenceBatch& batch,
             Workspace& workspace, const Tensor* position_bias,
             const std::optional<std::tuple<Tensor, Tensor, Tensor>>& rotary,
             const Stream& stream) {
            std::optional<Rotary> tables;
            if (rotary) tables = {std::get<0>(*rotary), std::get<1>(*rotary), std::get<2>(*rotary)};
            py::gil_scoped_release release;
            layer.forward(x, batch, workspace, position_bias, tables ? &*tables : nullptr, stream);
          },
          "x"_a, "batch"_a, "workspace"_a, "position_bias"_a = py::none(), "rotary"_a = py::none(),
          py::arg_v("stream", Stream{}, "Stream()"),
          "Replaces x[tokens, hidden] by the layer's output. rotary: (cos, sin, positions).");
}

}  // namespace fusewire
