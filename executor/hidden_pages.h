// Pages that are filled at one address and then shown at another, all at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "core/units.h"

namespace tencache {

struct HiddenPages {
  struct Part {
    std::byte* from = nullptr;  // one mapping of memory that is shared with others (a memfd's)
    std::byte* to = nullptr;    // reserved addresses
    Bytes bytes = 0;            // whole pages
  };
  std::vector<Part> parts;
  // Of a few pages: `from` stays mapped, and the file is mapped once more at `to`, which is cheaper than to move them.
  int file = -1;           // -1: they are moved
  Bytes offset = 0;        // of the only part
  std::mutex mutex;        // held while they move
  bool read_only = false;  // once shown
  bool at_home = false;    // `from` stays a mapping that can be written, without pages
  std::atomic<bool> shown = false;
};

// Moves whole pages of one mapping to other addresses, in place of what is mapped there; those that they leave stay
// mapped, without pages. Throws Error if the system refuses.
void move_pages(std::byte* from, std::byte* to, Bytes bytes);
// Throws Error if the system refuses.
void set_writable(std::byte* at, Bytes bytes, bool writable);

// Moves the pages; `from` is reserved addresses then, or as `at_home` says. On any thread, once. Child processes get
// none of what is shown. Throws Error if the system refuses, and none is shown then.
void show(HiddenPages& pages);
// Whether they are shown, all of them. If not, they will be read-only or not as said here. Waits while they move:
// whoever changed the access to `to` meanwhile would open reserved addresses, which read as zeros.
bool shown_or_later(HiddenPages& pages, bool read_only);

}  // namespace tencache
