// molen energy daemon: meters and settings of a node for jobs without rights.
#pragma once

#include "apps/cli.h"

namespace molen::apps {

void add_daemon_verb(CLI::App& energy, Chosen& chosen);

}  // namespace molen::apps
