// Measures how the power of a machine follows from the utilisation of its processors, where meters can be read, for
// machines of the same kind where they cannot: the file of `molen energy calibrate` (docs/formats/power.md).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "energy/machine.h"
#include "energy/meter.h"
#include "energy/power_figures.h"

namespace molen::energy {

struct PowerCalibration {
  std::string host, created;  // created: UTC
  std::string processor;      // its model
  int cpus = 0;               // of the machine
  struct Part {
    std::string scope, meter;  // meter: name and detail of the one that measured
    std::string source;        // its source: "counter", "power"
    std::vector<PowerPoint> points;
  };
  std::vector<Part> parts;
  std::vector<std::string> left_out;  // scopes that could not be measured, and why
};

struct CalibrationLoads {
  double seconds = 5.0;   // of each measurement
  double settle_s = 1.0;  // after a change of the load
  int rounds = 3;
  // Keeps this number of processors busy from now on.
  std::function<void(int)> load;
  std::function<void(const std::string&)> tell = {};  // progress, for people
};

// Measures with no processor, a quarter, half, three quarters and all of them busy, in rounds, so that a drift is in
// the bounds of all loads. The value of a point is the mean over rounds, its bounds the least and the greatest of them.
// GPUs and what contains them are left out, except a node without GPUs. Throws Error if this process may not use all
// processors, if other work kept them busy, or if no meter could be read at each load.
PowerCalibration calibrate_power(Meters meters, const Machine& machine, const CalibrationLoads& loads, bool gpus);

Json to_json(const PowerCalibration& calibration);
// Throws UsageError that names origin and key.
PowerCalibration power_calibration_from_json(const Json& json, const std::string& origin);
PowerCalibration read_power_calibration(const fs::path& file);

PowerFigures figures_of(const PowerCalibration& calibration, const std::string& origin);

}  // namespace molen::energy
