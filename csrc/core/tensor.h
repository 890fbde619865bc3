// Tensor: data, shape, dtype, device, owner. Row-major; the last dimension is contiguous and a
// matrix may have a row stride larger than its width (a column slice of a wider matrix).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "core/device.h"
#include "core/dtype.h"

namespace fusewire {

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    for (int64_t dim : dims) push_back(dim);
  }

  void push_back(int64_t dim) {
    if (rank_ == kMaxRank) fail("shape: got more than ", kMaxRank, " dimensions");
    dims_[rank_++] = dim;
  }
  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i]; }
  int64_t elements() const {
    int64_t product = 1;
    for (int i = 0; i < rank_; ++i) product *= dims_[i];
    return product;
  }
  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if (dims_[i] != other.dims_[i]) return false;
    }
    return true;
  }
  bool operator!=(const Shape& other) const { return !(*this == other); }
  std::string text() const {
    std::string out = "[";
    for (int i = 0; i < rank_; ++i) out += (i ? ", " : "") + std::to_string(dims_[i]);
    return out + "]";
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

struct Tensor {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::kFloat32;
  Device device;
  std::shared_ptr<void> owner;  // keeps `data` alive; null for borrowed memory
  int64_t row_stride = 0;       // elements between rows of the last two dimensions

  Tensor() = default;
  Tensor(void* data, Shape shape, DType dtype, Device device, std::shared_ptr<void> owner = nullptr)
      : data(data), shape(shape), dtype(dtype), device(device), owner(std::move(owner)) {
    row_stride = shape.rank() ? shape[shape.rank() - 1] : 1;
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t dim(int i) const { return shape[i < 0 ? i + shape.rank() : i]; }
  size_t bytes() const { return static_cast<size_t>(shape.elements()) * size_of(dtype); }
  bool contiguous() const { return shape.rank() < 2 || row_stride == dim(-1); }

  // Returns columns [begin, begin + width) of a matrix, as a view.
  Tensor columns(int64_t begin, int64_t width) const {
    Tensor view = *this;
    view.shape = {shape[0], width};
    view.data = as<char>() + begin * size_of(dtype);
    return view;
  }

  // Returns the first `count` rows of a matrix or elements of a vector, as a view.
  Tensor first(int64_t count) const {
    Tensor view = *this;
    view.shape = shape.rank() == 1 ? Shape{count} : Shape{count, shape[1]};
    return view;
  }
};

}  // namespace fusewire
