#include "data/text_job.h"

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "data/html.h"
#include "data/json_fields.h"
#include "data/jsonl.h"
#include "data/language.h"
#include "data/lines.h"
#include "data/roff.h"

namespace molen::data {
namespace {

constexpr double kSaveSeconds = 2;
// A few invalid lines are slips. When more than one line in a hundred is invalid, the file has another format than the
// user thinks.
constexpr std::int64_t kSlips = 10, kLinesForASlip = 100;

Json state_json(const JobState& s) {
  Json outputs = Json::array();
  for (const TextRecord& record : s.outputs) outputs.push_back(to_json(record));
  return Json{{"key", s.key},         {"done", s.done},
              {"files", s.files},     {"line", s.line},
              {"invalid", s.invalid}, {"invalid_in_file", s.invalid_in_file},
              {"seen", s.seen},       {"first_invalid", s.first_invalid},
              {"outputs", outputs}};
}

JobState state_from_json(const Json& json, const std::string& at) {
  JobState s;
  s.key = string_field(json, "key", at);
  const Json& done = json_member(json, "done", at);
  if (!done.is_boolean()) throw UsageError("{}: 'done' is neither true nor false", at);
  s.done = done.get<bool>();
  s.files = count_field(json, "files", at);
  s.line = count_field(json, "line", at);
  s.invalid = count_field(json, "invalid", at);
  s.invalid_in_file = count_field(json, "invalid_in_file", at);
  s.seen = count_field(json, "seen", at);
  s.first_invalid = string_field(json, "first_invalid", at);
  const Json& outputs = json_member(json, "outputs", at);
  if (!outputs.is_array()) throw UsageError("{}: 'outputs' is not a list", at);
  for (const Json& output : outputs) s.outputs.push_back(text_record_from_json(output, at));
  return s;
}

// A text file under construction.
class Output {
 public:
  // Begins a file, or continues after the `record.file.bytes` bytes in it.
  Output(const fs::path& path, TextRecord begun) : record(std::move(begun)), file_(open(path, record.file.bytes)) {
    std::string block;
    for (std::int64_t at = 0; at < record.file.bytes; at += static_cast<std::int64_t>(block.size())) {
      block.resize(static_cast<std::size_t>(std::min<std::int64_t>(1 << 20, record.file.bytes - at)));
      file_.read(block.data(), block.size(), at);
      hash_.update(block.data(), block.size());
    }
  }
  void add(const JsonlRecord& document) {
    buffer_ += format_jsonl(document);
    if (buffer_.size() > (std::size_t{1} << 20)) flush();
  }
  void flush() {
    file_.write(buffer_);
    hash_.update(buffer_.data(), buffer_.size());
    record.file.bytes += static_cast<std::int64_t>(buffer_.size());
    buffer_.clear();
  }
  void finish() {
    flush();
    file_.sync();
    file_.close();
    record.file.sha256 = hash_.hex();
  }
  TextRecord record;

 private:
  static File open(const fs::path& path, std::int64_t bytes) {
    if (bytes == 0) remove_file(path);
    File file = File::append(path);
    file.truncate(bytes);
    return file;
  }
  File file_;
  std::string buffer_;
  Sha256 hash_;
};

// Returns whether the first `bytes` of the file hold as many documents as the record says, each a whole line. A text
// that lost data in a power cut is not continued.
bool holds(const fs::path& path, const TextRecord& record) {
  const File file = File::open(path);
  if (file.size() < record.file.bytes) return false;
  std::string block;
  std::int64_t lines = 0;
  for (std::int64_t at = 0; at < record.file.bytes; at += static_cast<std::int64_t>(block.size())) {
    block.resize(static_cast<std::size_t>(std::min<std::int64_t>(1 << 20, record.file.bytes - at)));
    file.read(block.data(), block.size(), at);
    lines += std::count(block.begin(), block.end(), '\n');
    if (block.find('\0') != std::string::npos) return false;
  }
  return lines == record.counts.documents && (block.empty() || block.back() == '\n');
}

std::vector<Block> extract(const Recipe& recipe, const std::string& raw) {
  HtmlRules rules;
  rules.root_id = recipe.root_id;
  switch (recipe.markup) {
    case Recipe::Markup::kHtml:
      return html_blocks(raw, rules);
    case Recipe::Markup::kRoff:
      return roff_blocks(raw);
    case Recipe::Markup::kMallard:
      rules.xml = true;
      rules.drop_tags = {"info", "links"};
      return html_blocks(raw, rules);
    case Recipe::Markup::kCode:
      return {{Block::Kind::kVerbatim, raw}};
  }
  return {};
}

bool is_jsonl(const std::string& name) {
  return name.ends_with(".jsonl") || name.ends_with(".jsonl.gz") || name.ends_with(".jsonl.zst") ||
         name.ends_with(".json.gz");
}

class Runner {
 public:
  Runner(Job& job, std::size_t number, JobState state, const PrepareOptions& options, const TextFolder& folder,
         Cleaner& cleaner, const ProgressLine& progress)
      : job_(job),
        number_(number),
        state_(std::move(state)),
        options_(options),
        folder_(folder),
        cleaner_(cleaner),
        progress_(progress),
        seen_(folder.open_seen(state_.seen)) {
    for (const TextRecord& record : state_.outputs)
      outputs_[record.language] = std::make_unique<Output>(folder_.text(record), record);
  }

  JobState run() {
    if (job_.recipe) output(job_.recipe->language);  // the file exists even when the package leaves no text
    const auto count = static_cast<std::int64_t>(job_.files.size());
    for (const fs::path& file : job_.files) bytes_ += static_cast<double>(fs::file_size(file));
    for (std::int64_t i = 0; i < std::min(state_.files, count); ++i) finish_file(i);
    tell(0);
    while (state_.files < count) {
      const fs::path& file = job_.files[static_cast<std::size_t>(state_.files)];
      const std::string id = file.lexically_relative(job_.root).generic_string();
      if (job_.recipe)
        page(file, id);
      else if (is_jsonl(file.filename().string()))
        lines(file, id);
      else
        add(read_text_file(file), id, "");
      finish_file(state_.files);
      tell(0);
      ++state_.files;
      state_.line = state_.invalid_in_file = 0;
      save_now_and_then();
    }
    if (outputs_.empty() && state_.invalid > 0)
      throw UsageError("{} invalid lines and no valid one; the first: {}", state_.invalid, state_.first_invalid);
    if (state_.invalid > 0) outputs_.begin()->second->record.counts.dropped["invalid line"] += state_.invalid;
    for (auto& [language, output] : outputs_) output->finish();
    state_.done = true;
    save();
    return state_;
  }

 private:
  Output& output(const std::string& language) {
    auto& output = outputs_[language];
    if (!output) {
      TextRecord record = job_.record;
      record.language = language;
      if (!job_.recipe) record.name = language + "-" + record.name;
      record.file = {record.name + ".jsonl", 0, ""};
      output = std::make_unique<Output>(folder_.text(record), record);
    }
    return *output;
  }

  void page(const fs::path& file, const std::string& id) {
    const Recipe& recipe = *job_.recipe;
    Output& to = output(recipe.language);
    CleanCounts& counts = to.record.counts;
    CleanRules rules;
    if (recipe.markup == Recipe::Markup::kCode) rules.filter_language = rules.deduplicate_blocks = false;
    const std::string raw = read_text_file(file, 1 << 28);
    if (!is_clean_utf8(raw)) {
      ++counts.dropped["not UTF-8"];
      return;
    }
    std::vector<Block> blocks;
    try {
      blocks = extract(recipe, raw);
    } catch (const UsageError&) {
      ++counts.dropped["unreadable markup"];
      return;
    }
    if (auto text = cleaner_.clean(std::move(blocks), recipe.language, rules, counts))
      to.add({std::move(*text), id, recipe.language});
  }

  void lines(const fs::path& file, const std::string& id) {
    LineReader lines(file);
    JsonlParser parser;
    for (std::string_view line; lines.next(line);) {
      if (lines.line_number() <= state_.line) continue;  // done before
      state_.line = lines.line_number();
      if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
      try {
        const JsonlRecord record = parser.parse(line, fmt::format("{}:{}", file.string(), lines.line_number()));
        add(record.text, record.id.empty() ? fmt::format("{}:{}", id, lines.line_number()) : record.id,
            record.language);
      } catch (const UsageError& error) {
        invalid_line(error.what());
      }
      tell(lines.bytes_read());
      save_now_and_then();
    }
    if (state_.invalid_in_file > kSlips) check_slips();
    if (state_.invalid_in_file > kSlips && progress_)
      progress_(fmt::format("{}: {} invalid lines skipped in all", file.string(), state_.invalid_in_file));
  }

  void invalid_line(const std::string& why) {
    ++state_.invalid;
    if (state_.first_invalid.empty()) state_.first_invalid = why;
    if (++state_.invalid_in_file <= kSlips && progress_) progress_("skipped " + why);
    if (state_.invalid_in_file > kSlips * kLinesForASlip) check_slips();
  }
  void check_slips() const {
    if (state_.invalid_in_file * kLinesForASlip > state_.line)
      throw UsageError("{} of the first {} lines are invalid; the first: {}", state_.invalid_in_file, state_.line,
                       state_.first_invalid);
  }

  void add(const std::string& raw, const std::string& id, const std::string& own_language) {
    std::string language = !options_.language.empty() ? options_.language : own_language;
    if (language.empty()) language = detect_language(raw);
    const bool plain =
        !language.empty() && language.size() <= 8 &&
        std::all_of(language.begin(), language.end(), [](unsigned char c) { return std::isalnum(c) || c == '-'; });
    if (!plain) language = "und";  // undetermined
    CleanRules rules;
    rules.filter_language = false;  // the user knows what these files hold
    rules.min_characters = 1;
    Output& to = output(language);
    if (!is_clean_utf8(raw)) {
      ++to.record.counts.dropped["not UTF-8"];
      return;
    }
    if (auto text = cleaner_.clean(split_plain(raw), language, rules, to.record.counts))
      to.add({std::move(*text), id, language});
  }

  void finish_file(std::int64_t number) {
    done_ += static_cast<double>(fs::file_size(job_.files[static_cast<std::size_t>(number)]));
  }
  // Reports progress: `read` bytes of the current file, in addition to the finished files.
  void tell(std::int64_t read) const {
    if (!options_.at) return;
    const double part = bytes_ > 0 ? (done_ + static_cast<double>(read)) / bytes_ : 1.0;
    options_.at("text", job_.begin_share + (job_.end_share - job_.begin_share) * std::min(1.0, part), job_.record.name);
  }

  void save_now_and_then() {
    if (now().value - saved_ > kSaveSeconds) save();
  }
  // Writes texts and `seen` first, and then the record of their lengths: the record must never name bytes that are not
  // there.
  void save() {
    state_.outputs.clear();
    for (auto& [language, output] : outputs_) {
      if (!state_.done) output->flush();
      state_.outputs.push_back(output->record);
    }
    const std::string seen = cleaner_.take_seen();
    seen_.write(seen);
    state_.seen += static_cast<std::int64_t>(seen.size());
    folder_.save(number_, state_);
    saved_ = now().value;
  }

  Job& job_;
  std::size_t number_;
  JobState state_;
  const PrepareOptions& options_;
  const TextFolder& folder_;
  Cleaner& cleaner_;
  const ProgressLine& progress_;
  File seen_;
  std::map<std::string, std::unique_ptr<Output>> outputs_;  // by language
  double saved_ = now().value;
  double bytes_ = 0.0, done_ = 0.0;  // bytes of the job's files
};

}  // namespace

std::optional<JobState> TextFolder::load(std::size_t number, const std::string& key) const {
  try {
    const fs::path file = job_file(number);
    JobState state = state_from_json(read_json(file), file.string());
    if (state.key != key || !path_exists(path_ / "seen") || File::open(path_ / "seen").size() < state.seen)
      return std::nullopt;
    for (const TextRecord& record : state.outputs)
      if (state.done ? sha256_file(text(record)) != record.file.sha256 : !holds(text(record), record))
        return std::nullopt;
    return state;
  } catch (const IoError&) {
    throw;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void TextFolder::save(std::size_t number, const JobState& state) const {
  if (state.done)
    write_file_atomic(job_file(number), state_json(state).dump(1) + "\n");
  else
    write_file_unsynced(job_file(number), state_json(state).dump(1) + "\n");
}

void TextFolder::drop(std::size_t number) const {
  for (;; ++number) {
    if (!path_exists(job_file(number))) return;
    try {
      const fs::path file = job_file(number);
      for (const TextRecord& record : state_from_json(read_json(file), file.string()).outputs)
        remove_file(text(record));
    } catch (const UsageError&) {
      // The next run overwrites the record's files, or leaves them unnamed.
    }
    remove_file(job_file(number));
  }
}

std::string TextFolder::read_seen(std::int64_t bytes) const {
  std::string seen(static_cast<std::size_t>(bytes), '\0');
  if (bytes > 0) File::open(path_ / "seen").read(seen.data(), seen.size(), 0);
  return seen;
}

File TextFolder::open_seen(std::int64_t bytes) const {
  File file = File::append(path_ / "seen");
  file.truncate(bytes);
  return file;
}

JobState run_job(Job& job, std::size_t number, JobState state, const PrepareOptions& options, const TextFolder& folder,
                 Cleaner& cleaner, UnpackedPackages* packages, const ProgressLine& progress) {
  if (packages != nullptr) {
    job.root = packages->root(job.record.package);
    job.files = files_below(job.root / job.recipe->folder, job.recipe->ending);
    if (job.files.empty())
      throw UsageError("{}: no *{} below {} in {}: the package is not what its recipe expects", job.fetched.string(),
                       job.recipe->ending, job.recipe->folder, job.record.package);
  }
  state.key = job.key;
  return Runner(job, number, std::move(state), options, folder, cleaner, progress).run();
}

std::vector<fs::path> files_below(const fs::path& folder, const std::string& ending) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (!it->is_symlink() && it->is_regular_file() && it->path().filename().string().ends_with(ending))
      files.push_back(it->path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace molen::data
