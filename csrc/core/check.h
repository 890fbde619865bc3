// Shape and type checks of an op's arguments, in one line each:
//
//   const Check check("layer_norm", stream);
//   Dim rows("rows"), cols("cols");
//   check.floats("x", x, {&rows, &cols});     // the first use of a Dim binds its size
//   check.floats("weight", weight, {&cols});  // "layer_norm: weight: got float32[7] on cpu, ..."
#pragma once

#include <initializer_list>

#include "core/stream.h"
#include "core/tensor.h"

namespace fusewire {

struct Dim {
  explicit Dim(const char* name, int64_t size = -1) : name(name), size(size) {}
  const char* name;
  int64_t size;  // -1 until bound
};

class Check {
 public:
  Check(const char* op, const Stream& stream) : op_(op), stream_(stream) {}

  // The first float tensor sets the element type of the op.
  void floats(const char* name, const Tensor& tensor, std::initializer_list<Dim*> dims) {
    const bool floating = tensor.dtype == DType::kFloat32 || tensor.dtype == DType::kFloat16 ||
                          tensor.dtype == DType::kBFloat16;
    if (!floating) wrong(name, tensor, "float32, float16 or bfloat16", dims);
    if (!dtype_known_) {
      dtype_ = tensor.dtype;
      dtype_known_ = true;
    }
    is(name, tensor, dtype_, dims);
  }

  void is(const char* name, const Tensor& tensor, DType dtype,
          std::initializer_list<Dim*> dims) const {
    bool fits = tensor.dtype == dtype && tensor.device == stream_.device &&
                tensor.shape.rank() == static_cast<int>(dims.size());
    int i = 0;
    for (Dim* dim : dims) {
      if (!fits) break;
      if (dim->size < 0) dim->size = tensor.shape[i];
      fits = dim->size == tensor.shape[i++];
    }
    if (!fits) wrong(name, tensor, name_of(dtype), dims);
    if (tensor.data == nullptr && tensor.shape.elements() > 0 && !stream_.recording) {
      fail(op_, ": ", name, ": got a tensor without memory");
    }
  }

  void contiguous(const char* name, const Tensor& tensor) const {
    if (!tensor.contiguous()) {
      fail(op_, ": ", name, ": got rows ", tensor.row_stride, " elements apart, wanted ",
           tensor.dim(-1), "; copy it to a contiguous tensor");
    }
  }

  void on_device(const char* name, const Device& device) const {
    if (device != stream_.device) {
      fail(op_, ": ", name, ": got one on ", device.text(), ", wanted it on ",
           stream_.device.text());
    }
  }

  template <class... Parts>
  void require(bool holds, const Parts&... parts) const {
    if (!holds) fail(op_, ": ", parts...);
  }

  DType dtype() const { return dtype_; }

 private:
  [[noreturn]] void wrong(const char* name, const Tensor& tensor, const char* type,
                          std::initializer_list<Dim*> dims) const {
    std::string wanted;
    for (Dim* dim : dims) {
      if (!wanted.empty()) wanted += ", ";
      wanted += dim->name;
      if (dim->size >= 0) wanted += "=" + std::to_string(dim->size);
    }
    fail(op_, ": ", name, ": got ", name_of(tensor.dtype), tensor.shape.text(), " on ",
         tensor.device.text(), ", wanted ", type, "[", wanted, "] on ", stream_.device.text());
  }

  const char* op_;
  const Stream& stream_;
  DType dtype_ = DType::kFloat32;
  bool dtype_known_ = false;
};

}  // namespace fusewire
