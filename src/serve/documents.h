// Documents of a run for other programs and readers: a row of emissions as CodeCarbon writes it, and a model card.
#pragma once

#include "base/file.h"
#include "serve/run_data.h"

namespace molen::serve {

// Returns the header and one row of CSV, with the columns of CodeCarbon's emissions.csv in its order and units: kWh
// with the PUE, kg CO2e, W, l. A column that the run knows nothing of is empty. Throws UsageError when no energy was
// measured, or no site says what it emits.
std::string emissions_csv(const RunData& run);

// Returns a model card in Markdown, with the metadata that Hugging Face reads at its head (`co2_eq_emissions` where the
// emissions are known). It says what the run knows; a person writes the rest, which the card marks.
std::string model_card(const RunData& run);

void write_emissions(const fs::path& run_directory, const fs::path& output);
// Throws UsageError if the file exists, because people add to such a card.
void write_model_card(const fs::path& run_directory, const fs::path& output);

}  // namespace molen::serve
