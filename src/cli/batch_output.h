// Where `kvasir generate --jsonl` writes: whole lines, in order, and a run that was cut goes on where it
// stopped.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace kvasir::cli {

// Throws Error{invalid_input} when both names mean one regular file, also through links: the answers would
// replace the questions. Empty or "-": the standard streams.
void check_not_the_input(const std::string& output, const std::string& input);

class BatchOutput {
 public:
  // `path` empty or "-": standard output. A file that holds something is refused unless `resume` or
  // `overwrite`; with `resume` its whole lines are kept and a torn last one is cut off. The file is locked
  // against a second run. Throws Error{invalid_input} or Error{not_found}.
  static BatchOutput open(const std::string& path, bool resume, bool overwrite);

  BatchOutput(BatchOutput&& other) noexcept;
  BatchOutput& operator=(BatchOutput&&) = delete;
  ~BatchOutput();

  // Lines that were there already, without their ends.
  const std::vector<std::string>& kept() const { return kept_; }

  // The line of request `number`, ended by a newline. It is written when all before it have been; `kept()`
  // counts as written. Throws Error{not_found} when it cannot be written, and cuts off what was written of
  // it.
  void put(size_t number, std::string line);
  size_t written() const { return next_; }

 private:
  BatchOutput() = default;
  void write(const std::string& line);

  std::string name_;
  int descriptor_ = -1;
  bool owned_ = false;
  int64_t size_ = 0;  // of the file's whole lines
  std::vector<std::string> kept_;
  size_t next_ = 0;
  std::map<size_t, std::string> waiting_;
};

}  // namespace kvasir::cli
