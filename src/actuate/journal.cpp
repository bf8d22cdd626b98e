#include "actuate/journal.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/filesystem.h"
#include "base/json.h"
#include "base/json_fields.h"
#include "base/temporary.h"
#include "base/utf8.h"

namespace molen::actuate {
namespace {

constexpr std::string_view kJournalPrefix = "actuators-", kJournalSuffix = ".json";
constexpr std::int64_t kMaxJournalBytes = 1 << 24;
constexpr std::int64_t kJournalVersion = 1;

const Json& array_in(const Json& object, std::string_view key, const std::string& origin) {
  const Json& value = json_member(object, key, origin);
  if (!value.is_array()) throw UsageError("{}: '{}' must be a list", origin, key);
  return value;
}

State state_in(const Json& list, std::size_t parts, const std::string& origin) {
  if (!list.is_array() || list.size() != parts) throw UsageError("{}: a state must have {} values", origin, parts);
  State state;
  for (const Json& value : list) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
      throw UsageError("{}: a state holds whole numbers that are not negative", origin);
    state.push_back(value.get<std::int64_t>());
  }
  return state;
}

JournalEntry entry_in(const Json& json, const std::string& origin) {
  const JsonFields fields(json, origin);
  JournalEntry entry;
  entry.id = fields.text("id");
  if (entry.id.empty()) throw UsageError("{}: 'id' is empty", origin);
  for (const Json& name : array_in(json, "parts", origin)) {
    if (!name.is_string()) throw UsageError("{}: 'parts' holds names", origin);
    entry.parts.push_back(name.get<std::string>());
  }
  if (entry.parts.empty()) throw UsageError("{}: '{}' has no parts", origin, entry.id);
  entry.original = state_in(json_member(json, "original", origin), entry.parts.size(), origin);
  for (const Json& state : array_in(json, "written", origin))
    entry.written.push_back(state_in(state, entry.parts.size(), origin));
  return entry;
}

// Returns why an entry does not fit an actuator; empty where it does.
std::string misfit(const JournalEntry& entry, const ActuatorInfo& info) {
  if (entry.parts.size() != info.parts.size())
    return fmt::format("it had {} parts and has {}", entry.parts.size(), info.parts.size());
  for (std::size_t i = 0; i < info.parts.size(); ++i) {
    const Part& part = info.parts[i];
    if (entry.parts[i] != part.name) return fmt::format("it has no part {}", entry.parts[i]);
    const std::int64_t value = entry.original[i];
    const bool unlocked = !info.readable && value == 0;
    if (!unlocked && (value <= 0 || (part.most != 0 && value > part.most)))
      return fmt::format("{} is no value of {}", quantity_text(info.kind, value), part.name);
  }
  return "";
}

void add_entry(Restoration& all, const JournalEntry& entry, Actuators& here) {
  const auto cannot = [&](const std::string& why) {
    all.failed += static_cast<int>(entry.parts.size());
    all.notes.push_back(fmt::format("{} cannot be restored: {}", printable(entry.id), printable(why)));
  };
  const auto at = std::find_if(here.actuators.begin(), here.actuators.end(),
                               [&](const auto& a) { return a->info().id == entry.id; });
  if (at == here.actuators.end()) {
    std::string why = "this machine has no such setting";
    for (const Unavailable& u : here.unavailable)
      if (entry.id.rfind(u.meter + ":", 0) == 0) why = u.reason;
    return cannot(why);
  }
  Actuator& actuator = **at;
  if (const std::string why = misfit(entry, actuator.info()); !why.empty()) return cannot(why);
  const Restoration one = actuator.restore_to(entry.original, entry.written);
  if (one.restored > 0)
    all.notes.push_back(fmt::format(
        "{} of {}: put back to {}", actuator.info().name, actuator.info().scope,
        actuator.info().readable
            ? quantity_text(actuator.info().kind, *std::max_element(entry.original.begin(), entry.original.end()))
            : "no limit"));
  all.notes.insert(all.notes.end(), one.notes.begin(), one.notes.end());
  all.restored += one.restored;
  all.left_alone += one.left_alone;
  all.failed += one.failed;
}

}  // namespace

std::string journal_text(const Journal& journal) {
  Json entries = Json::array();
  for (const JournalEntry& e : journal.entries)
    entries.push_back({{"id", e.id}, {"parts", e.parts}, {"original", e.original}, {"written", e.written}});
  const store::Owner& o = journal.owner;
  const Json owner{{"host", o.host},
                   {"boot", o.boot},
                   {"pid_namespace", o.pid_namespace},
                   {"pid", o.pid},
                   {"process_start", o.process_start},
                   {"job", o.job}};
  return Json{{"journal_version", kJournalVersion}, {"owner", owner}, {"entries", entries}}.dump(1) + "\n";
}

Journal parse_journal(std::string_view text, const std::string& origin) {
  const Json json = parse_json(text, origin, 8);
  const JsonFields fields(json, origin);
  if (const std::int64_t version = fields.integer("journal_version"); version != kJournalVersion)
    throw UsageError("{}: journal_version {} is not that of this molen, {}", origin, version, kJournalVersion);
  Journal journal;
  const JsonFields owner(json_member(json, "owner", origin), origin + ": owner");
  journal.owner = {owner.text("host"),
                   owner.text("boot"),
                   owner.text("pid_namespace"),
                   owner.integer("pid"),
                   owner.integer("process_start"),
                   owner.text("job")};
  std::set<std::string> ids;
  for (const Json& entry : array_in(json, "entries", origin)) {
    journal.entries.push_back(entry_in(entry, origin));
    if (!ids.insert(journal.entries.back().id).second)
      throw UsageError("{}: '{}' stands twice", origin, journal.entries.back().id);
  }
  return journal;
}

fs::path journal_file(const fs::path& folder, const store::Owner& owner) {
  std::string host = owner.host;
  std::replace(host.begin(), host.end(), '/', '_');
  return folder / fmt::format("{}{}-{}{}", kJournalPrefix, host, owner.pid, kJournalSuffix);
}

bool is_journal_name(std::string_view name) {
  return name.starts_with(kJournalPrefix) && name.ends_with(kJournalSuffix);
}

Journal read_journal(const fs::path& file) {
  const File open = File::open(file);
  struct stat status {};
  if (::fstat(open.descriptor(), &status) == 0 && status.st_uid != ::geteuid())
    throw UsageError("{}: belongs to user {}; only a journal of one's own is restored", file.string(), status.st_uid);
  if (open.size() > kMaxJournalBytes)
    throw UsageError("{}: {} bytes, more than the limit of {}", file.string(), open.size(), kMaxJournalBytes);
  std::string text(static_cast<std::size_t>(open.size()), '\0');
  open.read(text.data(), text.size(), 0);
  return parse_journal(text, file.string());
}

void remove_journal(const fs::path& file) {
  const std::string name = file.filename().string();
  for (const DirectoryEntry& entry : list_directory(file.parent_path()))
    if (is_temporary_name(entry.name) && entry.name.starts_with(name)) remove_file(file.parent_path() / entry.name);
  remove_file(file);
}

std::int64_t unfinished_of(std::string_view name, const store::Owner& self) {
  if (!is_temporary_name(name)) return 0;
  const std::size_t dash = name.rfind('-', name.rfind(kJournalSuffix));
  store::Owner owner = self;
  if (dash == std::string_view::npos ||
      std::from_chars(name.data() + dash + 1, name.data() + name.size(), owner.pid).ec != std::errc())
    return 0;
  return name.starts_with(journal_file("", owner).string()) ? owner.pid : 0;
}

Restoration restore_journal(const Journal& journal, Actuators& here) {
  Restoration all;
  for (const JournalEntry& entry : journal.entries)
    if (!entry.written.empty()) add_entry(all, entry, here);
  return all;
}

}  // namespace molen::actuate
