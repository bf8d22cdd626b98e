// runs/<name>/: the files of a run (docs/formats).
#pragma once

#include <cstdint>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "store/history.h"
#include "store/lines.h"
#include "store/metrics.h"

namespace molen::store {

class RunDirectory {
 public:
  // Creates missing files, keeps existing ones, and enters this attempt into run.json durably. `warn` receives later
  // write failures. They do not end the run: the data are kept and written later.
  explicit RunDirectory(fs::path path, LineWriter::Warn warn = nullptr);

  const fs::path& path() const { return path_; }
  fs::path metrics() const { return path_ / "metrics.jsonl"; }
  fs::path events() const { return path_ / "events.jsonl"; }
  fs::path tensorboard() const { return path_ / "tensorboard"; }
  fs::path checkpoints() const { return path_ / "checkpoints"; }

  const RunIdentity& identity() const { return identity_; }
  std::int64_t attempt() const { return identity_.attempts; }  // number of this attempt, from 1

  void write_config(std::string_view toml) const;
  void write_environment(const Json& environment) const;
  void write_program(std::string_view text, int stage = 0) const;
  void write_trace(std::string_view json) const;
  void write_prediction(const Json& json) const;

  void append(StepMetrics metrics);
  // Appends {"event": name, "wall_time_s": ..., "attempt": ..., fields...} to events.jsonl.
  void event(const std::string& name, const Json& fields);
  void energy(const Json& line) { energy_.append(line.dump()); }
  // Makes metrics, events and energy so far durable; a failure is reported and tried again.
  void sync();

 private:
  fs::path path_;
  RunIdentity identity_;
  LineWriter metrics_, events_, energy_;
};

// The name of the file with a stage's program: program.txt; for the other stages of a pipeline program-stage-N.txt.
std::string program_name(int stage);

// Records one event of an attempt that has not opened the directory yet. An event that cannot be written is lost: it is
// reported elsewhere too.
void record_event(const fs::path& run, const std::string& name, std::int64_t attempt, const Json& fields);

}  // namespace molen::store
