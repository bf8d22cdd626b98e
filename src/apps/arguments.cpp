#include "apps/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "base/error.h"
#include "base/suggest.h"

namespace molen::apps {
namespace {

struct Unbuilt {
  const char* verb;
  const char* would;
};
// Commands that are planned and have no code yet. Remove a line when its command is built.
constexpr Unbuilt kUnbuilt[] = {
    {"molen serve", "serve text over HTTP; `molen generate` writes it to the terminal"},
    {"molen submit", "write a Slurm job; `srun molen train CONFIG` in a job script trains"},
    {"molen data mix", "write a mixture; `weight` in data.train mixes while training"},
};

std::vector<const CLI::App*> verbs(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : verbs(app)) names.push_back(verb->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// The command that the words select: the last verb found, and the position in the words.
struct Place {
  const CLI::App* app;
  std::string name;         // "molen data"
  std::size_t first, next;  // words behind it: all, and the first that may be a verb
  bool verb_open = false;   // the word there should be a verb but is not
};

Place place_of(const CLI::App& app, const std::vector<std::string>& words) {
  Place p{&app, "molen", 0, 0};
  for (; p.next < words.size(); ++p.next) {
    const auto subs = verbs(*p.app);
    if (subs.empty()) break;
    const std::string& word = words[p.next];
    if (!word.empty() && word.front() == '-') continue;  // only flags come before a verb
    const auto found = std::find_if(subs.begin(), subs.end(), [&](const auto* s) { return s->get_name() == word; });
    if (found == subs.end()) {
      p.verb_open = true;
      break;
    }
    p.app = *found;
    p.name += " " + word;
    p.first = p.next + 1;
  }
  return p;
}

std::string help_of(const std::string& name) {
  return fmt::format("(`{} --help` lists what there is)", name);
}

// Returns the first word that looks like an option but is not one of the command's. Such a word is never taken for a
// value.
std::optional<std::string> unknown_option(const CLI::App& app, const std::vector<std::string>& words,
                                          std::size_t first) {
  for (std::size_t i = first; i < words.size() && words[i] != "--"; ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (name.size() < 2 || name[0] != '-' || std::isdigit(static_cast<unsigned char>(name[1])) || name[1] == '.')
      continue;
    if (app.get_option_no_throw(name) == nullptr) return name;
  }
  return std::nullopt;
}

}  // namespace

void require_verbs(const CLI::App& app, const std::vector<std::string>& words) {
  const Place p = place_of(app, words);
  if (!p.verb_open) return;
  const std::string& word = words[p.next];
  for (const Unbuilt& u : kUnbuilt)
    if (p.name + " " + word == u.verb) throw UsageError("`{}` is not built yet; it will {}", u.verb, u.would);
  throw UsageError("unknown command '{}' of `{}`{} {}", word, p.name, did_you_mean(word, verbs_of(*p.app)),
                   help_of(p.name));
}

std::string explain(const CLI::App& app, const std::vector<std::string>& words, const CLI::ParseError& error) {
  const Place p = place_of(app, words);
  if (const auto option = unknown_option(*p.app, words, p.first))
    return fmt::format("unknown option '{}' of `{}`{} {}", *option, p.name, did_you_mean(*option, options_of(*p.app)),
                       help_of(p.name));
  if (const auto names = verbs_of(*p.app); !names.empty())
    return fmt::format("`{}` needs a command: {}", p.name, fmt::join(names, ", "));
  return fmt::format("`{}`: {} {}", p.name, error.what(), help_of(p.name));
}

std::string unbuilt_note() {
  std::vector<std::string> names;
  for (const Unbuilt& u : kUnbuilt) names.push_back(u.verb + std::string("molen ").size());
  return fmt::format("Not built yet: {}\n", fmt::join(names, ", "));
}

}  // namespace molen::apps
