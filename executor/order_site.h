// Places where the code that drives a GPU makes order: waits, records of events, and guards before memory changes. Each
// is written down as one, so that tests can take it away and see that something notices (tests/live/mutants.py). That
// is possible where the sources are compiled with TENCACHE_ORDER_SITES; elsewhere nothing is left of it.
//
//   TENCACHE_ORDER_SITE(kind, expression)     the expression; taken away, it is not evaluated, and its value is {}
//   TENCACHE_ORDER_PAIR(kind, first, second)  the first, then the second; or the other way round
#pragma once

#ifndef TENCACHE_ORDER_SITES

#define TENCACHE_ORDER_SITE(kind, expression) (expression)
#define TENCACHE_ORDER_PAIR(kind, first, second) ((first), (second))

#else

#include <span>
#include <type_traits>

namespace tencache {

struct OrderSite {
  const char* kind;
  const char* file;
  int line;
  bool pair;
  unsigned* visits;  // how often it was reached
};

// Set by the linker around a section of that name.
extern "C" const OrderSite __start_order_sites[], __stop_order_sites[];
inline std::span<const OrderSite> order_sites() { return {__start_order_sites, __stop_order_sites}; }
// The one that is taken away, or turned round; null: none is.
inline const OrderSite* changed_order_site = nullptr;

template <typename Expression>
auto at_order_site(const OrderSite& site, const Expression& expression) -> decltype(expression()) {
  ++*site.visits;
  if (&site != changed_order_site) return expression();
  if constexpr (!std::is_void_v<decltype(expression())>) return {};
}

template <typename First, typename Second>
void at_order_pair(const OrderSite& site, const First& first, const Second& second) {
  ++*site.visits;
  if (&site != changed_order_site) {
    first();
    second();
  } else {
    second();
    first();
  }
}

}  // namespace tencache

#define TENCACHE_ORDER_SITE_HERE(kind, pair)                                                                        \
  []() -> const ::tencache::OrderSite& {                                                                            \
    static unsigned visits = 0;                                                                                     \
    [[gnu::section("order_sites"), gnu::used]] static const ::tencache::OrderSite site = {kind, __FILE__, __LINE__, \
                                                                                          pair, &visits};           \
    return site;                                                                                                    \
  }()
#define TENCACHE_ORDER_SITE(kind, expression) \
  ::tencache::at_order_site(TENCACHE_ORDER_SITE_HERE(kind, false), [&] { return expression; })
#define TENCACHE_ORDER_PAIR(kind, first, second) \
  ::tencache::at_order_pair(                     \
      TENCACHE_ORDER_SITE_HERE(kind, true), [&] { first; }, [&] { second; })

#endif
