// Completes a configuration from the files that the configuration names, and checks it against these files.
#pragma once

#include "config/config.h"

namespace molen::plan {

// Takes model.vocabulary from the tokenizer when nothing else gives it. Refuses an impossible model, and sequences that
// are longer than the model takes. Callers pass this function as a config::Completion.
void complete(config::Config& config, config::Problems& problems);

// Adds a problem for everything that a training needs and that is missing: a model, data, and the files that the
// configuration names; and for meters that would be read more often than every millisecond. The latter is no rule of
// the key, because checkpoints of older versions may hold such a configuration.
void require_training(const config::Config& config, config::Problems& problems);

}  // namespace molen::plan
