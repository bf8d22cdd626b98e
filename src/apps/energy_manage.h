// molen energy manage
#pragma once

#include "apps/cli.h"

namespace molen::apps {

void add_manage_verb(CLI::App& energy, Chosen& chosen);

}  // namespace molen::apps
