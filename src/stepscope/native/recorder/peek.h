// Two members of at::RecordFunction that torch shows only through functions of its own library. A call there and back
// costs an operator as much as all that is noted of it, so they are read in place. An explicit instantiation may name
// private members ([temp.spec]); they have been the same from torch 2.1 on.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <string>
#include <string_view>
#include <variant>

namespace stepscope {

template <auto member, typename Tag>
struct Reveal {
    friend constexpr auto reveal(Tag) { return member; }
};

struct NameMember {
    friend constexpr auto reveal(NameMember);
};
struct AsyncMember {
    friend constexpr auto reveal(AsyncMember);
};

template struct Reveal<&at::RecordFunction::fn_, NameMember>;
template struct Reveal<&at::RecordFunction::is_async_, AsyncMember>;

// The operator's schema; nullptr for what has a name of its own.
inline const c10::FunctionSchema *schema_of(const at::RecordFunction &f) {
    using std::get_if;  // torch 2.1 has a variant of its own, whose get_if lies beside it
    auto *schema = get_if<at::RecordFunction::schema_ref_t>(&(f.*reveal(NameMember())));
    return schema ? &schema->get() : nullptr;
}

// The name of what has no schema.
inline std::string_view own_name_of(const at::RecordFunction &f) {
    using std::get_if;
    auto *name = get_if<std::string>(&(f.*reveal(NameMember())));
    return name ? std::string_view(name->c_str()) : std::string_view();
}

inline bool is_async(const at::RecordFunction &f) { return f.*reveal(AsyncMember()); }

}  // namespace stepscope
