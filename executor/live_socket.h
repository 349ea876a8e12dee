// Watching a run from another process of the same user: a local socket through which text flows one way.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tencache {

// Listens at a path that only its owner may use, and sends everyone who attaches the first piece, then all that are
// still kept, then those to come. Never makes the publisher wait: beyond `most_kept_bytes` the oldest pieces but the
// first are forgotten, and who is slower than that misses them.
class LiveServer {
 public:
  // Throws Error if nobody can listen there: something else has the name, or another run is alive on it.
  explicit LiveServer(const std::string& path, std::size_t most_kept_bytes = std::size_t{256} << 20);
  // Gives those attached a second to take what is left; then the socket is gone.
  ~LiveServer();
  LiveServer(const LiveServer&) = delete;
  LiveServer& operator=(const LiveServer&) = delete;

  // From any thread.
  void publish(std::string piece);
  std::size_t attached() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The other end.
class LiveClient {
 public:
  // Throws Error where no run of this user listens.
  explicit LiveClient(const std::string& path);
  ~LiveClient();
  LiveClient(const LiveClient&) = delete;
  LiveClient& operator=(const LiveClient&) = delete;

  // What arrived; waits for something. Empty when the run is over, or after `stop`.
  std::string_view read();
  // `read` would not wait.
  bool more() const;
  // From any thread: `read` returns at once.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tencache
