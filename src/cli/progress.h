// A progress bar on stderr, drawn only on a terminal and only for work of over a second.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace kvasir::cli {

class Progress {
 public:
  explicit Progress(std::string what);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { done(); }
  // `detail` stands after the percentage: "1.2 GB of 4.9 GB".
  void update(double done, double total, const std::string& detail = {});
  void done();  // clears the line
  // For work that counts steps and may be stopped: updates, and answers whether to go on. It must not outlive
  // this object.
  std::function<bool(size_t done, size_t total)> callback();

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_{};
  bool terminal_;
  bool visible_ = false;
};

}  // namespace kvasir::cli
