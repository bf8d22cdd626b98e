// The figures from which power is estimated where no meter reads it (docs/energy.md, "Estimates").
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "energy/meter.h"
#include "energy/power_curve.h"

namespace molen::energy {

struct PartFigures {
  std::string scope;   // as in scope.h
  PowerCurve curve;    // of the whole part
  std::string source;  // for people: where the figures are from
};

struct PowerFigures {
  std::vector<PartFigures> by_cpus;        // parts whose power follows from the utilisation of the processors
  std::optional<PartFigures> of_each_gpu;  // by the utilisation of the GPU; the scope is "gpu"
  // The processor for which `by_cpus` holds, and its number on the machine; empty and 0: any.
  std::string processor;
  int cpus = 0;
  std::string lacking;  // for people: the parts for which there are no figures, and what would give them
};

}  // namespace molen::energy
