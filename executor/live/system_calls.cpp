#include "executor/live/system_calls.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace tencache {
namespace {

constexpr std::size_t buffer_bytes = 1 << 20;

std::atomic<bool (*)(const void*)> page_judge{nullptr};

bool paged(const void* address) { return page_judge.load()(address); }

// How much the kernel did before it met a tensor that is not there; nullopt: it met none.
std::optional<std::size_t> stopped(ssize_t result, const void* address, std::size_t bytes) {
  if (result < 0 && errno != EFAULT) return std::nullopt;
  const std::size_t done = result < 0 ? 0 : static_cast<std::size_t>(result);
  if (done >= bytes || !paged(static_cast<const std::byte*>(address) + done)) return std::nullopt;
  return done;
}

// What comes later than the kernel had may have to be waited for, except in a file.
bool is_file(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

// Goes on after the first `done` bytes. `call(buffer, bytes, done)` writes after the first `done` bytes.
template <typename Call>
ssize_t write_buffered(const void* from, std::size_t bytes, std::size_t done, const Call& call) {
  std::vector<std::byte> buffer(std::min(bytes, buffer_bytes));
  while (done < bytes) {
    const std::size_t part = std::min(buffer.size(), bytes - done);
    std::memcpy(buffer.data(), static_cast<const std::byte*>(from) + done, part);
    const ssize_t now = call(buffer.data(), part, done);
    if (now < 0) return done > 0 ? static_cast<ssize_t>(done) : now;
    done += static_cast<std::size_t>(now);
    if (static_cast<std::size_t>(now) < part) break;
  }
  return static_cast<ssize_t>(done);
}

// `whole`: what is short is over, and is not waited for.
template <typename Call>
ssize_t read_buffered(bool whole, void* to, std::size_t bytes, std::size_t done, const Call& call) {
  std::vector<std::byte> buffer(std::min(bytes, buffer_bytes));
  while (done < bytes) {
    const std::size_t part = std::min(buffer.size(), bytes - done);
    const ssize_t now = call(buffer.data(), part, done);
    if (now < 0) return done > 0 ? static_cast<ssize_t>(done) : now;
    std::memcpy(static_cast<std::byte*>(to) + done, buffer.data(), static_cast<std::size_t>(now));
    done += static_cast<std::size_t>(now);
    if (static_cast<std::size_t>(now) < part || !whole) break;
  }
  return static_cast<ssize_t>(done);
}

ssize_t write_any(int descriptor, const void* from, std::size_t bytes) {
  const ssize_t result = ::write(descriptor, from, bytes);
  const auto done = stopped(result, from, bytes);
  if (!done) return result;
  return write_buffered(from, bytes, *done, [&](const void* buffer, std::size_t part, std::size_t) {
    return ::write(descriptor, buffer, part);
  });
}

ssize_t pwrite_any(int descriptor, const void* from, std::size_t bytes, off_t offset) {
  const ssize_t result = ::pwrite(descriptor, from, bytes, offset);
  const auto done = stopped(result, from, bytes);
  if (!done) return result;
  return write_buffered(from, bytes, *done, [&](const void* buffer, std::size_t part, std::size_t before) {
    return ::pwrite(descriptor, buffer, part, offset + static_cast<off_t>(before));
  });
}

ssize_t send_any(int descriptor, const void* from, std::size_t bytes, int flags) {
  const ssize_t result = ::send(descriptor, from, bytes, flags);
  const auto done = stopped(result, from, bytes);
  if (!done) return result;
  return write_buffered(from, bytes, *done, [&](const void* buffer, std::size_t part, std::size_t) {
    return ::send(descriptor, buffer, part, flags);
  });
}

ssize_t read_any(int descriptor, void* to, std::size_t bytes) {
  const ssize_t result = ::read(descriptor, to, bytes);
  const auto done = stopped(result, to, bytes);
  const bool whole = done && is_file(descriptor);
  if (!done || (result >= 0 && !whole)) return result;
  return read_buffered(whole, to, bytes, *done,
                       [&](void* buffer, std::size_t part, std::size_t) { return ::read(descriptor, buffer, part); });
}

ssize_t pread_any(int descriptor, void* to, std::size_t bytes, off_t offset) {
  const ssize_t result = ::pread(descriptor, to, bytes, offset);
  const auto done = stopped(result, to, bytes);
  const bool whole = done && is_file(descriptor);
  if (!done || (result >= 0 && !whole)) return result;
  return read_buffered(whole, to, bytes, *done, [&](void* buffer, std::size_t part, std::size_t before) {
    return ::pread(descriptor, buffer, part, offset + static_cast<off_t>(before));
  });
}

ssize_t recv_any(int descriptor, void* to, std::size_t bytes, int flags) {
  const ssize_t result = ::recv(descriptor, to, bytes, flags);
  const auto done = stopped(result, to, bytes);
  const bool whole = done && (flags & MSG_WAITALL) != 0;
  if (!done || (result >= 0 && !whole)) return result;
  return read_buffered(whole, to, bytes, *done, [&](void* buffer, std::size_t part, std::size_t) {
    return ::recv(descriptor, buffer, part, flags);
  });
}

// As `stopped`. Sockets take several parts at once or, with one that is not there, none.
bool stopped(ssize_t result, std::span<const iovec> parts) {
  if (result < 0) {
    return errno == EFAULT && std::ranges::any_of(parts, [](const iovec& part) { return paged(part.iov_base); });
  }
  auto left = static_cast<std::size_t>(result);
  for (const iovec& part : parts) {
    if (left < part.iov_len) return paged(static_cast<std::byte*>(part.iov_base) + left);
    left -= part.iov_len;
  }
  return false;
}

// What is after the first `result` bytes, one part after the other, until one is not done whole.
template <typename Call>
ssize_t each_part(ssize_t result, std::span<const iovec> parts, const Call& call) {
  ssize_t done = std::max<ssize_t>(result, 0);
  auto before = static_cast<std::size_t>(done);
  for (const iovec& part : parts) {
    const std::size_t skipped = std::min(before, part.iov_len), bytes = part.iov_len - skipped;
    before -= skipped;
    if (bytes == 0) continue;
    const ssize_t now = call(static_cast<std::byte*>(part.iov_base) + skipped, bytes);
    if (now < 0) return done > 0 ? done : now;
    done += now;
    if (static_cast<std::size_t>(now) < bytes) break;
  }
  return done;
}

ssize_t writev_any(int descriptor, const iovec* first, int count) {
  const ssize_t result = ::writev(descriptor, first, count);
  const std::span parts(first, static_cast<std::size_t>(std::max(count, 0)));
  if (!stopped(result, parts)) return result;
  return each_part(result, parts,
                   [descriptor](const void* from, std::size_t bytes) { return write_any(descriptor, from, bytes); });
}

ssize_t readv_any(int descriptor, const iovec* first, int count) {
  const ssize_t result = ::readv(descriptor, first, count);
  const std::span parts(first, static_cast<std::size_t>(std::max(count, 0)));
  if (!stopped(result, parts) || (result >= 0 && !is_file(descriptor))) return result;
  return each_part(result, parts,
                   [descriptor](void* to, std::size_t bytes) { return read_any(descriptor, to, bytes); });
}

// A stream that was refused does not say how far it got, so these go through the buffer at once.
std::size_t fwrite_any(const void* from, std::size_t size, std::size_t count, FILE* stream) {
  if (size == 0 || count == 0 || !paged(from)) return std::fwrite(from, size, count, stream);
  return static_cast<std::size_t>(write_buffered(from, size * count, 0,
                                                 [&](const void* buffer, std::size_t part, std::size_t) {
                                                   return static_cast<ssize_t>(std::fwrite(buffer, 1, part, stream));
                                                 })) /
         size;
}

std::size_t fread_any(void* to, std::size_t size, std::size_t count, FILE* stream) {
  if (size == 0 || count == 0 || !paged(to)) return std::fread(to, size, count, stream);
  return static_cast<std::size_t>(read_buffered(true, to, size * count, 0,
                                                [&](void* buffer, std::size_t part, std::size_t) {
                                                  return static_cast<ssize_t>(std::fread(buffer, 1, part, stream));
                                                })) /
         size;
}

template <typename Function>
ImportedFunction imported(const char* name, Function* replacement) {
  return {name, reinterpret_cast<void*>(replacement)};
}

}  // namespace

std::span<const ImportedFunction> system_calls_of_tensors(bool (*paged_by)(const void* address)) {
  page_judge = paged_by;
  static const std::vector<ImportedFunction> functions = {
      imported("write", write_any),     imported("read", read_any),     imported("pwrite", pwrite_any),
      imported("pwrite64", pwrite_any), imported("pread", pread_any),   imported("pread64", pread_any),
      imported("writev", writev_any),   imported("readv", readv_any),   imported("send", send_any),
      imported("recv", recv_any),       imported("fwrite", fwrite_any), imported("fread", fread_any)};
  return functions;
}

}  // namespace tencache
