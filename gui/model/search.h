// The ops and tensors whose names hold a text, and where they lie on the tracks of the runs. Long runs are searched
// in the background: `update` takes over what was found. One thread owns it.
#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "gui/model/run.h"

namespace tencache::gui {

// An op or a tensor that is selected in one of several runs, and where it is in the others.

// `span` is the one that was chosen.
struct Selection {
  enum class Kind : std::uint8_t { nothing, op, tensor };
  Kind kind = Kind::nothing;
  std::uint32_t id = none;
  std::size_t run = 0;
  std::uint32_t span = none;
  bool operator==(const Selection&) const = default;
};

// The id in `to` of what is selected in `from`: of the same name, in the same order of those that have it; or `none`.
std::uint32_t same_thing(const Run& from, const Run& to, const Selection& selection);

// Remembers the answers to the last question, which views ask in every frame.
class SelectedInRuns {
 public:
  // Ids by run. `generation` differs where the runs do.
  const std::vector<std::uint32_t>& find(const Selection& selection, const std::vector<RunPointer>& runs,
                                         std::uint64_t generation);

 private:
  Selection selection_;
  std::uint64_t generation_ = 0;
  std::vector<std::uint32_t> ids_;
};

class Search {
 public:
  // An op matches by its name or module, in any case. Empty: nothing does.
  void look_for(const std::string& text);
  void set_runs(std::vector<RunPointer> runs);
  const std::string& text() const { return text_; }
  // Of the first run.
  const std::vector<OpIndex>& ops() const { return ops_; }
  const std::vector<TensorId>& tensors() const { return tensors_; }
  // The next of these, or the one before (`step` -1); nothing where there is none. `go_on`: from the one taken last.
  std::optional<Selection> next(int step, bool go_on);
  bool matches(std::size_t run, const Span& span) const;
  // Where the matching spans of a track lie; null where there are none, and as long as many of them are being sought.
  const Track* marks(std::size_t run, std::size_t track) const;

  bool busy() const { return marking_.valid(); }
  bool update();  // whether anything changed
  void wait() const {
    if (busy()) marking_.wait();
  }

 private:
  using Marks = std::vector<std::vector<Track>>;  // by run and track
  void find();
  void mark();

  std::vector<RunPointer> runs_;
  std::string text_;
  std::vector<OpIndex> ops_;
  std::vector<TensorId> tensors_;
  std::vector<std::vector<std::uint8_t>> op_matches_, tensor_matches_;  // by run and id
  std::optional<std::size_t> match_;                                    // of ops and tensors found; none chosen yet
  Marks marks_;
  std::future<Marks> marking_;
  bool mark_again_ = false;  // what is being sought is out of date
};

}  // namespace tencache::gui
