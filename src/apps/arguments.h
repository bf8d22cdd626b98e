// Errors of a command line, reported once with the nearest name: verbs that are planned but not built yet,
// misspelt verbs and options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace molen::apps {

// Throws UsageError when a word in the place of a verb is not a verb: "`molen serve` is not built yet ...", or "unknown
// command 'trian' ...; did you mean 'train'?". Call it before parsing, so that a later --help does not skip it.
void require_verbs(const CLI::App& app, const std::vector<std::string>& words);

// Returns the reason why CLI11 refused `words`, in the form of molen's other errors.
std::string explain(const CLI::App& app, const std::vector<std::string>& words, const CLI::ParseError& error);

// "Not built yet: ...", for the end of the top help.
std::string unbuilt_note();

}  // namespace molen::apps
