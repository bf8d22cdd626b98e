// FOLDER/sweep.jsonl (docs/formats/sweep.md): what earlier sweeps left in a folder, and the rows of this one.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/sweep.h"
#include "store/lease.h"
#include "store/lines.h"

namespace molen::plan {

class SweepFile {
 public:
  // Takes the folder's lease, creates the folder if it is missing, and reads the file. `warn` receives failures to
  // write a row, and a text when another sweep may still be alive and this one has to wait.
  // Throws store::LeaseHeld while another sweep writes there, and UsageError with "PATH:LINE" for a damaged line. Only
  // the end of a last line may be missing, because a sweep that is killed leaves that: the line is removed.
  SweepFile(const std::filesystem::path& folder, const std::function<void(const std::string&)>& warn);

  // The rows by their identity; of several lines with the same identity the last one.
  const std::map<std::string, TrialRow>& kept() const { return kept_; }
  // Adds a row. The row of a measured trial is on disk when this returns. Throws store::LeaseHeld when another sweep
  // has taken over.
  void append(const SweepPlan& plan, const TrialRow& row);
  // Writes the rows of this sweep in their order, and behind them those of other sweeps in the same folder. Throws
  // store::LeaseHeld when another sweep has taken over.
  void finish(const SweepPlan& plan, const std::vector<TrialRow>& rows);

 private:
  void read();

  std::filesystem::path path_;
  store::Lease lease_;
  std::map<std::string, TrialRow> kept_;
  std::vector<std::pair<std::string, std::string>> others_;  // trial and line, in the order of the file
  std::unique_ptr<store::LineWriter> lines_;
};

}  // namespace molen::plan
