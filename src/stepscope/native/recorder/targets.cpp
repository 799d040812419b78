#include "targets.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <mutex>

namespace stepscope {

namespace {

constexpr size_t MOST = 8;
constexpr int64_t LOOKED_AT = 1 << 20;

struct Counts {
    std::mutex lock;
    std::array<Targets, MOST> entries;
    int64_t left = LOOKED_AT;
};

// Never destroyed: threads may compute losses while the process exits.
Counts &counts() {
    static auto *all = new Counts;
    return *all;
}

// The tensors of tracing, of compilers and of vmap have no memory of their own.
const int64_t *numbers_of(const at::Tensor &tensor) {
    if (!tensor.defined() || tensor.layout() != c10::kStrided || tensor.scalar_type() != c10::ScalarType::Long)
        return nullptr;
    if (!tensor.has_storage() || tensor.key_set().has(c10::DispatchKey::Python)) return nullptr;
    if (!tensor.storage().device().is_cpu() || !tensor.is_contiguous() || !tensor.storage().data()) return nullptr;
    return tensor.const_data_ptr<int64_t>();
}

}  // namespace

bool takes_targets(const c10::FunctionSchema &schema) {
    return schema.name() == "aten::nll_loss_forward" || schema.name() == "aten::nll_loss2d_forward";
}

void count_targets() {
    std::lock_guard<std::mutex> guard(counts().lock);
    counts().entries = {};
    counts().left = LOOKED_AT;
}

void note_targets(c10::ArrayRef<const c10::IValue> inputs) {
    constexpr size_t IGNORED = 4;
    if (inputs.size() <= IGNORED || !inputs[0].isTensor() || !inputs[1].isTensor() || !inputs[IGNORED].isInt()) return;
    const at::Tensor &logits = inputs[0].toTensor(), &targets = inputs[1].toTensor();
    const int64_t *numbers = numbers_of(targets);
    if (!numbers || logits.dim() < 2) return;
    int64_t classes = logits.size(1), rows = targets.numel(), ignore = inputs[IGNORED].toInt();
    std::lock_guard<std::mutex> guard(counts().lock);
    for (auto &entry : counts().entries) {
        if (entry.classes && entry.classes != classes) continue;
        if (rows > counts().left) return;
        counts().left -= rows;
        entry.classes = classes;
        entry.rows += rows;
        entry.ignored += std::count(numbers, numbers + rows, ignore);
        return;
    }
}

size_t counted_targets(Targets *entries, size_t room) {
    std::lock_guard<std::mutex> guard(counts().lock);
    size_t found = 0;
    for (const auto &entry : counts().entries)
        if (entry.classes && found < room) entries[found++] = entry;
    return found;
}

}  // namespace stepscope
