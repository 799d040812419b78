// Shapes, types and values of an operator's inputs as the bytes that collect/collectors/torch_native.py describes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <cstring>

#include "words.h"

namespace stepscope {

class Inputs {
  public:
    explicit Inputs(c10::ArrayRef<const c10::IValue> values) {
        for (const auto &value : values) {
            size_t before = length_;
            add(value);
            if (!full_) continue;
            bytes_[length_ = before] = CUT;  // there is always room for this one
            length_++;
            break;
        }
    }

    const void *data() const { return bytes_; }
    size_t length() const { return length_; }

  private:
    enum Kind : uint8_t { OTHER, TENSOR, UNDEFINED, INTEGER, REAL, BOOLEAN, COMPLEX, TENSORS, LIST, CUT };

    // Lists longer than this are left out, as Kineto leaves them out.
    static constexpr size_t MOST_VALUES = 30;

    void byte(uint8_t b) {
        if (length_ + 1 < MOST_INPUTS)
            bytes_[length_++] = b;
        else
            full_ = true;
    }

    void number(uint64_t n) {
        for (; n > 127; n >>= 7) byte(uint8_t(n | 128));
        byte(uint8_t(n));
    }

    void real(double value) {
        if (length_ + sizeof value >= MOST_INPUTS) {
            full_ = true;
            return;
        }
        memcpy(bytes_ + length_, &value, sizeof value);
        length_ += sizeof value;
    }

    void add(const c10::IValue &value) {
        if (value.isTensor()) return add(value.toTensor());
        if (value.isScalar()) return scalar(value);
        if (value.isTensorList()) return tensors(value.toListRef());
        if (value.isList()) return list(value.toListRef());
        byte(OTHER);
    }

    void add(const at::Tensor &tensor) {
        if (!tensor.defined() || tensor.is_nested() || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
            return byte(UNDEFINED);
        byte(TENSOR);
        byte(uint8_t(tensor.scalar_type()));
        auto sizes = tensor.sizes();
        number(sizes.size());
        for (auto size : sizes) number(uint64_t(size));
        bool strided = tensor.layout() == at::kStrided;
        byte(strided);
        if (!strided) return;
        for (auto stride : tensor.strides()) number(uint64_t(stride));
    }

    void scalar(const c10::IValue &value) {
        if (value.isInt()) {
            byte(INTEGER);
            int64_t integer = value.toInt();
            number(uint64_t(integer) << 1 ^ uint64_t(integer >> 63));
        } else if (value.isDouble()) {
            byte(REAL);
            real(value.toDouble());
        } else if (value.isBool()) {
            byte(BOOLEAN);
            byte(value.toBool());
        } else if (value.isComplexDouble()) {
            byte(COMPLEX);
            real(value.toComplexDouble().real());
            real(value.toComplexDouble().imag());
        } else {
            byte(OTHER);
        }
    }

    void tensors(c10::ArrayRef<c10::IValue> values) {
        byte(TENSORS);
        number(values.size());
        for (const auto &value : values) {
            if (full_) return;
            value.isTensor() ? add(value.toTensor()) : byte(UNDEFINED);
        }
    }

    void list(c10::ArrayRef<c10::IValue> values) {
        if (values.size() > MOST_VALUES || (!values.empty() && !values[0].isScalar())) return byte(OTHER);
        byte(LIST);
        number(values.size());
        for (const auto &value : values) scalar(value);
    }

    uint8_t bytes_[MOST_INPUTS];
    size_t length_ = 0;
    bool full_ = false;
};

}  // namespace stepscope
