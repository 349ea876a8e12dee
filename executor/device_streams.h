// Streams of an accelerator, and events behind what they were given: what work on it is ordered by (device_order.h).
//
// Errors: functions throw Error with the driver's own words. Threading: any thread may call.
#pragma once

#include <memory>
#include <utility>

#include "core/units.h"
#include "executor/accelerator.h"

namespace tencache {

// The driver's own handles. A stream of the program's may be null, CUDA's legacy stream.
using DeviceStream = void*;
using DeviceEvent = void*;

class DeviceStreams {
 public:
  // What it made has been given back.
  virtual ~DeviceStreams() = default;

  // Ordered with no other stream.
  virtual DeviceStream make_stream() = 0;
  virtual void destroy_stream(DeviceStream stream) noexcept = 0;
  // Waits for all that the stream was given.
  virtual void await_stream(DeviceStream stream) = 0;

  // Copies that the stream is given, behind all that it has, and that nobody waits for here: CopyEngine::wait waits for
  // all of the stream. The stream outlives them.
  virtual std::unique_ptr<CopyEngine> copies_on(DeviceStream stream) = 0;

  // An event behind all that the stream was given so far. `let_go` when nobody asks for it any more.
  virtual DeviceEvent record(DeviceStream stream) = 0;
  virtual void let_go(DeviceEvent event) noexcept = 0;
  // The same, and `between` says when the stream came to it.
  virtual DeviceEvent record_timed(DeviceStream stream) = 0;
  virtual void let_go_timed(DeviceEvent event) noexcept = 0;
  // Of two timed ones that are over.
  virtual Nanoseconds between(DeviceEvent first, DeviceEvent second) = 0;
  // What the stream is given from now on comes after the event.
  virtual void wait(DeviceStream stream, DeviceEvent event) = 0;
  virtual bool over(DeviceEvent event) = 0;
  // The calling thread sleeps until it is over.
  virtual void await(DeviceEvent event) = 0;
};

// A stream of one's own. Nothing is under way on it when it goes.
class OwnStream {
 public:
  explicit OwnStream(std::shared_ptr<DeviceStreams> streams)
      : streams_(std::move(streams)), stream_(streams_->make_stream()) {}
  ~OwnStream() { streams_->destroy_stream(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  DeviceStream get() const { return stream_; }

 private:
  std::shared_ptr<DeviceStreams> streams_;
  DeviceStream stream_;
};

}  // namespace tencache
