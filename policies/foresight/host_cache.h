// Step 7 of foresight.cpp: CPU memory as a cache of what lies in storage.
#pragma once

#include "core/policy.h"
#include "policies/foresight/foreknowledge.h"

namespace tencache {

class HostCache {
 public:
  HostCache() = default;
  // `window`: bytes asked for on a link at once.
  explicit HostCache(Bytes window) : window_(window) {}

  // Reads ahead, keeps the reserve free, and copies down. The GPU has a link to CPU memory.
  void tend(Foreknowledge& known, const View& view, Actions& actions);

 private:
  Bytes reserve(const Foreknowledge& known, const View& view) const;
  bool drop(Shelf::Kind kind, OpPlace floor, Foreknowledge& known, const View& view, Actions& actions);
  bool make_room(Bytes bytes, OpPlace floor, Foreknowledge& known, const View& view, Actions& actions);
  void read_ahead(Store& store, Foreknowledge& known, const View& view, Actions& actions);
  void sink(const Store& store, Foreknowledge& known, const View& view, Actions& actions) const;

  Bytes window_ = 0;
  Bytes dropped_ = 0;  // by actions that are yet to be taken
};

}  // namespace tencache
