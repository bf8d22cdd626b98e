// Turns sources into clean text: lists the sources, finds finished work of earlier runs, and does the rest.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "data/fetch.h"
#include "data/prepare.h"
#include "data/recipes.h"
#include "data/spdx.h"
#include "data/text_job.h"

namespace molen::data {
namespace {

// Increase this when extraction or cleaning changes its output, so that old text is not reused.
constexpr int kExtractorVersion = 2;

void add_packages(const fs::path& folder, std::vector<Job>& jobs) {
  const FetchRecord fetched = read_fetch_record(folder);
  for (const FetchedPackage& p : fetched.packages) {
    for (const Recipe& recipe : recipes_of(p.package)) {
      Job job;
      job.record = {recipe.language + "-" + p.package,
                    recipe.held_out ? "heldout" : "train",
                    fetched.set,
                    p.package,
                    p.version,
                    p.licence,
                    recipe.language,
                    {},
                    {}};
      job.recipe = recipe;
      job.fetched = folder;
      job.key = p.archive_sha256;
      job.bytes = p.archive_bytes;
      jobs.push_back(std::move(job));
    }
  }
}

// Makes a shard's name from a file's, of characters that every file system allows.
std::string safe_name(const fs::path& path) {
  std::string name = path.filename().string();
  name = name.substr(0, name.find('.'));
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '-';
  return name.empty() ? "text" : name;
}

void add_files(const fs::path& given, const PrepareOptions& options, std::vector<Job>& jobs) {
  const fs::path path = given.has_filename() ? given : given.parent_path();  // "texts/" is the folder "texts"
  if (options.licence.empty())
    throw UsageError(
        "{}: --licence is missing: give the SPDX identifier of the text's licence (LicenseRef-... where it has "
        "none)",
        path.string());
  check_spdx(options.licence, "--licence");
  Job job;
  job.record = {safe_name(path),
                options.split,
                path.filename().string(),
                "",
                "",
                {options.licence, options.licence, "", "", "given by the user"},
                options.language,
                {},
                {}};
  job.root = fs::is_directory(path) ? path : path.parent_path();
  job.files = fs::is_directory(path) ? files_below(path, "") : std::vector{path};
  if (job.files.empty()) throw UsageError("{}: an empty folder", path.string());
  for (const fs::path& file : job.files) job.bytes += static_cast<std::int64_t>(fs::file_size(file));
  for (const fs::path& file : job.files)
    job.key += file.lexically_relative(job.root).generic_string() + " " + sha256_file(file) + "\n";
  jobs.push_back(std::move(job));
}

// Each job drops blocks that earlier jobs hold, so its text depends on them; its key therefore includes theirs.
void chain_keys(std::vector<Job>& jobs, const PrepareOptions& options) {
  std::string before = fmt::format("extractor {}", kExtractorVersion);
  for (Job& job : jobs) {
    const TextRecord& r = job.record;
    before = sha256_hex(fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", before, r.name, r.split, r.source, r.language,
                                    r.licence.spdx, r.licence.evidence_sha256, options.language, job.key));
    job.key = before;
  }
}

std::vector<Job> find_jobs(const PrepareOptions& options) {
  if (options.split != "train" && options.split != "heldout")
    throw UsageError("--split {}: must be train or heldout", options.split);
  if (options.sources.empty()) throw UsageError("no source given: a folder made by `molen data fetch`, or text files");
  std::vector<Job> jobs;
  for (const fs::path& source : options.sources) {
    if (!fs::exists(source)) throw UsageError("{}: does not exist", source.string());
    if (fs::is_regular_file(source / "fetch.json"))
      add_packages(source, jobs);
    else
      add_files(source, options, jobs);
  }
  // The order is descending, so "train" comes before "heldout": held-out text then drops the blocks that training text
  // holds.
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const Job& a, const Job& b) { return a.record.split > b.record.split; });
  std::set<std::string> names;
  for (Job& job : jobs) {
    const std::string base = job.record.name;
    for (int n = 2; !names.insert(job.record.name).second; ++n) job.record.name = base + "-" + std::to_string(n);
  }
  chain_keys(jobs, options);
  double all = 0.0, before = 0.0;
  for (const Job& job : jobs) all += static_cast<double>(std::max<std::int64_t>(1, job.bytes));
  for (Job& job : jobs) {
    job.begin_share = before / all;
    before += static_cast<double>(std::max<std::int64_t>(1, job.bytes));
    job.end_share = before / all;
  }
  return jobs;
}

// Returns whether the text of an earlier run can be reused because nothing has changed since.
bool is_reusable(const fs::path& folder, const std::string& inputs, TextManifest& manifest) {
  if (!fs::is_regular_file(folder / "text.json")) return false;
  try {
    manifest = read_text_manifest(folder);
  } catch (const UsageError&) {
    return false;
  }
  if (manifest.inputs != inputs) return false;
  for (const TextRecord& text : manifest.texts) {
    const fs::path file = folder / text.split / text.file.path;
    if (!fs::is_regular_file(file) || sha256_file(file) != text.file.sha256) return false;
  }
  return true;
}

// Does not sync. If a power cut shortens the copy, its hash differs from the job's record, and the job is done again.
void duplicate(const fs::path& from, const fs::path& to) {
  const File source = File::open(from);
  File copy = File::create_new(to);
  std::string block(1 << 20, '\0');
  for (std::int64_t at = 0;;) {
    const std::size_t got = source.read_some(block.data(), block.size(), at);
    copy.write(std::string_view(block).substr(0, got));
    at += static_cast<std::int64_t>(got);
    if (got < block.size()) return;
  }
}

// Returns output/text.part: the folder that an unfinished run left, or else a new folder with links to the files of the
// earlier text. Jobs that are valid there are not done again.
TextFolder open_part(const fs::path& output) {
  const fs::path part = output / "text.part", text = output / "text";
  if (fs::is_symlink(fs::symlink_status(part))) throw UsageError("{}: is a symbolic link; remove it", part.string());
  const bool fresh = !path_exists(part);
  for (const char* folder : {"train", "heldout", "jobs"}) make_directories(part / folder);
  for (const DirectoryEntry& entry : list_directory(part))
    if (entry.name.starts_with("unpacked")) remove_tree(part / entry.name);  // left by a killed run
  if (!fresh || !path_exists(text / "jobs")) return TextFolder(part);
  for (const char* folder : {"train", "heldout", "jobs"})
    for (const DirectoryEntry& entry : list_directory(text / folder)) {
      const fs::path from = text / folder / entry.name, to = part / folder / entry.name;
      // Finished texts are never written to, so hard links suffice; some file systems have no hard links.
      if (entry.is_directory || file_system().link(from, to) == 0) continue;
      duplicate(from, to);
    }
  duplicate(text / "seen", part / "seen");
  return TextFolder(part);
}

// Removes files that the manifest does not name, because a program may read all files of a split.
void remove_strays(const fs::path& folder, const TextManifest& manifest) {
  for (const std::string split : {"train", "heldout"})
    for (const DirectoryEntry& entry : list_directory(folder / split)) {
      const auto named = [&](const TextRecord& t) { return t.split == split && t.file.path == entry.name; };
      if (std::none_of(manifest.texts.begin(), manifest.texts.end(), named)) remove_tree(folder / split / entry.name);
    }
}

void run_jobs(std::vector<Job>& jobs, const PrepareOptions& options, const TextFolder& folder, TextManifest& manifest,
              const ProgressLine& progress) {
  Cleaner cleaner;
  std::int64_t seen = 0;  // bytes of the hashes that finished jobs have seen
  std::unique_ptr<UnpackedPackages> packages;
  fs::path unpacked_from;
  bool going_on = true;
  for (std::size_t n = 0; n < jobs.size(); ++n) {
    Job& job = jobs[n];
    std::optional<JobState> state = going_on ? folder.load(n, job.key) : std::nullopt;
    if (!state || !state->done) {
      if (going_on) {
        folder.drop(state ? n + 1 : n);
        cleaner.restore(folder.read_seen(state ? state->seen : seen));
      }
      going_on = false;
      if (progress) progress((state ? "going on with " : "extracting ") + job.record.name);
      if (job.recipe && job.fetched != unpacked_from) {
        packages.reset();
        packages = std::make_unique<UnpackedPackages>(job.fetched, folder.path() / "unpacked", progress);
        unpacked_from = job.fetched;
      }
      JobState begun;
      begun.seen = seen;
      state = run_job(job, n, state ? std::move(*state) : std::move(begun), options, folder, cleaner,
                      job.recipe ? packages.get() : nullptr, progress);
    }
    seen = state->seen;
    for (TextRecord& record : state->outputs) manifest.texts.push_back(std::move(record));
  }
  folder.drop(jobs.size());
}

}  // namespace

TextManifest prepare_text(const PrepareOptions& options, const ProgressLine& progress) {
  std::vector<Job> jobs = find_jobs(options);
  TextManifest manifest;
  const std::string inputs = jobs.empty() ? "" : jobs.back().key;
  const fs::path text = options.output / "text";
  if (is_reusable(text, inputs, manifest)) {
    if (progress) progress("text: unchanged, reused");
    return manifest;
  }
  manifest = {inputs, {}};
  const TextFolder folder = open_part(options.output);
  try {
    run_jobs(jobs, options, folder, manifest, progress);
  } catch (...) {
    if (list_directory(folder.path() / "jobs").empty()) remove_tree(folder.path());  // nothing to continue from
    throw;
  }
  std::int64_t documents = 0;
  for (const TextRecord& record : manifest.texts) documents += record.counts.documents;
  if (documents == 0) {
    remove_tree(folder.path());  // nothing to continue from
    throw UsageError("no document is left after cleaning: are the sources text in UTF-8?");
  }
  remove_strays(folder.path(), manifest);
  // Sync the names of the texts before the manifest that refers to them.
  for (const char* part : {"train", "heldout", "jobs"}) sync_directory(folder.path() / part);
  write_file_atomic(folder.path() / "text.json", format_text_manifest(manifest));
  remove_tree(text);
  rename_path(folder.path(), text);
  sync_directory(options.output);
  return manifest;
}

}  // namespace molen::data
