// The right to measure a node. Senders that name the same file measure one after the other, so no joule counts twice.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/filesystem.h"

namespace molen::collect {

class Turn {
 public:
  // Creates the file if it is absent. `name` says who this process is, for those that wait: one line of text. Throws
  // IoError if the file cannot be written, is a symbolic link or is no regular file.
  explicit Turn(const fs::path& file, std::string name = {});
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // Waits until no other process has the turn, and takes it. Returns false if the descriptor `stop` is readable first
  // (-1: none). After `patience_s` calls `still_waits` once with the name of the one that has it. Throws IoError if the
  // file cannot be locked, Error if there can be no thread.
  bool wait(int stop, double patience_s = 0, const std::function<void(const std::string&)>& still_waits = {});
  // Lets the next process have it.
  void give_up();
  // Returns whether another process has taken it. For whoever has given it up. Throws IoError.
  bool taken() const;
  // Returns the name of the one that took it last; "" if it gave none.
  std::string holder() const;

 private:
  bool try_take() const;
  bool take_beside(int stop, double patience_s, const std::function<void(const std::string&)>& still_waits);
  void write_name();
  const std::shared_ptr<File> file_;  // also of a thread that waits for the lock
  const std::string name_;
};

}  // namespace molen::collect
