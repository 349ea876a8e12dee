// nlohmann-json, of which each test would compile its own copy.
#pragma once

#include <nlohmann/json.hpp>

namespace tencache {
using TextAdapter = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;
}  // namespace tencache

extern template class nlohmann::basic_json<>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::parser<nlohmann::json, tencache::TextAdapter>;
extern template class nlohmann::detail::lexer<nlohmann::json, tencache::TextAdapter>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;
extern template class nlohmann::detail::parser<nlohmann::ordered_json, tencache::TextAdapter>;
extern template class nlohmann::detail::lexer<nlohmann::ordered_json, tencache::TextAdapter>;
