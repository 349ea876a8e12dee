#include "tests/test_json.h"

template class nlohmann::basic_json<>;
template class nlohmann::detail::serializer<nlohmann::json>;
template class nlohmann::detail::parser<nlohmann::json, tencache::TextAdapter>;
template class nlohmann::detail::lexer<nlohmann::json, tencache::TextAdapter>;
template class nlohmann::basic_json<nlohmann::ordered_map>;
template class nlohmann::detail::serializer<nlohmann::ordered_json>;
template class nlohmann::detail::parser<nlohmann::ordered_json, tencache::TextAdapter>;
template class nlohmann::detail::lexer<nlohmann::ordered_json, tencache::TextAdapter>;
