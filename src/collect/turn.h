// The right to measure a node. Senders that name the same file measure one after the other, so no joule counts twice.
#pragma once

#include <optional>

#include "base/filesystem.h"

namespace molen::collect {

class Turn {
 public:
  // Creates the file if it is absent. Throws IoError if it cannot be written.
  explicit Turn(const fs::path& file);

  // Waits until no other process has the turn, and takes it. Returns false if the descriptor `stop` is readable first
  // (-1: none).
  bool wait(int stop);
  // Lets the next process have it.
  void give_up();
  // Returns whether another process has taken it. For whoever has given it up.
  bool taken() const;

 private:
  bool try_take() const;
  File file_;
};

}  // namespace molen::collect
