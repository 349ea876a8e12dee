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
#include <span>
#include <vector>

namespace tencache {
namespace {

constexpr std::size_t buffer_bytes = 1 << 20;

std::atomic<bool (*)(const void*)> is_paged{nullptr};

bool paged(const void* address) { return is_paged.load()(address); }
bool refused(ssize_t result, const void* address) { return result < 0 && errno == EFAULT && paged(address); }

// `call(buffer, bytes, done)` writes after the first `done` bytes.
template <typename Call>
ssize_t write_buffered(const void* from, std::size_t bytes, const Call& call) {
  std::vector<std::byte> buffer(std::min(bytes, buffer_bytes));
  std::size_t done = 0;
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

// What comes later than a buffer's worth may have to be waited for, except in a file.
bool is_file(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

template <typename Call>
ssize_t read_buffered(bool whole, void* to, std::size_t bytes, const Call& call) {
  std::vector<std::byte> buffer(std::min(bytes, buffer_bytes));
  std::size_t done = 0;
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
  if (!refused(result, from)) return result;
  return write_buffered(from, bytes, [&](const void* buffer, std::size_t part, std::size_t) {
    return ::write(descriptor, buffer, part);
  });
}

ssize_t pwrite_any(int descriptor, const void* from, std::size_t bytes, off_t offset) {
  const ssize_t result = ::pwrite(descriptor, from, bytes, offset);
  if (!refused(result, from)) return result;
  return write_buffered(from, bytes, [&](const void* buffer, std::size_t part, std::size_t done) {
    return ::pwrite(descriptor, buffer, part, offset + static_cast<off_t>(done));
  });
}

ssize_t send_any(int descriptor, const void* from, std::size_t bytes, int flags) {
  const ssize_t result = ::send(descriptor, from, bytes, flags);
  if (!refused(result, from)) return result;
  return write_buffered(from, bytes, [&](const void* buffer, std::size_t part, std::size_t) {
    return ::send(descriptor, buffer, part, flags);
  });
}

ssize_t read_any(int descriptor, void* to, std::size_t bytes) {
  const ssize_t result = ::read(descriptor, to, bytes);
  if (!refused(result, to)) return result;
  return read_buffered(is_file(descriptor), to, bytes,
                       [&](void* buffer, std::size_t part, std::size_t) { return ::read(descriptor, buffer, part); });
}

ssize_t pread_any(int descriptor, void* to, std::size_t bytes, off_t offset) {
  const ssize_t result = ::pread(descriptor, to, bytes, offset);
  if (!refused(result, to)) return result;
  return read_buffered(is_file(descriptor), to, bytes, [&](void* buffer, std::size_t part, std::size_t done) {
    return ::pread(descriptor, buffer, part, offset + static_cast<off_t>(done));
  });
}

ssize_t recv_any(int descriptor, void* to, std::size_t bytes, int flags) {
  const ssize_t result = ::recv(descriptor, to, bytes, flags);
  if (!refused(result, to)) return result;
  return read_buffered(is_file(descriptor), to, bytes, [&](void* buffer, std::size_t part, std::size_t) {
    return ::recv(descriptor, buffer, part, flags);
  });
}

// One after the other, until one is not done whole.
template <typename Call>
ssize_t each_part(const iovec* parts, int count, const Call& call) {
  ssize_t done = 0;
  for (const iovec& part : std::span(parts, static_cast<std::size_t>(count))) {
    const ssize_t now = call(part);
    if (now < 0) return done > 0 ? done : now;
    done += now;
    if (static_cast<std::size_t>(now) < part.iov_len) break;
  }
  return done;
}

bool refused(ssize_t result, const iovec* parts, int count) {
  return result < 0 && errno == EFAULT &&
         std::any_of(parts, parts + count, [](const iovec& part) { return paged(part.iov_base); });
}

ssize_t writev_any(int descriptor, const iovec* parts, int count) {
  const ssize_t result = ::writev(descriptor, parts, count);
  if (!refused(result, parts, count)) return result;
  return each_part(parts, count, [&](const iovec& part) { return write_any(descriptor, part.iov_base, part.iov_len); });
}

ssize_t readv_any(int descriptor, const iovec* parts, int count) {
  const ssize_t result = ::readv(descriptor, parts, count);
  if (!refused(result, parts, count)) return result;
  return each_part(parts, count, [&](const iovec& part) { return read_any(descriptor, part.iov_base, part.iov_len); });
}

// A stream that was refused does not say how far it got, so these go through the buffer at once.
std::size_t fwrite_any(const void* from, std::size_t size, std::size_t count, FILE* stream) {
  if (size == 0 || count == 0 || !paged(from)) return std::fwrite(from, size, count, stream);
  return static_cast<std::size_t>(write_buffered(from, size * count,
                                                 [&](const void* buffer, std::size_t part, std::size_t) {
                                                   return static_cast<ssize_t>(std::fwrite(buffer, 1, part, stream));
                                                 })) /
         size;
}

std::size_t fread_any(void* to, std::size_t size, std::size_t count, FILE* stream) {
  if (size == 0 || count == 0 || !paged(to)) return std::fread(to, size, count, stream);
  return static_cast<std::size_t>(read_buffered(true, to, size * count,
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
  is_paged = paged_by;
  static const std::vector<ImportedFunction> functions = {
      imported("write", write_any),     imported("read", read_any),     imported("pwrite", pwrite_any),
      imported("pwrite64", pwrite_any), imported("pread", pread_any),   imported("pread64", pread_any),
      imported("writev", writev_any),   imported("readv", readv_any),   imported("send", send_any),
      imported("recv", recv_any),       imported("fwrite", fwrite_any), imported("fread", fread_any)};
  return functions;
}

}  // namespace tencache
