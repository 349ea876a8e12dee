#include "executor/live_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <deque>
#include <list>
#include <thread>

#include "core/error.h"

namespace tencache {
namespace {

namespace asio = boost::asio;
using Protocol = asio::local::stream_protocol;
using boost::system::error_code;

constexpr std::size_t most_clients = 8;
constexpr std::chrono::seconds farewell{1};
constexpr std::chrono::milliseconds between_attempts{100};

Protocol::endpoint endpoint_of(const std::string& path) {
  constexpr std::size_t most_characters = 107;  // of sockaddr_un
  if (path.empty() || path.size() > most_characters) {
    throw Error("--live: the path of a socket has 1 to " + std::to_string(most_characters) + " characters: " + path);
  }
  return Protocol::endpoint(path);
}

bool same_user(Protocol::socket& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// A socket that a run left behind when it was killed; anything else is not ours to remove.
void remove_stale(const std::string& path, asio::io_context& context) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return;
  if (!S_ISSOCK(status.st_mode)) throw Error(path, 0, "exists and is no socket; choose another name for --live");
  Protocol::socket probe(context);
  error_code error;
  probe.connect(endpoint_of(path), error);
  if (!error) throw Error(path, 0, "another run is alive on this socket; choose another name for --live");
  if (error != asio::error::connection_refused) {
    throw Error(path, 0, "a socket that may be another's (" + error.message() + "); choose another name for --live");
  }
  unlink(path.c_str());
}

}  // namespace

struct LiveServer::State {
  struct Client {
    explicit Client(Protocol::socket s) : socket(std::move(s)) {}
    Protocol::socket socket;
    std::uint64_t next = 0;  // the piece that it is sent next
    std::shared_ptr<const std::string> sending;
    bool gone = false;
  };

  asio::io_context context{1};
  Protocol::acceptor acceptor{context};
  std::string path;
  ino_t inode = 0;  // of the path
  std::size_t most_kept_bytes;
  // All below belong to the thread of the context.
  std::shared_ptr<const std::string> first;
  std::deque<std::shared_ptr<const std::string>> kept;  // those after the first
  std::uint64_t forgotten = 0;                          // of them
  std::size_t kept_bytes = 0;
  std::list<Client> clients;
  std::atomic<std::size_t> attached{0};
  bool ending = false;
  asio::steady_timer deadline{context}, pause{context};
  std::thread thread;

  std::uint64_t piece_count() const { return first == nullptr ? 0 : 1 + forgotten + kept.size(); }

  void accept() {
    acceptor.async_accept([this](const error_code& error, Protocol::socket socket) {
      if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
      if (error) {  // no descriptor is free, say: that passes
        pause.expires_after(between_attempts);
        pause.async_wait([this](const error_code& stopped) {
          if (!stopped) accept();
        });
        return;
      }
      if (clients.size() < most_clients && same_user(socket)) {
        clients.emplace_back(std::move(socket));
        attached = clients.size();
        send(clients.back());
      }
      accept();
    });
  }

  void send(Client& client) {
    if (client.sending != nullptr || client.gone || client.next >= piece_count()) return;
    if (client.next > 0 && client.next <= forgotten) client.next = 1 + forgotten;  // too slow: a gap
    client.sending = client.next == 0 ? first : kept[static_cast<std::size_t>(client.next - 1 - forgotten)];
    asio::async_write(client.socket, asio::buffer(*client.sending),
                      [this, &client](const error_code& error, std::size_t) {
                        client.sending = nullptr;
                        ++client.next;
                        client.gone = static_cast<bool>(error);
                        send(client);
                        end_if_done();
                        if (client.gone) drop(client);
                      });
  }

  void drop(const Client& client) {
    clients.remove_if([&client](const Client& other) { return &other == &client; });
    attached = clients.size();
  }

  void add(std::string text) {
    auto piece = std::make_shared<const std::string>(std::move(text));
    if (first == nullptr) {
      first = std::move(piece);
    } else {
      kept_bytes += piece->size();
      kept.push_back(std::move(piece));
      while (kept_bytes > most_kept_bytes && kept.size() > 1) {
        kept_bytes -= kept.front()->size();
        kept.pop_front();
        ++forgotten;
      }
    }
    for (Client& client : clients) send(client);
  }

  void end_if_done() {
    if (!ending) return;
    const bool busy = std::ranges::any_of(clients, [](const Client& c) { return c.sending != nullptr && !c.gone; });
    if (!busy) close_all();
  }

  // The context then runs out of work by itself: what is still pending when it is destroyed would outlive its service.
  void close_all() {
    error_code ignored;
    acceptor.close(ignored);
    deadline.cancel();
    pause.cancel();
    for (Client& client : clients) client.socket.close(ignored);
  }
};

LiveServer::LiveServer(const std::string& path, std::size_t most_kept_bytes) try : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  s.most_kept_bytes = most_kept_bytes;
  const Protocol::endpoint endpoint = endpoint_of(path);
  remove_stale(path, s.context);
  s.acceptor.open(Protocol());
  // The name that `bind` makes has the socket's mode from the first moment: nobody else may ever connect, and no name
  // that was changed meanwhile is touched.
  if (fchmod(s.acceptor.native_handle(), S_IRUSR | S_IWUSR) != 0) {
    throw Error(path, 0, "the socket cannot be made its owner's own");
  }
  s.acceptor.bind(endpoint);  // refuses a name that there is, a link too
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) s.inode = status.st_ino;
  s.acceptor.listen();
  s.accept();
  s.thread = std::thread([&s] { s.context.run(); });
} catch (const boost::system::system_error& error) {
  throw Error(path, 0, std::string("cannot listen on this socket: ") + error.code().message());
}

LiveServer::~LiveServer() {
  State& s = *state_;
  asio::post(s.context, [&s] {
    s.ending = true;
    s.deadline.expires_after(farewell);
    s.deadline.async_wait([&s](const error_code& error) {
      if (!error) s.close_all();
    });
    s.end_if_done();
  });
  s.thread.join();
  // Somebody may have removed the name and given it to a run of their own.
  struct stat status {};
  if (lstat(s.path.c_str(), &status) == 0 && status.st_ino == s.inode) unlink(s.path.c_str());
}

void LiveServer::publish(std::string piece) {
  if (piece.empty()) return;
  State& s = *state_;
  asio::post(s.context, [&s, text = std::move(piece)]() mutable { s.add(std::move(text)); });
}

std::size_t LiveServer::attached() const { return state_->attached; }

struct LiveClient::State {
  asio::io_context context{1};
  Protocol::socket socket{context};
  std::array<char, 1 << 16> buffer{};
};

LiveClient::LiveClient(const std::string& path) try : state_(std::make_unique<State>()) {
  state_->socket.connect(endpoint_of(path));
  if (!same_user(state_->socket)) throw Error(path, 0, "is another user's");
} catch (const boost::system::system_error& error) {
  throw Error(path, 0, std::string("no run listens on this socket: ") + error.what());
}

LiveClient::~LiveClient() = default;

std::string_view LiveClient::read() {
  error_code error;
  const std::size_t size = state_->socket.read_some(asio::buffer(state_->buffer), error);
  return error ? std::string_view() : std::string_view(state_->buffer.data(), size);
}

bool LiveClient::more() const {
  error_code error;
  return state_->socket.available(error) > 0 && !error;
}

void LiveClient::stop() { ::shutdown(state_->socket.native_handle(), SHUT_RDWR); }

}  // namespace tencache
