// Two private members of at::RecordFunction. torch's accessors are calls into its library, and one such call costs as
// much as recording the operator, so the members are read directly. An explicit instantiation may name private members
// ([temp.spec]); they have not changed since torch 2.1.
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

// Return the operator's schema; nullptr if it has a plain name instead.
inline const c10::FunctionSchema *schema_of(const at::RecordFunction &f) {
    using std::get_if;  // torch 2.1 has a variant of its own, whose get_if lies beside it
    auto *schema = get_if<at::RecordFunction::schema_ref_t>(&(f.*reveal(NameMember())));
    return schema ? &schema->get() : nullptr;
}

// Return the name of an operator without a schema.
inline std::string_view own_name_of(const at::RecordFunction &f) {
    using std::get_if;
    auto *name = get_if<std::string>(&(f.*reveal(NameMember())));
    return name ? std::string_view(name->c_str()) : std::string_view();
}

inline bool is_async(const at::RecordFunction &f) { return f.*reveal(AsyncMember()); }

}  // namespace stepscope
