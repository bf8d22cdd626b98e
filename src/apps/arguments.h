// What is wrong with a command line, said once and with the nearest name: verbs that DESIGN names and nothing does yet,
// misspelt verbs and options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace molen::apps {

// Throws UsageError where a word in the place of a verb is none: "`molen plan` is not built yet ...", or "unknown
// command 'trian' ...; did you mean 'train'?". Before parsing, so that --help behind it is no way round.
void require_verbs(const CLI::App& app, const std::vector<std::string>& words);

// Why CLI11 refused `words`, in the form of molen's other errors.
std::string explain(const CLI::App& app, const std::vector<std::string>& words, const CLI::ParseError& error);

// "Not built yet: ...", for the end of the top help.
std::string unbuilt_note();

}  // namespace molen::apps
