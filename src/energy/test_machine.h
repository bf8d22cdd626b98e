// A folder in place of /sys and /proc, and a clock that the test sets.
#pragma once

#include <unistd.h>

#include <fstream>

#include "energy/machine.h"

namespace molen::energy {

class FakeMachine {
 public:
  FakeMachine() {
    static int number = 0;
    root_ = fs::temp_directory_path() / fmt::format("molen_energy_{}_{}", ::getpid(), number++);
    fs::create_directories(root_ / "sys");
    fs::create_directories(root_ / "proc");
    machine.sys = root_ / "sys";
    machine.proc = root_ / "proc";
    machine.dev = root_ / "dev";
    machine.clock = [this] { return time; };
    machine.sleep = [this](double s) {
      time += s;
      if (tick) tick();
    };
  }
  ~FakeMachine() { fs::remove_all(root_); }
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;

  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  void zone(const std::string& id, const std::string& name, std::uint64_t uj, std::uint64_t range = 65532610987) const {
    const std::string folder = "sys/class/powercap/" + id;
    write(folder + "/name", name + "\n");
    write(folder + "/energy_uj", std::to_string(uj) + "\n");
    write(folder + "/max_energy_range_uj", std::to_string(range) + "\n");
  }
  const fs::path& root() const { return root_; }

  Machine machine;
  double time = 100;
  std::function<void()> tick;  // after each sleep

 private:
  fs::path root_;
};

}  // namespace molen::energy
