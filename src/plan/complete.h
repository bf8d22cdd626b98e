// Completes a configuration from the files that it names, and checks it against them.
#pragma once

#include "config/config.h"

namespace molen::plan {

// A config::Completion. Takes model.vocabulary from the tokenizer when nothing else gives it. Refuses an impossible
// model, and sequences that are longer than the model takes.
void complete(config::Config& config, config::Problems& problems);

// Adds a problem for everything that a training needs and that is missing: a model, data, and the files that the
// configuration names.
void require_training(const config::Config& config, config::Problems& problems);

}  // namespace molen::plan
