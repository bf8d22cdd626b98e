// FOLDER/tune.jsonl: what a search is, and each trial that has ended (docs/formats/tune.md).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "store/lease.h"
#include "store/lines.h"
#include "tune/search.h"

namespace molen::tune {

// The conditions that outcomes depend on besides the plan: "frontier" and the text of its description, or the launcher
// and the steps of a measurement.
struct Conditions {
  std::string cluster;  // empty: measured
  std::string text;
};

// Returns "step", "out_of_memory", "refused", "failed" or "not_calibrated".
std::string_view outcome_name(plan::Outcome::Kind kind);

// Returns the first line of the journal.
Json header_of(const SearchPlan& plan, const Conditions& conditions);

Json to_json(const Trial& trial, const SearchPlan& plan);
// Throws UsageError with `origin` for a line of another form.
Trial trial_from_json(const Json& line, const SearchPlan& plan, std::string_view origin);

class Journal {
 public:
  // Takes the folder's lease, makes the folder, and reads the journal that may be there. `warn` gets a text when
  // another search may still be alive and this one has to wait. Throws store::LeaseHeld while another search writes
  // there, and UsageError if the journal is of another search, naming the first thing that differs. A line that is cut
  // short is left out, so that its trial runs again.
  Journal(const fs::path& folder, const SearchPlan& plan, const Conditions& conditions,
          const std::function<void(const std::string&)>& warn = {});

  const std::map<int, Trial>& kept() const { return kept_; }
  void require() const { lease_.require(); }  // throws store::LeaseHeld when another search has taken over
  // Throws Error when the line cannot be written, and store::LeaseHeld as `require` does.
  void append(const Trial& trial);

  const fs::path& path() const { return path_; }

 private:
  void read(const SearchPlan& plan, const Json& header);

  fs::path path_;
  store::Lease lease_;
  const SearchPlan& plan_;
  std::map<int, Trial> kept_;
  std::unique_ptr<store::LineWriter> lines_;
};

}  // namespace molen::tune
