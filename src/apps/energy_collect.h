// molen energy collect | send: the energy of a site's nodes in one database.
#pragma once

#include "apps/cli.h"

namespace molen::apps {

void add_collect_verbs(CLI::App& energy, Chosen& chosen);

}  // namespace molen::apps
