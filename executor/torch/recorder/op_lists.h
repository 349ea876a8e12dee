// What the schemas of LibTorch's ops do not say, as data. An op is named without its overload, "aten::fill_".
#pragma once

#include <string_view>

namespace tencache {

// The op writes the argument although its schema says that it only reads it. Found by reading kernels; the audit of
// interception.h finds others.
bool writes_unannounced(std::string_view op, std::string_view argument);
// The op writes every byte of the argument's tensor without reading any: where the tensor is all of its storage, the
// storage needs room but not its content.
bool overwrites(std::string_view op, std::string_view argument);
// The op looks at sizes, strides or types only, or changes only these: no tensor's content is touched.
bool is_metadata_only(std::string_view op);
// Of the argument only sizes and types matter.
bool reads_shape_only(std::string_view op, std::string_view argument);
// Gives memory that the caller fills, not always by an op (at::tensor does not).
bool returns_uninitialised(std::string_view op);
// Works on lists of tensors element by element (_foreach_*, fused optimizers): on parts of the lists, one after the
// other, it does the same.
bool is_on_lists(std::string_view op);
// Its tensors may be read and written until the Work that it returns is over.
bool goes_on_after_return(std::string_view op);
// Calls such ops, and others on what they return.
bool is_made_of_collectives(std::string_view op);
// Made of other ops by its registration, but touches memory itself: must not be looked through.
bool touches_memory_itself(std::string_view op);

}  // namespace tencache
