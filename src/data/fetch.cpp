#include "data/fetch.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "data/dep5.h"
#include "data/json_fields.h"
#include "data/process.h"
#include "data/recipes.h"

namespace molen::data {
namespace {

constexpr int kAttempts = 3;

std::string last_lines(const std::string& output) {
  std::istringstream lines(output);
  std::vector<std::string> errors;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("E:") || line.starts_with("Err") || line.find("error") != std::string::npos)
      errors.push_back(line);
  std::string text;
  for (std::size_t i = errors.size() > 2 ? errors.size() - 2 : 0; i < errors.size(); ++i)
    text += (text.empty() ? "" : " / ") + errors[i];
  return text.empty() ? output.substr(output.size() > 300 ? output.size() - 300 : 0) : text;
}

// Returns the value of a control field: `dpkg-deb -f FILE Field`.
std::string control_field(const fs::path& deb, const std::string& field) {
  const ProcessResult result = run_process({"dpkg-deb", "-f", deb.string(), field}, ".");
  if (result.status == 127)
    throw Error("dpkg-deb is not installed: packages can only be unpacked on Debian and its kin");
  if (result.status != 0) throw Error("{}: not a readable Debian package: {}", deb.string(), last_lines(result.output));
  std::string value = result.output;
  while (!value.empty() && value.back() == '\n') value.pop_back();
  return value;
}

// Returns the SHA-256 that the signed package index gives for this version, or "".
std::string index_hash(const std::string& package, const std::string& version) {
  const ProcessResult result = run_process({"apt-cache", "show", package + "=" + version}, ".");
  if (result.status != 0) return "";
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("SHA256: ")) return line.substr(8);
  return "";
}

// Returns the archive of `package` among the files of `folder`, or an empty path.
fs::path find_archive(const fs::path& folder, const std::string& package) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(package + "_") && name.ends_with(".deb")) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found.empty() ? fs::path() : found.back();
}

void download(const std::string& package, const fs::path& archives, const Progress& progress) {
  std::string why;
  bool updated = false;
  for (int attempt = 1; attempt <= kAttempts; ++attempt) {
    const ProcessResult result =
        run_process({"apt-get", "download", "-q", "-o", "Acquire::Retries=2", package}, archives);
    if (result.status == 0 && !find_archive(archives, package).empty()) return;
    if (result.status == 127)
      throw Error("apt-get is not installed: put the .deb files of the set into {} and run this again",
                  archives.string());
    why = last_lines(result.output);
    const bool no_index = result.output.find("Unable to locate package") != std::string::npos ||
                          result.output.find("No packages found") != std::string::npos ||
                          result.output.find("no installation candidate") != std::string::npos ||
                          result.output.find("404 ") != std::string::npos;
    if (no_index && !updated) {
      progress("the package index lacks " + package + " or is old: apt-get update");
      const ProcessResult update = run_process({"apt-get", "update", "-q"}, archives);
      if (update.status != 0)
        throw Error(
            "{}: not in the package index, and apt-get update failed ({}): run `sudo apt-get update`, or put its .deb "
            "file into {} and run this again",
            package, last_lines(update.output), archives.string());
      updated = true;
    } else if (attempt < kAttempts) {
      progress(fmt::format("{}: attempt {} failed, trying again", package, attempt));
      std::this_thread::sleep_for(std::chrono::seconds(2 * attempt));
    }
  }
  throw Error("{}: cannot be downloaded ({}): check the network; or put its .deb file into {} and run this again",
              package, why, archives.string());
}

FetchedPackage describe(const std::string& package, const fs::path& deb) {
  FetchedPackage p;
  p.package = package;
  p.version = control_field(deb, "Version");
  p.architecture = control_field(deb, "Architecture");
  if (control_field(deb, "Package") != package)
    throw Error("{}: holds package '{}', not '{}'", deb.string(), control_field(deb, "Package"), package);
  p.archive = deb.filename().string();
  p.archive_bytes = static_cast<std::int64_t>(fs::file_size(deb));
  p.archive_sha256 = sha256_file(deb);
  p.retrieved = utc_timestamp(wall_time());
  const std::string expected = index_hash(package, p.version);
  if (!expected.empty() && expected != p.archive_sha256)
    throw Error("{}: its SHA-256 {} is not the one of the signed package index, {}: delete it and run this again",
                deb.string(), p.archive_sha256, expected);
  p.checked = expected.empty() ? "" : "signed package index";
  return p;
}

Json package_json(const FetchedPackage& p) {
  return Json{{"package", p.package},
              {"version", p.version},
              {"architecture", p.architecture},
              {"archive", p.archive},
              {"archive_bytes", p.archive_bytes},
              {"archive_sha256", p.archive_sha256},
              {"checked", p.checked},
              {"retrieved", p.retrieved},
              {"licence", to_json(p.licence)}};
}

// Package names become folder names: only letters, digits and + - . are allowed, as in Debian.
void check_package_name(const std::string& name, const std::string& origin) {
  bool good = !name.empty() && name.size() < 100 && std::isalnum(static_cast<unsigned char>(name[0]));
  for (char c : name) good = good && (std::isalnum(static_cast<unsigned char>(c)) || c == '+' || c == '-' || c == '.');
  if (!good) throw UsageError("{}: '{}' is not a package name", origin, name);
}

const FetchedPackage* known(const FetchRecord& record, const std::string& package) {
  for (const FetchedPackage& p : record.packages)
    if (p.package == package) return &p;
  return nullptr;
}

// Returns the copyright file's path below root/, with links into other packages resolved, or "" when there is none.
std::string copyright_path(const fs::path& folder, const std::string& package) {
  const fs::path doc = folder / "root" / package / "usr/share/doc";
  std::string owner = package, name = package;
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(doc / package, error))) {
    name = fs::read_symlink(doc / package, error).filename().string();
    owner = fs::exists(doc / name / "copyright", error) ? package : name;
  }
  const std::string path = owner + "/usr/share/doc/" + name + "/copyright";
  return fs::is_regular_file(folder / "root" / path, error) ? path : "";
}

}  // namespace

void unpack_archive(const fs::path& archive, const fs::path& target) {
  // Unpacks beside the target and renames the folder, so that a half-unpacked package never has the name of a whole
  // one.
  TemporaryDirectory part(target);
  const ProcessResult result =
      run_process({"dpkg-deb", "-x", fs::absolute(archive).string(), fs::absolute(part.path()).string()}, ".");
  if (result.status == 127)
    throw Error("dpkg-deb is not installed: packages can only be unpacked on Debian and its kin");
  if (result.status != 0) throw Error("{}: cannot be unpacked: {}", archive.string(), last_lines(result.output));
  remove_tree(target);
  part.publish();
}

FetchRecord parse_fetch_record(std::string_view text, std::string_view origin) {
  const std::string at(origin);
  const Json json = parse_json(text, origin);
  known_fields(json, {"format", "version", "set", "packages"}, at);
  if (string_field(json, "format", at) != "molen-fetch" || count_field(json, "version", at) != 1)
    throw UsageError("{}: not a molen-fetch record of version 1", at);
  FetchRecord record;
  record.set = string_field(json, "set", at);
  const Json& packages = json_member(json, "packages", at);
  if (!packages.is_array()) throw UsageError("{}: 'packages' is not a list", at);
  for (std::size_t i = 0; i < packages.size(); ++i) {
    const Json& entry = packages[i];
    const std::string where = fmt::format("{}: packages[{}]", at, i);
    known_fields(entry,
                 {"package", "version", "architecture", "archive", "archive_bytes", "archive_sha256", "checked",
                  "retrieved", "licence"},
                 where);
    FetchedPackage p;
    p.package = string_field(entry, "package", where);
    check_package_name(p.package, where);
    p.version = string_field(entry, "version", where);
    p.architecture = string_field(entry, "architecture", where);
    p.archive = string_field(entry, "archive", where);
    if (p.archive.find('/') != std::string::npos || p.archive.empty() || p.archive[0] == '.')
      throw UsageError("{}: '{}' is not a plain file name", where, p.archive);
    p.archive_bytes = count_field(entry, "archive_bytes", where);
    p.archive_sha256 = string_field(entry, "archive_sha256", where);
    p.checked = string_field(entry, "checked", where);
    p.retrieved = string_field(entry, "retrieved", where);
    p.licence = licence_from_json(json_member(entry, "licence", where), where + ": licence");
    record.packages.push_back(std::move(p));
  }
  return record;
}

FetchRecord read_fetch_record(const fs::path& folder) {
  return parse_fetch_record(read_file(folder / "fetch.json", 1 << 26), (folder / "fetch.json").string());
}

std::string format_fetch_record(const FetchRecord& record) {
  Json packages = Json::array();
  for (const FetchedPackage& p : record.packages) packages.push_back(package_json(p));
  return Json{{"format", "molen-fetch"}, {"version", 1}, {"set", record.set}, {"packages", packages}}.dump(1) + "\n";
}

Licence licence_of_package(const fs::path& folder, const std::string& package) {
  Licence licence{"LicenseRef-unknown", "", copyright_path(folder, package), "", ""};
  if (licence.evidence.empty()) {
    licence.rule = "no copyright file";
    return licence;
  }
  const std::string text = read_file(folder / "root" / licence.evidence, 1 << 26);
  licence.evidence_sha256 = sha256_hex(text);
  if (const auto reviewed = reviewed_licence(package, licence.evidence_sha256)) {
    licence.spdx = reviewed->spdx;
    licence.declared = reviewed->declared;
    licence.rule = "read and entered by hand for this file";
  } else if (const auto dep5 = parse_dep5(text); !dep5) {
    licence.rule = "free text that nobody has reviewed";
  } else if (const auto stanza = dep5->package_default(); !stanza) {
    licence.rule = "DEP-5 without Files: *";
  } else {
    licence.declared = stanza->licence;
    licence.spdx = spdx_of(stanza->licence);
    licence.rule = "DEP-5 Files: *";
  }
  return licence;
}

FetchRecord fetch_packages(const std::string& set, const fs::path& folder, const Progress& progress) {
  const PackageSet& wanted = package_set(set);
  const fs::path archives = folder / "archives", root = folder / "root";
  make_directories(archives);
  make_directories(root);
  FetchRecord before;
  if (fs::exists(folder / "fetch.json")) before = read_fetch_record(folder);
  FetchRecord record{set, {}};
  for (const std::string& package : wanted.packages) {
    const FetchedPackage* old = known(before, package);
    fs::path deb = old != nullptr ? archives / old->archive : find_archive(archives, package);
    const bool intact = old != nullptr && fs::is_regular_file(deb) && sha256_file(deb) == old->archive_sha256;
    if (old != nullptr && !intact) {
      if (fs::exists(deb)) progress(package + ": its archive was altered, fetching it anew");
      remove_file(deb);
      deb.clear();
    }
    if (!intact && deb.empty()) {
      progress("fetching " + package);
      download(package, archives, progress);
      deb = find_archive(archives, package);
    }
    FetchedPackage entry = intact ? *old : describe(package, deb);
    // Always unpack: the licence below must come from the archive, not from files that somebody put into root/.
    unpack_archive(deb, root / package);
    if (entry.checked.empty())
      progress(fmt::format("note: {} {} is in no signed package index here, so nothing shows that it comes from Debian",
                           package, entry.version));
    record.packages.push_back(std::move(entry));
  }
  // Read the licences last: one package's copyright file may be in another package.
  for (FetchedPackage& p : record.packages) p.licence = licence_of_package(folder, p.package);
  // Packages of another set whose archives are in this folder stay in the record.
  for (const FetchedPackage& p : before.packages)
    if (known(record, p.package) == nullptr && fs::is_regular_file(archives / p.archive)) record.packages.push_back(p);
  if (record != before) write_file_atomic(folder / "fetch.json", format_fetch_record(record));
  return record;
}

}  // namespace molen::data
