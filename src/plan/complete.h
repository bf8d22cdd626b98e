// What files beside a configuration say about it.
#pragma once

#include "config/config.h"

namespace molen::plan {

// A config::Completion: model.vocabulary from the tokenizer where nothing else says it; refuses a model that cannot be,
// and sequences that are longer than it takes.
void complete(config::Config& config, config::Problems& problems);

// What a training needs and the configuration lacks: a model, data, and the files that it names.
void require_training(const config::Config& config, config::Problems& problems);

}  // namespace molen::plan
