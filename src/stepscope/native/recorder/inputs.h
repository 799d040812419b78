// Shapes, types and values of an operator's inputs as the bytes that collect/torch/native_collector.py describes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string_view>

#include "groups.h"
#include "words.h"

namespace stepscope {

// Hash of inputs: shapes, types and values. Much cheaper than their bytes; 0 for inputs of rare kinds, which are not
// hashed.
class Digest {
  public:
    explicit Digest(c10::ArrayRef<const c10::IValue> values) {
        for (const auto &value : values) {
            uint64_t part = of(value);
            if (__builtin_expect(!part, 0)) {
                value_ = 0;
                return;
            }
            value_ = mix(value_ ^ part, ~part);
        }
    }

    uint64_t value() const { return value_; }

  private:
    static constexpr size_t MOST_VALUES = 100;

    enum Seed : uint64_t {
        TENSOR = UINT64_C(0xA0761D6478BD642F),
        UNDEFINED = UINT64_C(0xE7037ED1A0B428DB),
        INTEGER = UINT64_C(0x8EBC6AF09C88C6E3),
        BOOLEAN = UINT64_C(0x589965CC75374CC3),
        REAL = UINT64_C(0x1D8E4E27C47D124F),
        GROUP = UINT64_C(0x8BB84B93962EACC9),
        NEITHER = UINT64_C(0xEB44ACCAB455D165),
        LIST = UINT64_C(0x2D358DCCAA6C78A5)
    };

    // Fold the 128-bit product of two numbers: every bit of the result depends on every bit of both.
    static uint64_t mix(uint64_t a, uint64_t b) {
        auto product = static_cast<unsigned __int128>(a) * b;
        return uint64_t(product) ^ uint64_t(product >> 64);
    }

    static uint64_t of(const c10::IValue &value) {
        if (value.isTensor()) return of(value.toTensor());
        if (value.isInt()) return mix(uint64_t(value.toInt()) ^ INTEGER, INTEGER);
        if (value.isNone()) return NEITHER;
        if (value.isBool()) return BOOLEAN + value.toBool();
        if (value.isDouble()) return of(value.toDouble());
        if (value.isList()) return of(value, value.toListRef());
        if (value.isObject()) return of_object(value);
        return value.isScalar() ? 0 : uint64_t(NEITHER);
    }

    static uint64_t of_object(const c10::IValue &value) {
        Group group;
        if (!group_of(value, group)) return NEITHER;
        return mix(std::hash<std::string_view>()(group.name) ^ GROUP, GROUP ^ uint64_t(group.rank) << 32 ^ uint64_t(group.size));
    }

    static uint64_t of(double real) {
        uint64_t bits;
        memcpy(&bits, &real, sizeof bits);
        return mix(bits ^ REAL, REAL);
    }

    static uint64_t of(const c10::IValue &list, c10::ArrayRef<c10::IValue> values) {
        if (values.size() > MOST_VALUES) return 0;
        // Read the list's type, a likely cache miss, only if its first value does not rule out tensors.
        bool tensors = (values.empty() || values[0].isTensor()) && list.isTensorList();
        uint64_t found = (tensors ? TENSOR : LIST) ^ values.size();
        for (const auto &value : values) {
            uint64_t part = of(value);
            if (!part) return 0;
            found = mix(found ^ part, ~part);
        }
        return found;
    }

    static uint64_t of(const at::Tensor &tensor) {
        if (!tensor.defined()) return UNDEFINED;
        auto &whole = *tensor.unsafeGetTensorImpl();
        if (tensor.is_nested() || whole.has_symbolic_sizes_strides() || whole.layout() != at::kStrided) return 0;
        auto sizes = whole.sizes(), strides = whole.strides();
        uint64_t found = TENSOR ^ uint64_t(tensor.scalar_type()) << 32 ^ sizes.size();
        for (size_t i = 0; i < sizes.size(); i++) found = mix(found ^ uint64_t(sizes[i]), TENSOR ^ uint64_t(strides[i]));
        return found;
    }

    uint64_t value_ = INTEGER;
};

class Inputs {
  public:
    explicit Inputs(c10::ArrayRef<const c10::IValue> values) {
        for (const auto &value : values) {
            uint8_t *before = at_;
            if (__builtin_expect(add(value), 1)) continue;
            at_ = before;
            *at_++ = CUT;
            break;
        }
    }

    const void *data() const { return bytes_; }
    size_t length() const { return size_t(at_ - bytes_); }

  private:
    enum Kind : uint8_t {
        OTHER, TENSOR, UNDEFINED, INTEGER, REAL, BOOLEAN, COMPLEX, TENSORS, LIST, CUT, GROUP, NESTED
    };

    // Longer lists are omitted, as in Kineto.
    static constexpr size_t MOST_VALUES = 30;
    // Maximum of bytes of a group's name.
    static constexpr size_t MOST_NAME = 200;
    // Maximum of bytes of a number, and of an item that is neither tensor nor list.
    static constexpr size_t NUMBER = 10, SCALAR = 2 * sizeof(double) + 1;

    // One byte is reserved for CUT.
    bool room(size_t bytes) const { return size_t(bytes_ + MOST_INPUTS - 1 - at_) >= bytes; }

    void number(uint64_t n) {
        for (; __builtin_expect(n > 127, 0); n >>= 7) *at_++ = uint8_t(n | 128);
        *at_++ = uint8_t(n);
    }

    void real(double value) {
        memcpy(at_, &value, sizeof value);
        at_ += sizeof value;
    }

    bool add(const c10::IValue &value) {
        if (value.isTensor()) return add(value.toTensor());
        if (!room(SCALAR + NUMBER)) return false;
        if (value.isScalar()) return scalar(value);
        if (value.isTensorList()) return tensors(value.toListRef());
        if (value.isList()) return list(value.toListRef());
        return object(value);
    }

    bool object(const c10::IValue &value) {
        Group group;
        if (!value.isObject() || !group_of(value, group)) {
            *at_++ = OTHER;
            return true;
        }
        size_t length = std::min(group.name.size(), MOST_NAME);
        if (!room(4 * NUMBER + length)) return false;
        *at_++ = GROUP;
        number(uint64_t(group.rank));
        number(uint64_t(group.size));
        number(length);
        memcpy(at_, group.name.data(), length);
        at_ += length;
        return true;
    }

    bool add(const at::Tensor &tensor) {
        if (!room(NUMBER)) return false;
        if (!tensor.defined() || tensor.is_nested() || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
            *at_++ = UNDEFINED;
            return true;
        }
        auto sizes = tensor.sizes();
        if (!room((2 * sizes.size() + 1) * NUMBER)) return false;
        *at_++ = TENSOR;
        *at_++ = uint8_t(tensor.scalar_type());
        number(sizes.size());
        for (auto size : sizes) number(uint64_t(size));
        bool strided = tensor.layout() == at::kStrided;
        *at_++ = strided;
        if (strided)
            for (auto stride : tensor.strides()) number(uint64_t(stride));
        return true;
    }

    bool scalar(const c10::IValue &value) {
        if (!room(SCALAR)) return false;
        if (value.isInt()) {
            *at_++ = INTEGER;
            int64_t integer = value.toInt();
            number(uint64_t(integer) << 1 ^ uint64_t(integer >> 63));
        } else if (value.isBool()) {
            *at_++ = BOOLEAN;
            *at_++ = value.toBool();
        } else if (value.isDouble()) {
            *at_++ = REAL;
            real(value.toDouble());
        } else if (value.isComplexDouble()) {
            *at_++ = COMPLEX;
            real(value.toComplexDouble().real());
            real(value.toComplexDouble().imag());
        } else {
            *at_++ = OTHER;
        }
        return true;
    }

    bool tensors(c10::ArrayRef<c10::IValue> values) {
        *at_++ = TENSORS;
        number(values.size());
        for (const auto &value : values)
            if (!add(value.toTensor())) return false;
        return true;
    }

    bool list(c10::ArrayRef<c10::IValue> values) {
        if (!values.empty() && values[0].isTensorList()) return nested(values);
        if (values.size() > MOST_VALUES || (!values.empty() && !values[0].isScalar())) {
            *at_++ = OTHER;
            return true;
        }
        *at_++ = LIST;
        number(values.size());
        for (const auto &value : values)
            if (!scalar(value)) return false;
        return true;
    }

    bool nested(c10::ArrayRef<c10::IValue> lists) {
        *at_++ = NESTED;
        number(lists.size());
        for (const auto &each : lists)
            if (!room(2 * NUMBER) || !tensors(each.toListRef())) return false;
        return true;
    }

    uint8_t bytes_[MOST_INPUTS];
    uint8_t *at_ = bytes_;
};

}  // namespace stepscope
