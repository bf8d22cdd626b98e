// molen energy calibrate, and the model that `molen energy list` and `live` show.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli.h"
#include "energy/power_model.h"

namespace molen::apps {

struct ModelArguments {
  std::string model = "off", cluster;  // as energy.model and --cluster of `molen train`
};
void add_model_options(CLI::App& verb, ModelArguments& arguments);

// Returns the model on this machine; null where none is asked for, or where `measured` has all parts. Throws UsageError
// as sim::power_figures and energy::open_model do.
std::unique_ptr<energy::PowerModel> open_model_here(const ModelArguments& arguments, const energy::Meters& measured);

void add_power_calibration_verb(CLI::App& energy, Chosen& chosen);

}  // namespace molen::apps
